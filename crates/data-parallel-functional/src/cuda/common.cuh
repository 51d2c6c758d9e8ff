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

// Number of values in 16 bytes, the most that a thread reads or writes at once.
constexpr int WIDE = 16 / sizeof(real);

// A thread takes WIDE neighbours of n elements, or what is left of them: `count` from element `at` on.
#define ELEMENTS                                                                       \
    const size_t at = (size_t)(blockIdx.x * blockDim.x + threadIdx.x) * WIDE;          \
    if (at >= n) return;                                                               \
    const int count = n - at < WIDE ? n - at : WIDE;

// V neighbours in memory, at a multiple of their size or of 16 bytes.
template <class T, int V> struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) Neighbours {
    T v[V];
};

template <class T, int V> __device__ inline void load(float (&v)[V], const T* from) {
    const Neighbours<T, V> q = *reinterpret_cast<const Neighbours<T, V>*>(from);
    for (int k = 0; k < V; ++k) v[k] = f32(q.v[k]);
}

template <class T, int V> __device__ inline void store(T* to, const float (&v)[V]) {
    Neighbours<T, V> q;
    for (int k = 0; k < V; ++k) write(q.v + k, v[k]);
    *reinterpret_cast<Neighbours<T, V>*>(to) = q;
}

// Whether all V neighbours are there, and can be read or written at once.
template <int V, class T> __device__ inline bool together(const T* at, int count) {
    return count == V && reinterpret_cast<size_t>(at) % alignof(Neighbours<T, V>) == 0;
}

// The first `count` of V neighbours, wherever they lie; zeros for the others.
template <class T, int V> __device__ inline void load(float (&v)[V], const T* from, int count) {
    if (together<V>(from, count)) return load(v, from);
    for (int k = 0; k < V; ++k) v[k] = k < count ? f32(from[k]) : 0.f;
}

template <class T, int V> __device__ inline void store(T* to, const float (&v)[V], int count) {
    if (together<V>(to, count)) return store(to, v);
    for (int k = 0; k < V; ++k)
        if (k < count) write(to + k, v[k]);
}

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
