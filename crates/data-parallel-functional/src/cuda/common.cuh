// What all kernels use.
#pragma once

#include <cuda_bf16.h>

// What a tape holds between its operations: float or __nv_bfloat16, by the module that is compiled. Kernels compute
// in float, and so they take what is no tape's: parameters, statistics, partial sums.
using real = REAL;

__device__ inline float f32(float v) { return v; }
__device__ inline float f32(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ inline void write(float* to, float v) { *to = v; }
__device__ inline void write(__nv_bfloat16* to, float v) { *to = __float2bfloat16_rn(v); }

// One thread an element; `n` threads have work.
#define ELEMENT                                                   \
    const unsigned int i = blockIdx.x * blockDim.x + threadIdx.x; \
    if (i >= n) return;

// The positive part; NaN stays.
__device__ inline float positive(float v) { return v <= 0.f ? 0.f : v; }

// `to = v`, or `to += v` where a gradient has a part already.
template <class T> __device__ inline void put(T* to, float v, int add) { write(to, add ? f32(*to) + v : v); }

// An element of an NHWC tensor: its sample, row, column and channel.
struct Pixel {
    unsigned int b;
    int y, x, c;
};

// Where element i of a tensor is; a sample has height x width pixels of `channels`.
__device__ inline Pixel pixel_of(unsigned int i, int height, int width, int channels) {
    Pixel p;
    p.c = i % channels, p.x = i / channels % width;
    p.y = i / channels / width % height, p.b = i / channels / width / height;
    return p;
}
