// What a compiled kernel and the machine that runs it know of each other.
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

// What threads ask of the machine: to wait for each other, and memory that a block shares.
struct Services {
    void (*wait_for_block)();
    void (*wait_for_warp)(unsigned int mask);
    // Hands `size` bytes to the other lanes of `mask`, and takes those of `from`, a lane of them.
    void (*exchange)(unsigned int mask, void* value, size_t size, unsigned int from);
    unsigned int (*lane)();
    // The same for each thread of a block that asks with the same key.
    void* (*shared)(const void* key, size_t size);
    void* (*dynamic_shared)();
};

struct Kernel {
    const char* name;
    int parameters;
    const size_t* sizes;  // of the parameters
    void (*run)(void** parameters);
    // Where the module that the kernel is in looks for who it is, and for help.
    const Thread** self;
    const Services** services;
};

}  // namespace emulated
