// Batch normalization of x, `rows` rows of `c` channels, with what is added to it and its ReLU. Each
// direction is three kernels: partial sums of blocks of rows, their combination, one pass over all.
// Blocks of the partial sums are bx x by threads, bx of them side by side on V channels each.

#include "common.cuh"

// Sums two rows of values over the threads of a block that have the same channels: 256 threads.
template <int V> __device__ inline void reduce(float (&a)[V], float (&b)[V]) {
    __shared__ float shared[2][256][V];
    const int at = threadIdx.y * blockDim.x + threadIdx.x;
    for (int half = blockDim.y / 2; half > 0; half /= 2) {
        if (threadIdx.y >= half && threadIdx.y < 2 * half)
            for (int k = 0; k < V; ++k) shared[0][at][k] = a[k], shared[1][at][k] = b[k];
        __syncthreads();
        if (threadIdx.y < half)
            for (int k = 0; k < V; ++k) {
                a[k] += shared[0][at + half * blockDim.x][k];
                b[k] += shared[1][at + half * blockDim.x][k];
            }
        __syncthreads();
    }
}

// partial[block][0] = sum of x - pivot, [1] = of its square; the pivot, a channel's first value, keeps
// what is small beside a large mean.
template <int V> __device__ void moments(const real* x, float* partial, int rows, int c, int rows_of_a_block) {
    const int channel = (blockIdx.x * blockDim.x + threadIdx.x) * V;
    const int end = min(rows, ((int)blockIdx.y + 1) * rows_of_a_block);
    float s[V] = {}, q[V] = {};
    if (channel < c) {
        float pivot[V], v[V];
        load(pivot, x + channel);
        for (int row = blockIdx.y * rows_of_a_block + threadIdx.y; row < end; row += blockDim.y) {
            load(v, x + (size_t)row * c + channel);
            for (int k = 0; k < V; ++k) {
                const float d = v[k] - pivot[k];
                s[k] += d;
                q[k] = fmaf(d, d, q[k]);
            }
        }
    }
    reduce(s, q);
    if (threadIdx.y == 0 && channel < c) {
        store(partial + (size_t)blockIdx.y * 2 * c + channel, s);
        store(partial + ((size_t)blockIdx.y * 2 + 1) * c + channel, q);
    }
}

// Sums partial[k][0] and [k][1] of a channel over `count` blocks: by 32 threads, then in pairs. The first alone has the sums.
__device__ inline void total(const float* partial, int count, int c, int channel, double* a, double* b) {
    __shared__ double shared[2][32][33];
    double s = 0., q = 0.;
    if (channel < c)
#pragma unroll 8  // so that loads do not wait for each other
        for (int k = threadIdx.y; k < count; k += 32) {
            s += partial[(size_t)k * 2 * c + channel];
            q += partial[((size_t)k * 2 + 1) * c + channel];
        }
    for (int half = 16; half > 0; half /= 2) {
        shared[0][threadIdx.y][threadIdx.x] = s;
        shared[1][threadIdx.y][threadIdx.x] = q;
        __syncthreads();
        if (threadIdx.y < half) {
            s += shared[0][threadIdx.y + half][threadIdx.x];
            q += shared[1][threadIdx.y + half][threadIdx.x];
        }
        __syncthreads();
    }
    *a = s;
    *b = q;
}

// Mean and 1 / sqrt(variance + eps) of each channel, and the running statistics moved, as if x were shifted
// by `by` where that is given. Blocks of 32 x 32.
extern "C" __global__ void __launch_bounds__(1024) norm_statistics(const real* x, const float* partial, int count, int rows, int c,
                                           float eps, float momentum, const float* by, float* mean, float* inv_std,
                                           float* running_mean, float* running_var) {
    const int channel = blockIdx.x * 32 + threadIdx.x;
    double s, q;
    total(partial, count, c, channel, &s, &q);
    if (threadIdx.y != 0 || channel >= c) return;
    const double shift = s / rows;
    const double var = fmax(q / rows - shift * shift, 0.);
    const double m = f32(x[channel]) + shift;
    mean[channel] = (float)m;
    inv_std[channel] = (float)(1. / sqrt(var + eps));
    const double unbiased = var * rows / (rows - 1);
    running_mean[channel] = (1.f - momentum) * running_mean[channel] + momentum * ((float)m + (by ? by[channel] : 0.f));
    running_var[channel] = (1.f - momentum) * running_var[channel] + momentum * (float)unbiased;
}

// The same from the running statistics.
extern "C" __global__ void norm_running(unsigned int n, const float* running_mean, const float* running_var,
                                        float eps, float* mean, float* inv_std) {
    ELEMENT
    mean[i] = running_mean[i];
    inv_std[i] = 1.f / sqrtf(running_var[i] + eps);
}

// What each channel is normalized with.
struct Channels {
    const float *mean, *inv_std, *weight, *bias;
};

// The same of V channels, in registers.
template <int V> struct Of {
    float mean[V], scale[V], bias[V];

    __device__ inline Of(const Channels& all, int channel) {
        float inv_std[V];
        load(mean, all.mean + channel);
        load(inv_std, all.inv_std + channel);
        load(scale, all.weight + channel);
        load(bias, all.bias + channel);
        for (int k = 0; k < V; ++k) scale[k] *= inv_std[k];
    }

    // The same to the bit in both directions, or ReLU's edge would be at two places.
    __device__ inline float normalized(float x, int k) const { return fmaf(x - mean[k], scale[k], bias[k]); }

    // dy, or zero where ReLU had cut the value off.
    __device__ inline float cut(float x, float dy, int k, int relu) const {
        return relu && normalized(x, k) <= 0.f ? 0.f : dy;
    }
};

// The first channel of thread i's V values. V divides c, so 32 bits are enough: a remainder of 64 bits takes many more
// instructions.
template <int V>
__device__ inline int first_channel(unsigned int i, int c) {
    return i % (unsigned int)(c / V) * V;
}

template <int V>
__device__ void forward(unsigned int n, const real* x, const real* other, real* y, Channels channels, int c,
                        int relu) {
    ELEMENT
    const size_t at = (size_t)i * V;
    const Of<V> of(channels, first_channel<V>(i, c));
    float v[V], o[V] = {};
    load(v, x + at);
    if (other) load(o, other + at);
    for (int k = 0; k < V; ++k) {
        const float z = of.normalized(v[k], k) + o[k];
        v[k] = relu ? positive(z) : z;
    }
    store(y + at, v);
}

// partial[block][0] = sum of dy (x - mean), [1] = of dy. Where `y` is given, ReLU's result behind a sum,
// dy is first set to zero where that is.
template <int V>
__device__ void sums(const real* x, const real* y, real* dy, Channels channels, float* partial, int rows, int c,
                     int rows_of_a_block, int relu) {
    const int channel = (blockIdx.x * blockDim.x + threadIdx.x) * V;
    const int end = min(rows, ((int)blockIdx.y + 1) * rows_of_a_block);
    float dw[V] = {}, db[V] = {};
    if (channel < c) {
        const Of<V> of(channels, channel);
        for (int row = blockIdx.y * rows_of_a_block + threadIdx.y; row < end; row += blockDim.y) {
            const size_t at = (size_t)row * c + channel;
            float v[V], d[V];
            load(v, x + at);
            load(d, dy + at);
            if (y) {
                float result[V];
                load(result, y + at);
                for (int k = 0; k < V; ++k) d[k] = result[k] <= 0.f ? 0.f : d[k];
                store(dy + at, d);
            }
            for (int k = 0; k < V; ++k) {
                const float g = of.cut(v[k], d[k], k, relu);
                dw[k] = fmaf(g, v[k] - of.mean[k], dw[k]);
                db[k] += g;
            }
        }
    }
    reduce(dw, db);
    if (threadIdx.y == 0 && channel < c) {
        store(partial + (size_t)blockIdx.y * 2 * c + channel, dw);
        store(partial + ((size_t)blockIdx.y * 2 + 1) * c + channel, db);
    }
}

// The gradients of weight and bias, where they are wanted, and what a shift and a stretch of x would have
// changed through the batch's statistics: `share` is 1 / rows, or 0 where they were the running ones. And `zeros`, the
// gradient of a shift of x.
// Blocks of 32 x 32.
extern "C" __global__ void __launch_bounds__(1024) norm_combine(const float* partial, int count, int c, const float* inv_std, float share,
                                        float* shift, float* stretch, float* dw, int add_dw, float* db, int add_db,
                                        float* zeros) {
    const int channel = blockIdx.x * 32 + threadIdx.x;
    double s, q;
    total(partial, count, c, channel, &s, &q);
    if (threadIdx.y != 0 || channel >= c) return;
    const float of_weight = (float)s * inv_std[channel], of_bias = (float)q;
    shift[channel] = of_bias * share;
    stretch[channel] = of_weight * share * inv_std[channel];
    if (dw) put(dw + channel, of_weight, add_dw);
    if (db) put(db + channel, of_bias, add_db);
    if (zeros) zeros[channel] = 0.f;
}

template <int V>
__device__ void backward(unsigned int n, const real* x, const real* dy, real* dx, Channels channels,
                         const float* shift, const float* stretch, int c, int relu, int add) {
    ELEMENT
    const size_t at = (size_t)i * V;
    const int channel = first_channel<V>(i, c);
    const Of<V> of(channels, channel);
    float v[V], d[V], by_shift[V], by_stretch[V], old[V] = {};
    load(v, x + at);
    load(d, dy + at);
    load(by_shift, shift + channel);
    load(by_stretch, stretch + channel);
    if (add) load(old, dx + at);
    for (int k = 0; k < V; ++k) {
        const float g = of.cut(v[k], d[k], k, relu);
        d[k] = old[k] + of.scale[k] * (g - by_shift[k] - (v[k] - of.mean[k]) * by_stretch[k]);
    }
    store(dx + at, d);
}

// The kernels for V channels of a thread. With at most 64 registers a thread, four blocks fit on a multiprocessor.
#define KERNELS(V)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 4) norm_moments##V(const real* x, float* partial, int rows,   \
                                                                         int c, int rows_of_a_block) {              \
        moments<V>(x, partial, rows, c, rows_of_a_block);                                                           \
    }                                                                                                               \
    extern "C" __global__ void __launch_bounds__(256, 4) norm_forward##V(                                           \
        unsigned int n, const real* x, const real* other, real* y, Channels of, int c, int relu) {                  \
        forward<V>(n, x, other, y, of, c, relu);                                                                    \
    }                                                                                                               \
    extern "C" __global__ void __launch_bounds__(256, 4) norm_sums##V(                                              \
        const real* x, const real* y, real* dy, Channels of, float* partial, int rows, int c, int rows_of_a_block,  \
        int relu) {                                                                                                 \
        sums<V>(x, y, dy, of, partial, rows, c, rows_of_a_block, relu);                                             \
    }                                                                                                               \
    extern "C" __global__ void __launch_bounds__(256, 4) norm_backward##V(                                          \
        unsigned int n, const real* x, const real* dy, real* dx, Channels of, const float* shift,                   \
        const float* stretch, int c, int relu, int add) {                                                           \
        backward<V>(n, x, dy, dx, of, shift, stretch, c, relu, add);                                                \
    }

KERNELS(1)
KERNELS(4)
KERNELS(8)
