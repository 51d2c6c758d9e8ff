// libnccl: sums of f32 over threads and processes of one machine, through a file that all of them map. Like the real
// one, it sums on a stream, waits for ever for a missing member, and refuses two members on one GPU. Calls of a
// non-blocking communicator may return before they are done.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "driver.hpp"

using namespace emulated;

enum Result { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, IN_PROGRESS = 7 };
enum { FLOAT32 = 7, SUM = 0 };

namespace {

const int PROCESSES = 16;
const size_t ROOM = size_t(256) << 20;  // the most bytes of a process in a sum

// The head of the file; the data of each process follows it.
struct Shared {
    std::atomic<int> joined;
    std::atomic<int> gpu[PROCESSES];
    // For each process: how many parts it has written, the length of the last one, and how many sums it has computed.
    std::atomic<uint64_t> brought[PROCESSES], length[PROCESSES], taken[PROCESSES];
};

struct Communicator {
    Shared* shared;
    char* data;
    std::string path;
    int rank, size, gpu;
    bool blocking;
    uint64_t sums = 0;   // that were enqueued
    uint64_t done = 0;   // of them
    bool aborted = false, finalized = false;
    int busy = 0;        // how many more times it answers IN_PROGRESS
    std::string error;

    float* part(int of) const { return reinterpret_cast<float*>(data + of * ROOM); }

    bool all(const std::atomic<uint64_t>* counts, uint64_t reach) const {
        for (int i = 0; i < size; ++i)
            if (counts[i] < reach) return false;
        return true;
    }
};

// Operations in progress keep it alive.
using Handle = std::shared_ptr<Communicator>;

struct Id {
    char text[128];
};

bool map(Communicator& of) {
    const size_t head = (sizeof(Shared) + 63) / 64 * 64, length = head + of.size * ROOM;
    const int file = open(of.path.c_str(), O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, length)) return false;
    void* all = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (all == MAP_FAILED) return false;
    of.shared = static_cast<Shared*>(all);
    of.data = static_cast<char*>(all) + head;
    return true;
}

// Whether all processes have joined, and each has its own GPU.
Result meet(Communicator& of) {
    if (of.shared->joined < of.size) return IN_PROGRESS;
    unlink(of.path.c_str());
    for (int i = 0; i < of.size; ++i)
        for (int k = 0; k < i; ++k)
            if (of.shared->gpu[i] == of.shared->gpu[k]) of.error = "Duplicate GPU detected";
    return of.error.empty() ? SUCCESS : INVALID_USAGE;
}

// Writes this process's part of sum `n` once all processes have computed the one before. Returns whether all parts are
// there.
bool ready(const Handle& of, uint64_t n, const float* from, size_t count) {
    if (of->aborted) return true;
    if (settings().hangs) return false;
    Shared& shared = *of->shared;
    if (shared.brought[of->rank] == n) {
        if (!of->all(shared.taken, n)) return false;
        memcpy(of->part(of->rank), from, count * sizeof(float));
        shared.length[of->rank] = count;
        shared.brought[of->rank] = n + 1;
    }
    return of->all(shared.brought, n + 1);
}

// Sums in rank order: all processes get the same bits.
void sum(const Handle& of, uint64_t n, float* to, size_t count) {
    ++of->done;
    if (of->aborted) return;
    for (int i = 0; i < of->size; ++i)
        if (of->shared->length[i] != count) violated("processes sum %zu values and others", count);
    for (size_t k = 0; k < count; ++k) {
        float total = of->part(0)[k];
        for (int i = 1; i < of->size; ++i) total += of->part(i)[k];
        to[k] = total;
    }
    if (settings().fault == "nccl") to[0] += 1;
    of->shared->taken[of->rank] = n + 1;
}

}  // namespace

extern "C" {

Result ncclGetVersion(int* version) {
    *version = 22800;
    return SUCCESS;
}

const char* ncclGetLastError(const Handle* of) { return of ? (*of)->error.c_str() : ""; }

Result ncclGetUniqueId(Id* id) {
    const char* folder = getenv("TMPDIR");
    std::random_device random;
    snprintf(id->text, sizeof id->text, "%s/emulated-nccl-%08x%08x", folder ? folder : "/tmp", random(), random());
    return SUCCESS;
}

// The fourth field of `config` is whether calls block; see ncclConfig_t.
Result ncclCommInitRankConfig(Handle** made, int size, Id id, int rank, const char* config) {
    const Guard guard(lock());
    if (size < 1 || size > PROCESSES || rank < 0 || rank >= size || current_gpu() < 0) return INVALID_ARGUMENT;
    auto of = std::make_shared<Communicator>();
    int blocking;
    memcpy(&blocking, config + 16, sizeof blocking);
    of->path = id.text, of->rank = rank, of->size = size, of->gpu = current_gpu(), of->blocking = blocking != 0;
    if (!map(*of)) return SYSTEM_ERROR;
    of->shared->gpu[rank] = of->gpu;
    ++of->shared->joined;
    *made = new Handle(of);
    if (!of->blocking) return IN_PROGRESS;
    Result result = IN_PROGRESS;
    until([&] { return (result = meet(*of)) != IN_PROGRESS; });
    return result;
}

Result ncclCommGetAsyncError(const Handle* handle, Result* state) {
    const Guard guard(lock());
    go_on();
    Communicator& of = **handle;
    *state = meet(of);
    const bool ending = of.finalized && of.done < of.sums;
    if (*state == SUCCESS && (ending || of.busy > 0)) *state = IN_PROGRESS;
    if (of.busy > 0) --of.busy;
    return SUCCESS;
}

Result ncclAllReduce(Address from, Address to, size_t count, int type, int how, const Handle* handle, void* on) {
    const Guard guard(lock());
    const Handle of = *handle;
    Stream* stream = stream_of(on, of->gpu);
    const size_t bytes = count * sizeof(float);
    if (type != FLOAT32 || how != SUM || bytes > ROOM) violated("NCCL's sum of %zu values of type %d", count, type);
    if (!stream || stream->gpu != of->gpu) return INVALID_USAGE;
    if (gpu_of(from, bytes) != of->gpu || gpu_of(to, bytes) != of->gpu) return INVALID_ARGUMENT;
    const Result state = meet(*of);
    if (state != SUCCESS) return state == IN_PROGRESS ? INVALID_USAGE : state;
    const uint64_t n = of->sums++;
    const auto* input = reinterpret_cast<const float*>(from);
    auto* output = reinterpret_cast<float*>(to);
    enqueue(stream, {"NCCL's sum", [=] { sum(of, n, output, count); }, [=] { return ready(of, n, input, count); }});
    if (of->blocking) return SUCCESS;
    of->busy = int(chance(3));
    return of->busy ? IN_PROGRESS : SUCCESS;
}

// It is done when the sums in progress are done.
Result ncclCommFinalize(const Handle* handle) {
    const Guard guard(lock());
    const Handle of = *handle;
    of->finalized = true;
    if (!of->blocking) return IN_PROGRESS;
    until([&] { return of->done == of->sums; });
    return SUCCESS;
}

Result ncclCommDestroy(Handle* handle) {
    const Guard guard(lock());
    delete handle;
    return SUCCESS;
}

// Operations that wait on streams end without a sum. The other processes are not notified.
Result ncclCommAbort(Handle* handle) {
    const Guard guard(lock());
    (*handle)->aborted = true;
    unlink((*handle)->path.c_str());
    delete handle;
    return SUCCESS;
}

}  // extern "C"
