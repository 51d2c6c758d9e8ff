// CUDA's language for g++, as far as the kernels of candle and of this project use it: f32, f64, integers, and bf16 to
// store numbers. `nvcc` includes it before every preprocessed kernel, and has replaced `__global__` and `__shared__`.
#pragma once

#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "kernel.h"

namespace emulated {

// Each module has its own; the machine sets both.
inline const Thread* self;
inline const Services* services;

// Memory that a block shares. T is its type; the type of the lambda identifies the place in the source.
template <class T, class Place> T& shared(Place) {
    static const char key = 0;
    return *static_cast<T*>(services->shared(&key, sizeof(T)));
}

template <class T> T* dynamic_shared() { return static_cast<T*>(services->dynamic_shared()); }

template <auto function> struct Launch;

template <class... P, void (*function)(P...)> struct Launch<function> {
    static constexpr size_t sizes[] = {sizeof(P)..., 0};

    template <size_t... i> static void call(void** parameters, std::index_sequence<i...>) {
        function(*static_cast<const P*>(parameters[i])...);
    }

    static void run(void** parameters) { call(parameters, std::index_sequence_for<P...>{}); }

    static Kernel describe(const char* name) {
        return {name, sizeof...(P), sizes, run, &self, &services};
    }
};

}  // namespace emulated

#define threadIdx (::emulated::self->thread)
#define blockIdx (::emulated::self->block)
#define blockDim (::emulated::self->block_size)
#define gridDim (::emulated::self->grid_size)

// -- types ----------------------------------------------------------------------------------------

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }

// -- threads --------------------------------------------------------------------------------------

inline void __syncthreads() { emulated::services->wait_for_block(); }
inline void __syncwarp(unsigned int mask = ~0u) { emulated::services->wait_for_warp(mask); }

template <class T> T __shfl_sync(unsigned int mask, T value, int lane, int width = 32) {
    const unsigned int me = emulated::services->lane();
    emulated::services->exchange(mask, &value, sizeof value, (me & ~(width - 1)) + (lane & (width - 1)));
    return value;
}

// Takes the value of lane `from`, or the lane's own one if `from` is in another segment of `width` lanes.
template <class T> T emulated_shuffle(unsigned int mask, T value, unsigned int from, int width) {
    const unsigned int me = emulated::services->lane();
    const bool same = from < 32 && from / width == me / width;
    emulated::services->exchange(mask, &value, sizeof value, same ? from : me);
    return value;
}

template <class T> T __shfl_xor_sync(unsigned int mask, T value, int lanes, int width = 32) {
    return emulated_shuffle(mask, value, emulated::services->lane() ^ lanes, width);
}
template <class T> T __shfl_down_sync(unsigned int mask, T value, int lanes, int width = 32) {
    return emulated_shuffle(mask, value, emulated::services->lane() + lanes, width);
}
template <class T> T __shfl_up_sync(unsigned int mask, T value, int lanes, int width = 32) {
    return emulated_shuffle(mask, value, emulated::services->lane() - lanes, width);
}

// The machine runs one thread at a time, so these need no lock.
template <class T, class V> T atomicAdd(T* at, V value) {
    const T old = *at;
    *at = old + value;
    return old;
}
template <class T, class V> T atomicMin(T* at, V value) {
    const T old = *at;
    *at = value < old ? value : old;
    return old;
}
template <class T, class V> T atomicMax(T* at, V value) {
    const T old = *at;
    *at = value > old ? value : old;
    return old;
}
template <class T, class E, class V> T atomicCAS(T* at, E expected, V value) {
    const T old = *at;
    if (old == T(expected)) *at = value;
    return old;
}

// -- numbers --------------------------------------------------------------------------------------

template <class A, class B> std::common_type_t<A, B> min(A a, B b) {
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>) return std::fmin(T(a), T(b));
    return T(b) < T(a) ? T(b) : T(a);
}
template <class A, class B> std::common_type_t<A, B> max(A a, B b) {
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>) return std::fmax(T(a), T(b));
    return T(a) < T(b) ? T(b) : T(a);
}

namespace cuda::std {
using ::std::numeric_limits;
}
using std::isinf;
using std::isnan;
using std::signbit;
inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
inline double normcdf(double x) { return 0.5 * erfc(-x * M_SQRT1_2); }
inline float normcdff(float x) { return 0.5f * erfcf(-x * float(M_SQRT1_2)); }

template <class To, class From> To emulated_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
inline unsigned int __float_as_uint(float v) { return emulated_bits<unsigned int>(v); }
inline int __float_as_int(float v) { return emulated_bits<int>(v); }
inline float __uint_as_float(unsigned int v) { return emulated_bits<float>(v); }
inline float __int_as_float(int v) { return emulated_bits<float>(v); }
inline long long __double_as_longlong(double v) { return emulated_bits<long long>(v); }
inline double __longlong_as_double(long long v) { return emulated_bits<double>(v); }

// -- bf16: the upper half of an f32 ---------------------------------------------------------------

struct __nv_bfloat16 {
    unsigned short bits;
    operator float() const { return __uint_as_float((unsigned int)bits << 16); }
};
inline float __bfloat162float(__nv_bfloat16 v) { return v; }

// Rounds to the nearest, ties to even; NaN becomes the NaN of CUDA.
inline __nv_bfloat16 __float2bfloat16_rn(float v) {
    const unsigned int bits = __float_as_uint(v);
    if (v != v) return {0x7fff};
    return {(unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

// -- other numbers of 16 and 8 bits: only declared, because candle's helpers name them ------------

struct __half {
    unsigned short bits;
    operator float() const;
};
enum __nv_fp8_interpretation_t { __NV_E4M3 };
struct __nv_fp8_e4m3 {
    unsigned char __x;
    explicit __nv_fp8_e4m3(float);
};
unsigned short __half_as_ushort(__half);
__half __ushort_as_half(unsigned short);
__half __hmax_nan(__half, __half);
__half __hmin_nan(__half, __half);
__half __nv_cvt_fp8_to_halfraw(unsigned char, __nv_fp8_interpretation_t);
float __half2float(__half);
