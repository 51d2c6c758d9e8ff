// Convolution of images with one channel, with bias, ReLU and the mean over POOL x POOL windows: the first
// layer of a network. Its sums are too short for cuDNN's kernels. x is (B, H, W), the weight (O, K, K), y
// (B, OH, OW, O) after pooling. x and the weight are float for every type of y. The gradient of x, which
// usual training does not need, is not computed here.

#include "common.cuh"

struct OneChannel {
    int height, width, out_height, out_width, outputs, stride, padding, pool;
};

// What the output pixel at (row, column), before pooling, sees of sample b.
template <int K> __device__ inline void window(float (&taps)[K * K], const float* x, const OneChannel& s,
                                               unsigned int b, int row, int column) {
    const float* image = x + (size_t)b * s.height * s.width;
    for (int ky = 0; ky < K; ++ky)
        for (int kx = 0; kx < K; ++kx) {
            const int py = row * s.stride + ky - s.padding, px = column * s.stride + kx - s.padding;
            const bool inside = py >= 0 && py < s.height && px >= 0 && px < s.width;
            taps[ky * K + kx] = inside ? image[py * s.width + px] : 0.f;
        }
}

// The same to the bit in both directions, or ReLU's edge would be at two places.
template <int K> __device__ inline float product(const float (&taps)[K * K], const float (&weight)[K * K],
                                                 float bias) {
    float z = bias;
    for (int t = 0; t < K * K; ++t) z = fmaf(taps[t], weight[t], z);
    return z;
}

// The weights of output o, from memory through which they are read side by side.
template <int K> __device__ inline void weights(float (&to)[K * K], const float* weight, int o, int outputs) {
    __shared__ float shared[K * K * 256];
    const int threads = blockDim.x, n = K * K * outputs;
    for (int i = threadIdx.x; i < n; i += threads) shared[i % (K * K) * outputs + i / (K * K)] = weight[i];
    __syncthreads();
    for (int t = 0; t < K * K; ++t) to[t] = shared[t * outputs + o];
}

// A thread for an element of y.
template <int K> __device__ void forward(unsigned int n, const float* x, const float* weight, const float* bias,
                                         real* y, const OneChannel& s, int relu) {
    const unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    const Pixel at = pixel_of(i, s.out_height, s.out_width, s.outputs);
    const int o = at.c;
    float taps[K * K], mine[K * K], total = 0.f;
    weights<K>(mine, weight, o, s.outputs);
    if (i >= n) return;
    const float shift = bias ? bias[o] : 0.f;
    for (int py = 0; py < s.pool; ++py)
        for (int px = 0; px < s.pool; ++px) {
            window<K>(taps, x, s, at.b, at.y * s.pool + py, at.x * s.pool + px);
            const float z = product<K>(taps, mine, shift);
            total += relu ? positive(z) : z;
        }
    write(y + i, total / (s.pool * s.pool));
}

extern "C" __global__ void one_channel3(unsigned int n, const float* x, const float* weight, const float* bias,
                                   real* y, OneChannel s, int relu) {
    forward<3>(n, x, weight, bias, y, s, relu);
}

extern "C" __global__ void one_channel5(unsigned int n, const float* x, const float* weight, const float* bias,
                                   real* y, OneChannel s, int relu) {
    forward<5>(n, x, weight, bias, y, s, relu);
}

// Sums over a block's pixels of y: partial[block] = the gradients of weight (O, K, K) and bias (O). A block
// has 256 threads, 256 / O of them side by side on the pixels, and O is at most 256.
template <int K> __device__ void backward(const float* x, const float* weight, const float* bias,
                                          const real* dy, float* partial, const OneChannel& s, int relu,
                                          int pixels, int pixels_of_a_block) {
    __shared__ float shared[256];
    const int lanes = 256 / s.outputs, o = threadIdx.x % s.outputs, lane = threadIdx.x / s.outputs;
    const int end = min(pixels, ((int)blockIdx.x + 1) * pixels_of_a_block);
    float sums[K * K + 1] = {}, taps[K * K], mine[K * K];
    for (int t = 0; t < K * K; ++t) mine[t] = weight[o * K * K + t];
    const float shift = bias ? bias[o] : 0.f;
    if (lane < lanes)
        for (int p = blockIdx.x * pixels_of_a_block + lane; p < end; p += lanes) {
            const Pixel at = pixel_of(p, s.out_height, s.out_width, 1);
            const float d = f32(dy[(size_t)p * s.outputs + o]) / (s.pool * s.pool);
            for (int py = 0; py < s.pool; ++py)
                for (int px = 0; px < s.pool; ++px) {
                    window<K>(taps, x, s, at.b, at.y * s.pool + py, at.x * s.pool + px);
                    const float z = product<K>(taps, mine, shift);
                    const float g = relu && z <= 0.f ? 0.f : d;
                    for (int t = 0; t < K * K; ++t) sums[t] = fmaf(g, taps[t], sums[t]);
                    sums[K * K] += g;
                }
        }
    float* to = partial + (size_t)blockIdx.x * s.outputs * (K * K + 1);
    for (int t = 0; t <= K * K; ++t) {
        shared[threadIdx.x] = sums[t];
        __syncthreads();
        if (lane == 0) {
            float total = 0.f;
            for (int k = 0; k < lanes; ++k) total += shared[k * s.outputs + o];
            to[t < K * K ? o * K * K + t : s.outputs * K * K + o] = total;
        }
        __syncthreads();
    }
}

extern "C" __global__ void one_channel3_backward(const float* x, const float* weight, const float* bias,
                                            const real* dy, float* partial, OneChannel s, int relu, int pixels,
                                            int pixels_of_a_block) {
    backward<3>(x, weight, bias, dy, partial, s, relu, pixels, pixels_of_a_block);
}

extern "C" __global__ void one_channel5_backward(const float* x, const float* weight, const float* bias,
                                            const real* dy, float* partial, OneChannel s, int relu, int pixels,
                                            int pixels_of_a_block) {
    backward<5>(x, weight, bias, dy, partial, s, relu, pixels, pixels_of_a_block);
}
