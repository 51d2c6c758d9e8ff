// libcuda: the functions of the driver that cudarc calls for candle and this project. cudarc cannot load other ones,
// and names them. Functions that need the thread's context refuse a thread without one.

#include "driver.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace emulated;

#define RESULTS(is)                                                                     \
    is(SUCCESS, 0, "no error")                                                          \
    is(ERROR_INVALID_VALUE, 1, "invalid argument")                                      \
    is(ERROR_OUT_OF_MEMORY, 2, "out of memory")                                         \
    is(ERROR_NOT_INITIALIZED, 3, "initialization error")                                \
    is(ERROR_NO_DEVICE, 100, "no CUDA-capable device is detected")                      \
    is(ERROR_INVALID_DEVICE, 101, "invalid device ordinal")                             \
    is(ERROR_INVALID_CONTEXT, 201, "invalid device context")                            \
    is(ERROR_NO_BINARY_FOR_GPU, 209, "no kernel image is available for execution on the device") \
    is(ERROR_INVALID_PTX, 218, "a PTX JIT compilation failed")                          \
    is(ERROR_INVALID_HANDLE, 400, "invalid resource handle")                            \
    is(ERROR_NOT_FOUND, 500, "named symbol not found")                                  \
    is(ERROR_NOT_READY, 600, "device not ready")                                        \
    is(ERROR_NOT_SUPPORTED, 801, "operation not supported")

enum CUresult {
#define is(name, code, text) CUDA_##name = code,
    RESULTS(is)
#undef is
};

namespace {

bool initialized = false;
thread_local int current = -1;  // the GPU of the thread's context

struct Function {
    const Kernel* kernel;
    int gpu;
    std::string what;
};

struct Module {
    void* library;
    int gpu;
};

bool accessible[16][16];  // whether the pool of the first GPU is to the second one

bool exists(int gpu) { return gpu >= 0 && gpu < settings().gpus; }

// A context is the primary one of a GPU; its handle is the number of the GPU, from 1 on.
int gpu_of_context(void* context) { return int(reinterpret_cast<uintptr_t>(context)) - 1; }
void* context_of(int gpu) { return reinterpret_cast<void*>(uintptr_t(gpu) + 1); }

}  // namespace

namespace emulated {

int current_gpu() { return current; }

}  // namespace emulated

extern "C" {

CUresult cuGetErrorName(int result, const char** text) {
    switch (result) {
#define is(name, code, words) \
    case code: *text = "CUDA_" #name; return CUDA_SUCCESS;
        RESULTS(is)
#undef is
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(int result, const char** text) {
    switch (result) {
#define is(name, code, words) \
    case code: *text = words; return CUDA_SUCCESS;
        RESULTS(is)
#undef is
    }
    return CUDA_ERROR_INVALID_VALUE;
}

// -- GPUs and contexts ----------------------------------------------------------------------------

CUresult cuInit(unsigned int) {
    initialized = settings().gpus > 0;
    return initialized ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult cuDeviceGetCount(int* count) {
    *count = settings().gpus;
    return initialized ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuDeviceGet(int* gpu, int ordinal) {
    if (!initialized) return CUDA_ERROR_NOT_INITIALIZED;
    *gpu = ordinal;
    return exists(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char* name, int length, int gpu) {
    snprintf(name, length, "emulated GPU of kind %d", settings().alike ? 0 : gpu);
    return exists(gpu) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetUuid_v2(char* uuid, int gpu) {
    memset(uuid, 0, 16);
    uuid[0] = char(gpu + 1);
    return exists(gpu) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceCanAccessPeer(int* can, int gpu, int other) {
    *can = settings().peers && gpu != other;
    return exists(gpu) && exists(other) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, int gpu) {
    *bytes = settings().memory;
    return exists(gpu) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetAttribute(int* value, int attribute, int gpu) {
    if (!exists(gpu)) return CUDA_ERROR_INVALID_DEVICE;
    switch (attribute) {
        case 1: *value = 1024; break;  // threads of a block
        case 10: *value = 32; break;   // of a warp
        case 16: *value = 132; break;  // multiprocessors
        case 75: *value = settings().capability / 10; break;
        case 76: *value = settings().capability % 10; break;
        case 115: *value = settings().pools; break;  // stream-ordered memory
        default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(void** context, int gpu) {
    *context = context_of(gpu);
    return exists(gpu) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDevicePrimaryCtxRelease_v2(int gpu) { return exists(gpu) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE; }

CUresult cuCtxGetCurrent(void** context) {
    *context = current < 0 ? nullptr : context_of(current);
    return initialized ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuCtxSetCurrent(void* context) {
    const int gpu = gpu_of_context(context);
    if (context && !exists(gpu)) return CUDA_ERROR_INVALID_CONTEXT;
    current = gpu;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() {
    const Guard guard(lock());
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
    until_all_done(current);
    return CUDA_SUCCESS;
}

// -- memory ---------------------------------------------------------------------------------------

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
    const Guard guard(lock());
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
    *free = free_memory(current), *total = settings().memory;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(void** pool, int gpu) {
    if (!settings().pools) return CUDA_ERROR_NOT_SUPPORTED;
    *pool = context_of(gpu);
    return exists(gpu) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuMemPoolSetAttribute(void*, int attribute, void*) {
    return attribute >= 1 && attribute <= 8 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

struct Access {
    int kind, gpu, flags;
};

CUresult cuMemPoolSetAccess(void* pool, const Access* access, size_t count) {
    const int owner = gpu_of_context(pool);
    for (size_t i = 0; i < count; ++i) {
        if (access[i].kind != 1 || !exists(access[i].gpu) || access[i].gpu == owner) return CUDA_ERROR_INVALID_VALUE;
        accessible[owner][access[i].gpu] = access[i].flags == 3;
    }
    return CUDA_SUCCESS;
}

// The emulation keeps nothing in pools.
CUresult cuMemPoolTrimTo(void*, size_t) { return CUDA_SUCCESS; }

CUresult cuMemAlloc_v2(Address* address, size_t bytes) {
    const Guard guard(lock());
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    *address = allocate(current, bytes);
    return *address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAllocAsync(Address* address, size_t bytes, void* handle) {
    const Guard guard(lock());
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (!settings().pools) return CUDA_ERROR_NOT_SUPPORTED;
    Stream* stream = stream_of(handle, current);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    *address = allocate(stream->gpu, bytes, stream);
    return *address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemFree_v2(Address address) {
    const Guard guard(lock());
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
    return release(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemFreeAsync(Address address, void* handle) {
    const Guard guard(lock());
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
    Stream* stream = stream_of(handle, current);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    return release(address, stream) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Reads the host's memory before it returns, as CUDA does unless the memory is pinned.
CUresult cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, void* handle) {
    const Guard guard(lock());
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
    Stream* stream = stream_of(handle, current);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (gpu_of(to, bytes) < 0) return CUDA_ERROR_INVALID_VALUE;
    const auto* first = static_cast<const char*>(from);
    const auto copy = [to, data = std::vector<char>(first, first + bytes)] {
        memcpy(reinterpret_cast<void*>(to), data.data(), data.size());
    };
    enqueue(stream, {"a copy from the host", copy, nullptr, gpu_of(to, bytes)});
    return CUDA_SUCCESS;
}

// Returns when the copy is done, as in CUDA unless the memory is pinned.
CUresult cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, void* handle) {
    const Guard guard(lock());
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
    Stream* stream = stream_of(handle, current);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (gpu_of(from, bytes) < 0) return CUDA_ERROR_INVALID_VALUE;
    const auto copy = [=] { memcpy(to, reinterpret_cast<const void*>(from), bytes); };
    enqueue(stream, {"a copy to the host", copy, nullptr, gpu_of(from, bytes)});
    until_done(stream);
    return CUDA_SUCCESS;
}

static CUresult copy_on_gpus(Address to, int on, Address from, int other, size_t bytes, void* handle) {
    Stream* stream = stream_of(handle, current);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (gpu_of(to, bytes) != on || gpu_of(from, bytes) != other) return CUDA_ERROR_INVALID_VALUE;
    if (on != stream->gpu && other != stream->gpu) return CUDA_ERROR_INVALID_VALUE;
    const size_t arrives = settings().fault == "copy" ? bytes / 2 : bytes;
    const auto copy = [=] { memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), arrives); };
    enqueue(stream, {"a copy", copy, nullptr, on == stream->gpu ? other : on});
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void* handle) {
    const Guard guard(lock());
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
    const int on = gpu_of(to, bytes), other = gpu_of(from, bytes);
    if (on < 0 || other < 0) return CUDA_ERROR_INVALID_VALUE;
    if (on != other && !accessible[other][on]) return CUDA_ERROR_INVALID_VALUE;
    return copy_on_gpus(to, on, from, other, bytes, handle);
}

CUresult cuMemcpyPeerAsync(Address to, void* on, Address from, void* other, size_t bytes, void* handle) {
    const Guard guard(lock());
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
    const int gpu = gpu_of_context(on);
    for (int i = 0; i < settings().gpus; ++i)
        if (settings().loses && accessible[gpu][i]) bytes = 0;
    return copy_on_gpus(to, gpu, from, gpu_of_context(other), bytes, handle);
}

CUresult cuMemsetD8Async(Address to, unsigned char value, size_t bytes, void* handle) {
    const Guard guard(lock());
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
    Stream* stream = stream_of(handle, current);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (gpu_of(to, bytes) < 0) return CUDA_ERROR_INVALID_VALUE;
    const auto set = [=] { memset(reinterpret_cast<void*>(to), value, bytes); };
    enqueue(stream, {"a memset", set, nullptr, gpu_of(to, bytes)});
    return CUDA_SUCCESS;
}

// -- streams and events ---------------------------------------------------------------------------

CUresult cuStreamCreate(void** stream, unsigned int) {
    const Guard guard(lock());
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
    *stream = new_stream(current);
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(void* handle) {
    const Guard guard(lock());
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
    Stream* stream = stream_of(handle, current);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    destroy(stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(void* handle) {
    const Guard guard(lock());
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
    Stream* stream = stream_of(handle, current);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    until_done(stream);
    return CUDA_SUCCESS;
}

// No stream captures: candle can ask.
CUresult cuStreamIsCapturing(void*, int* status) {
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
    *status = 0;
    return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(void* handle, Event* event, unsigned int) {
    const Guard guard(lock());
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
    Stream* stream = stream_of(handle, current);
    if (!stream || !event) return CUDA_ERROR_INVALID_HANDLE;
    if (event->last && settings().fault != "order") wait(stream, event->last);
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(Event** event, unsigned int) {
    const Guard guard(lock());
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
    *event = new Event{current, nullptr};
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(Event* event) {
    const Guard guard(lock());
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
    delete event;
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(Event* event, void* handle) {
    const Guard guard(lock());
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
    Stream* stream = stream_of(handle, current);
    if (!stream || stream->gpu != event->gpu) return CUDA_ERROR_INVALID_HANDLE;
    event->last = record(stream);
    return CUDA_SUCCESS;
}

CUresult cuEventQuery(Event* event) {
    const Guard guard(lock());
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
    go_on();
    if (event->last && !event->last->reached) return CUDA_ERROR_NOT_READY;
    if (event->last) seen(*event->last);
    return CUDA_SUCCESS;
}

CUresult cuEventSynchronize(Event* event) {
    const Guard guard(lock());
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
    const auto last = event->last;  // another thread may record it again meanwhile
    if (last) until_reached(last);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime_v2(float* milliseconds, Event* start, Event* end) {
    const Guard guard(lock());
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (!start->last || !end->last) return CUDA_ERROR_INVALID_HANDLE;
    if (!start->last->reached || !end->last->reached) return CUDA_ERROR_NOT_READY;
    *milliseconds = float(1e3 * (end->last->at - start->last->at));
    return CUDA_SUCCESS;
}

// The function runs on a thread of its own, so it may wait for other threads. The stream waits for it.
CUresult cuLaunchHostFunc(void* handle, void (*function)(void*), void* argument) {
    const Guard guard(lock());
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
    Stream* stream = stream_of(handle, current);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    const auto begun = std::make_shared<bool>(false), done = std::make_shared<bool>(false);
    const auto ready = [=] {
        if (!std::exchange(*begun, true))
            std::thread([=] {
                function(argument);
                const Guard guard(lock());
                *done = true;
            }).detach();
        return *done;
    };
    enqueue(stream, {"a host function", [] {}, ready});
    return CUDA_SUCCESS;
}

// -- kernels --------------------------------------------------------------------------------------

// `image` is the output of the emulation's nvcc: a line that marks it, and the path of a shared object.
CUresult cuModuleLoadData(Module** module, const char* image) {
    const Guard guard(lock());
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
    const std::string head = "// emulated\n";
    const std::string text(image);
    if (text.compare(0, head.size(), head)) return CUDA_ERROR_INVALID_PTX;
    if (settings().capability >= 100) return CUDA_ERROR_NO_BINARY_FOR_GPU;  // code for 9.0 alone
    const std::string path = text.substr(head.size(), text.find('\n', head.size()) - head.size());
    void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (!library) violated("%s", dlerror());
    *module = new Module{library, current};
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(Module*) { return current < 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS; }

CUresult cuModuleGetFunction(Function** function, Module* module, const char* name) {
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
    const std::string symbol = std::string("emulated_kernel_") + name;
    const void* kernel = dlsym(module->library, symbol.c_str());
    if (!kernel) return CUDA_ERROR_NOT_FOUND;
    *function = new Function{static_cast<const Kernel*>(kernel), module->gpu, std::string("kernel ") + name};
    return CUDA_SUCCESS;
}

static bool fits(const Grid& grid) {
    const auto [bx, by, bz] = grid.blocks;
    const auto [x, y, z] = grid.threads;
    if (!bx || !by || !bz || !x || !y || !z) return false;
    if (bx > 0x7fffffff || by > 65535 || bz > 65535) return false;
    return x <= 1024 && y <= 1024 && z <= 64 && size_t(x) * y * z <= 1024 && grid.dynamic_shared <= 48 << 10;
}

CUresult cuLaunchKernel(Function* function, unsigned int bx, unsigned int by, unsigned int bz, unsigned int x,
                        unsigned int y, unsigned int z, unsigned int dynamic_shared, void* handle, void** parameters,
                        void**) {
    const Guard guard(lock());
    if (current < 0) return CUDA_ERROR_INVALID_CONTEXT;
    Stream* stream = stream_of(handle, current);
    // the stream, the kernel and the thread's context must belong to one GPU
    if (!stream || stream->gpu != current || function->gpu != current) return CUDA_ERROR_INVALID_HANDLE;
    const Grid grid = {{bx, by, bz}, {x, y, z}, dynamic_shared};
    if (!fits(grid)) return CUDA_ERROR_INVALID_VALUE;
    const Kernel* kernel = function->kernel;
    std::vector<std::vector<char>> copies;
    for (int i = 0; i < kernel->parameters; ++i) {
        const auto* first = static_cast<const char*>(parameters[i]);
        copies.emplace_back(first, first + kernel->sizes[i]);
    }
    const bool fails = function->what == "kernel " + settings().fault;
    const auto run = [=]() mutable {
        if (fails) return;
        std::vector<void*> pointers;
        for (auto& copy : copies) pointers.push_back(copy.data());
        launch(*kernel, grid, pointers.data());
    };
    enqueue(stream, {function->what.c_str(), run});
    return CUDA_SUCCESS;
}

}  // extern "C"
