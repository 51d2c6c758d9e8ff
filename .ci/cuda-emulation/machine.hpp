// The emulated machine: GPUs with memory, streams with queues of operations, and the order in which these run. Callers
// hold its lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernel.h"

namespace emulated {

using Address = uint64_t;

struct Settings {
    int gpus;       // EMULATED_GPUS, 1
    size_t memory;  // of each: EMULATED_MEMORY in MiB, 4096
    int capability; // EMULATED_CAPABILITY, 90: compute capability 9.0
    uint64_t seed;  // of all random choices: EMULATED_SEED, 0
    bool later;     // EMULATED_STREAMS=later: streams run when a thread waits for them, or at random
    bool go_on;     // EMULATED_RACES=said: data races are printed, and the process continues
    bool pools;     // EMULATED_POOLS=none: streams allocate no memory
    bool peers;     // EMULATED_PEERS=none: no GPU may access another one's memory
    bool loses;     // EMULATED_PEERS=broken: cuMemcpyPeerAsync writes nothing to a pool that another GPU may access
    bool hangs;     // EMULATED_NCCL=hangs: sums never end
    bool one;       // EMULATED_CUDNN contains "one": one algorithm works for each direction
    bool narrow;    // EMULATED_CUDNN contains "pad": none works with a padding as large as the kernel
    bool alike;     // EMULATED_CUDNN contains "alike": all GPUs are offered the same
    std::string fault;  // EMULATED_FAULT: "copy" (half of each copy arrives), "nccl" (a sum is wrong), "order" (no stream
                        // waits for another), or a kernel that does nothing
};
const Settings& settings();

std::mutex& lock();
using Guard = std::lock_guard<std::mutex>;

// A random number below `n`, from the seed alone.
size_t chance(size_t n);

// Ends the process with a message: for errors that a GPU does not detect, or that make it unusable.
[[noreturn]] void violated(const char* format, ...) __attribute__((format(printf, 1, 2)));

// -- streams --------------------------------------------------------------------------------------

// How many operations of each stream, by its number, come before a point.
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
    // Whether it can run; null if always. It is polled.
    std::function<bool()> ready = nullptr;
    int other_gpu = -1;  // it also uses memory of this GPU
    Clock host = {};     // what the host knew to be done when it enqueued this
};

struct Stream {
    int gpu;
    size_t number, priority;
    Clock clock;
    std::deque<Operation> queue = {};
    bool destroyed = false;
};

Stream* new_stream(int gpu);
void destroy(Stream* stream);
// The stream of a CUDA handle; some handles name the default stream of `gpu`.
Stream* stream_of(void* handle, int gpu);

void enqueue(Stream* stream, Operation operation);
std::shared_ptr<Mark> record(Stream* stream);
void wait(Stream* stream, std::shared_ptr<Mark> mark);

// Runs streams, in any order, until `so` is true. Releases the lock while no operation can run.
void until(const std::function<bool()>& so);
void until_reached(const std::shared_ptr<Mark>& mark);
void until_done(Stream* stream);
void until_all_done(int gpu);
// Runs some operations of streams, or none.
void go_on();
// The host now knows that the mark is reached: what it enqueues from now on comes after the mark.
void seen(const Mark& mark);

// -- memory ---------------------------------------------------------------------------------------
// Each allocation has its own pages, ends where they end, and is NaN before it is written. Addresses are never reused,
// so a read after a free faults. Pages are open only while an operation that uses them runs. So the host cannot access
// them, nor can other GPUs, and the machine records which operations used which allocation. Of two such operations, if
// one writes, a stream, an event or the host must order them, whatever their order was this time.

// An address on a GPU, or 0 if it has no memory left. The memory exists at once, or once the stream allocates it.
Address allocate(int gpu, size_t bytes, Stream* stream = nullptr);
// Frees an allocation at once, or once the stream does so; returns whether it existed.
bool release(Address first, Stream* stream = nullptr);
// The GPU on which all these bytes are part of one allocation, or -1.
int gpu_of(Address first, size_t bytes);
size_t free_memory(int gpu);

// The operation that runs on this thread during this object's lifetime, and may use memory.
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
