// The interface between a compiled kernel and the machine that runs it.
#pragma once

#include <cstddef>

namespace emulated {

struct Index {
    unsigned int x, y, z;
};

// The thread that a kernel's code runs as.
struct Thread {
    Index thread, block, block_size, grid_size;
};

// What the machine does for threads: waits for each other, and memory that a block shares.
struct Services {
    void (*wait_for_block)();
    void (*wait_for_warp)(unsigned int mask);
    // Gives `size` bytes to the other lanes of `mask`, and takes those of the lane `from`, one of them.
    void (*exchange)(unsigned int mask, void* value, size_t size, unsigned int from);
    unsigned int (*lane)();
    // The same memory for all threads of a block that pass the same key.
    void* (*shared)(const void* key, size_t size);
    void* (*dynamic_shared)();
};

struct Kernel {
    const char* name;
    int parameters;
    const size_t* sizes;  // of the parameters
    void (*run)(void** parameters);
    // The variables of the kernel's module for the running thread and for the services.
    const Thread** self;
    const Services** services;
};

}  // namespace emulated
