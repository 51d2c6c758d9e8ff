// What all kernels use.
#pragma once

// One thread an element; `n` threads have work.
#define ELEMENT                                                   \
    const unsigned int i = blockIdx.x * blockDim.x + threadIdx.x; \
    if (i >= n) return;

// The positive part; NaN stays.
__device__ inline float positive(float v) { return v <= 0.f ? 0.f : v; }

// `to = v`, or `to += v` where a gradient has a part already.
__device__ inline void put(float* to, float v, int add) { *to = add ? *to + v : v; }

// An element of an NHWC tensor: its sample, row, column and channel.
struct Pixel {
    unsigned int b;
    int y, x, c;
};

// Element i of a tensor whose samples have height x width pixels of `channels`.
__device__ inline Pixel pixel_of(unsigned int i, int height, int width, int channels) {
    Pixel p;
    p.c = i % channels, p.x = i / channels % width;
    p.y = i / channels / width % height, p.b = i / channels / width / height;
    return p;
}
