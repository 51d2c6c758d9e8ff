// The emulated machine: GPUs with memory, streams that hold what was asked of them, and the order in which it is
// done. Whoever calls any of this has its lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "kernel.h"

namespace emulated {

using Address = uint64_t;

struct Settings {
    int gpus;       // EMULATED_GPUS, 1
    size_t memory;  // of each: EMULATED_MEMORY in MiB, 4096
    int capability; // EMULATED_CAPABILITY, 90: compute capability 9.0
    uint64_t seed;  // of everything that is left to chance: EMULATED_SEED, 0
    bool later;     // EMULATED_STREAMS=later: streams go on when somebody waits for them, or by chance
    bool go_on;     // EMULATED_RACES=said: what nothing orders is said, and no end
};
const Settings& settings();

std::mutex& lock();
using Guard = std::lock_guard<std::mutex>;

// Of the seed alone; below `n`.
size_t chance(size_t n);

// Ends the process, and says why: for what a GPU does not notice, and for what leaves it unusable.
[[noreturn]] void violated(const char* format, ...) __attribute__((format(printf, 1, 2)));

// -- streams --------------------------------------------------------------------------------------

// How many operations of each stream, by its number, come before something.
using Clock = std::vector<uint64_t>;
void join(Clock& clock, const Clock& other);

// A point in a stream.
struct Mark {
    bool reached = false;
    double at = 0;  // seconds
    Clock clock;
};

struct Event {
    int gpu;
    std::shared_ptr<Mark> last;  // none before it is recorded
};

struct Operation {
    const char* what;
    std::function<void()> run;
    // Whether it can run; none if always. It is asked again and again.
    std::function<bool()> ready = nullptr;
    int other_gpu = -1;  // whose memory it uses as well
    Clock host = {};     // what the host had seen done when it asked for this
};

// What was asked of a stream while it was captured, to be done as often as the graph is launched.
using Graph = std::vector<Operation>;

struct Stream {
    int gpu;
    size_t number, priority;
    Clock clock;
    std::deque<Operation> queue = {};
    bool destroyed = false;
    Graph* capture = nullptr;
    bool spoilt = false;  // the capture, by something that cannot be captured
};

Stream* new_stream(int gpu);
void destroy(Stream* stream);
// The stream by a handle of CUDA's, which may be one of the names of the default stream of `gpu`.
Stream* stream_of(void* handle, int gpu);

void enqueue(Stream* stream, Operation operation);
std::shared_ptr<Mark> record(Stream* stream);
void wait(Stream* stream, std::shared_ptr<Mark> mark);

// Has streams go on, in any order, until it is so. The lock is open while nothing can be done.
void until(const std::function<bool()>& so);
void until_reached(const std::shared_ptr<Mark>& mark);
void until_done(Stream* stream);
void until_all_done(int gpu);
// Has streams go on for a while, or not at all.
void go_on();
// The host knows that it is reached: what it asks for from now on comes after it.
void seen(const Mark& mark);

// -- memory ---------------------------------------------------------------------------------------
// Each allocation has pages of its own, ends where they do, and is NaN before it is written. Addresses are not used
// again: what is read after it was freed is not there. Pages are open only while an operation runs that uses them.
// So the host cannot read them, nor one GPU the other's, and it is known who used what: two operations, one of which
// writes, have to be ordered by their stream, by events or by the host, whatever their order was this time.

// An address on a GPU, or 0 where it has no memory left. It is there at once, or once the stream comes to it.
Address allocate(int gpu, size_t bytes, Stream* stream = nullptr);
// Whether there was such an allocation. Gives it back at once, or once the stream comes to it. A graph takes and gives
// back its own memory, and no other, each time that it is launched.
bool release(Address first, Stream* stream = nullptr);
// The GPU on which all these bytes are part of one allocation, or -1.
int gpu_of(Address first, size_t bytes);
size_t free_memory(int gpu);

// What happens on this thread as long as this lives, and may use memory.
class Doing {
    Doing* before;

  public:
    const char* const what;
    Stream* const stream;
    const int other_gpu;
    std::vector<Address> opened;

    Doing(Stream* stream, const Operation& operation);
    ~Doing();
};

// -- kernels --------------------------------------------------------------------------------------

struct Grid {
    Index blocks, threads;
    size_t dynamic_shared;
};
// Runs all threads of all blocks.
void launch(const Kernel& kernel, const Grid& grid, void** parameters);

}  // namespace emulated
