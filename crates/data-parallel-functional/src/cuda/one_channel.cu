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

// V neighbouring outputs, from `first` on: how many there are, and their weights, which stay in registers.
template <int K, int V> struct Outputs {
    int first, count;
    float weight[V][K * K], bias[V];

    __device__ inline Outputs(const float* weights, const float* biases, int first, int outputs)
        : first(first), count(min(V, outputs - first)) {
        for (int v = 0; v < V; ++v) {
            const int o = min(first + v, outputs - 1);
            for (int t = 0; t < K * K; ++t) weight[v][t] = weights[o * K * K + t];
            bias[v] = biases ? biases[o] : 0.f;
        }
    }

    // The same to the bit in both directions, or ReLU's edge would be at two places.
    __device__ inline float product(const float (&taps)[K * K], int v) const {
        float z = bias[v];
        for (int t = 0; t < K * K; ++t) z = fmaf(taps[t], weight[v][t], z);
        return z;
    }
};

// The 256 threads of a block stand in `lanes` rows of `side_by_side` threads: a row takes all outputs of a pixel of y.
// There are at most 256 outputs.
template <int V> struct Rows {
    int side_by_side, lanes, lane, first_output;

    __device__ inline Rows(int outputs) {
        side_by_side = (outputs + V - 1) / V, lanes = 256 / side_by_side;
        lane = threadIdx.x / side_by_side, first_output = threadIdx.x % side_by_side * V;
    }
};

template <int K, int V> __device__ void forward(const float* x, const float* weight, const float* bias, real* y,
                                                const OneChannel& s, int relu, int pixels) {
    const Rows<V> rows(s.outputs);
    if (rows.lane >= rows.lanes) return;
    const Outputs<K, V> outputs(weight, bias, rows.first_output, s.outputs);
    for (unsigned int p = blockIdx.x * rows.lanes + rows.lane; p < pixels; p += gridDim.x * rows.lanes) {
        const Pixel at = pixel_of(p, s.out_height, s.out_width, 1);
        float taps[K * K], total[V] = {};
        for (int py = 0; py < s.pool; ++py)
            for (int px = 0; px < s.pool; ++px) {
                window<K>(taps, x, s, at.b, at.y * s.pool + py, at.x * s.pool + px);
                for (int v = 0; v < V; ++v) {
                    const float z = outputs.product(taps, v);
                    total[v] += relu ? positive(z) : z;
                }
            }
        if (s.pool > 1)
            for (int v = 0; v < V; ++v) total[v] /= s.pool * s.pool;
        store(y + (size_t)p * s.outputs + outputs.first, total, outputs.count);
    }
}

extern "C" __global__ void one_channel3(const float* x, const float* weight, const float* bias, real* y, OneChannel s,
                                        int relu, int pixels) {
    forward<3, 4>(x, weight, bias, y, s, relu, pixels);
}

extern "C" __global__ void one_channel5(const float* x, const float* weight, const float* bias, real* y, OneChannel s,
                                        int relu, int pixels) {
    forward<5, 2>(x, weight, bias, y, s, relu, pixels);
}

// Sums over a block's pixels of y: partial[block] = the gradients of weight (O, K, K) and bias (O).
template <int K, int V> __device__ void backward(const float* x, const float* weight, const float* bias,
                                                 const real* dy, float* partial, const OneChannel& s, int relu,
                                                 int pixels, int pixels_of_a_block) {
    __shared__ float shared[256][V];
    const Rows<V> rows(s.outputs);
    const Outputs<K, V> outputs(weight, bias, rows.first_output, s.outputs);
    const int end = min(pixels, ((int)blockIdx.x + 1) * pixels_of_a_block);
    float sums[V][K * K + 1] = {}, taps[K * K], d[V];
    if (rows.lane < rows.lanes)
        for (int p = blockIdx.x * pixels_of_a_block + rows.lane; p < end; p += rows.lanes) {
            const Pixel at = pixel_of(p, s.out_height, s.out_width, 1);
            load(d, dy + (size_t)p * s.outputs + outputs.first, outputs.count);
            if (s.pool > 1)
                for (int v = 0; v < V; ++v) d[v] /= s.pool * s.pool;
            for (int py = 0; py < s.pool; ++py)
                for (int px = 0; px < s.pool; ++px) {
                    window<K>(taps, x, s, at.b, at.y * s.pool + py, at.x * s.pool + px);
                    for (int v = 0; v < V; ++v) {
                        const float g = relu && outputs.product(taps, v) <= 0.f ? 0.f : d[v];
                        for (int t = 0; t < K * K; ++t) sums[v][t] = fmaf(g, taps[t], sums[v][t]);
                        sums[v][K * K] += g;
                    }
                }
        }
    float* to = partial + (size_t)blockIdx.x * s.outputs * (K * K + 1);
#pragma unroll  // or the sums would not be in registers
    for (int t = 0; t <= K * K; ++t) {
        for (int v = 0; v < V; ++v) shared[threadIdx.x][v] = sums[v][t];
        __syncthreads();
        if (rows.lane == 0)
            for (int v = 0; v < outputs.count; ++v) {
                float total = 0.f;
                for (int k = 0; k < rows.lanes; ++k) total += shared[k * rows.side_by_side + threadIdx.x][v];
                const int o = outputs.first + v;
                to[t < K * K ? o * K * K + t : s.outputs * K * K + o] = total;
            }
        __syncthreads();
    }
}

extern "C" __global__ void one_channel3_backward(const float* x, const float* weight, const float* bias,
                                                 const real* dy, float* partial, OneChannel s, int relu, int pixels,
                                                 int pixels_of_a_block) {
    backward<3, 4>(x, weight, bias, dy, partial, s, relu, pixels, pixels_of_a_block);
}

extern "C" __global__ void one_channel5_backward(const float* x, const float* weight, const float* bias,
                                                 const real* dy, float* partial, OneChannel s, int relu, int pixels,
                                                 int pixels_of_a_block) {
    backward<5, 1>(x, weight, bias, dy, partial, s, relu, pixels, pixels_of_a_block);
}
