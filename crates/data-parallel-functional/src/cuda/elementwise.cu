// Elementwise operations, transposition, pooling, sums of columns, the loss and the optimizer's step.
// A thread takes one element, or WIDE of them (ELEMENTS), unless it says otherwise.

#include "common.cuh"

extern "C" __global__ void fill(unsigned int n, real* to, float value) {
    ELEMENTS
    float v[WIDE];
    for (int k = 0; k < WIDE; ++k) v[k] = value;
    store(to + at, v, count);
}

// Written or added: within a type, or from one to the other.
template <class From, class To> __device__ void put(unsigned int n, const From* from, To* to, int add) {
    ELEMENTS
    float v[WIDE], old[WIDE] = {};
    load(v, from + at, count);
    if (add) load(old, to + at, count);
    for (int k = 0; k < WIDE; ++k) v[k] = add ? old[k] + v[k] : v[k];
    store(to + at, v, count);
}

extern "C" __global__ void copy(unsigned int n, const real* from, real* to, int add) { put(n, from, to, add); }

extern "C" __global__ void narrow(unsigned int n, const float* from, real* to, int add) { put(n, from, to, add); }

extern "C" __global__ void widen(unsigned int n, const real* from, float* to, int add) { put(n, from, to, add); }

// Copies; `table` has three numbers for each: the addresses of what is copied and of where to, and how many elements
// there are. Blocks side by side take one copy, those behind each other the others.
extern "C" __global__ void copy_all(const unsigned long long* table) {
    const unsigned long long* entry = table + 3 * blockIdx.y;
    const unsigned int n = entry[2];
    ELEMENTS
    float v[WIDE];
    load(v, reinterpret_cast<const float*>(entry[0]) + at, count);
    store(reinterpret_cast<float*>(entry[1]) + at, v, count);
}

extern "C" __global__ void relu(unsigned int n, const real* x, real* y) {
    ELEMENTS
    float v[WIDE];
    load(v, x + at, count);
    for (int k = 0; k < WIDE; ++k) v[k] = positive(v[k]);
    store(y + at, v, count);
}

// Zeros in dy where ReLU's result y is not positive.
extern "C" __global__ void mask(unsigned int n, const real* y, real* dy) {
    ELEMENTS
    float v[WIDE], d[WIDE];
    load(v, y + at, count);
    load(d, dy + at, count);
    for (int k = 0; k < WIDE; ++k) d[k] = v[k] <= 0.f ? 0.f : d[k];
    store(dy + at, d, count);
}

extern "C" __global__ void sum(unsigned int n, const real* a, const real* b, real* y, int relu) {
    ELEMENTS
    float v[WIDE], w[WIDE];
    load(v, a + at, count);
    load(w, b + at, count);
    for (int k = 0; k < WIDE; ++k) v[k] = relu ? positive(v[k] + w[k]) : v[k] + w[k];
    store(y + at, v, count);
}

// Adds a bias to rows of `columns`, in place, and takes the positive part.
extern "C" __global__ void bias_relu(unsigned int n, real* y, const float* bias, int columns, int relu) {
    ELEMENTS
    float v[WIDE];
    load(v, y + at, count);
    int column = (unsigned int)at % (unsigned int)columns; // of less than 2^31 elements
    for (int k = 0; k < WIDE; ++k) {
        if (bias) v[k] += bias[column];
        if (relu) v[k] = positive(v[k]);
        column = column + 1 < columns ? column + 1 : 0;
    }
    store(y + at, v, count);
}

// Element i of y, in which each sample of x, a matrix of rows x columns, is transposed.
template <class T>
__device__ float transposed(const T* x, unsigned int i, unsigned int rows, unsigned int columns) {
    const unsigned int sample = i / (rows * columns), at = i % (rows * columns);
    const unsigned int column = at / rows, row = at % rows;
    return f32(x[sample * rows * columns + row * columns + column]);
}

extern "C" __global__ void transpose(unsigned int n, const real* x, real* y, int rows, int columns, int add) {
    ELEMENT
    put(y + i, transposed(x, i, rows, columns), add);
}

extern "C" __global__ void transpose_widen(unsigned int n, const real* x, float* y, int rows, int columns, int add) {
    ELEMENT
    put(y + i, transposed(x, i, rows, columns), add);
}

// Weights, transposed. `table` has five numbers for each entry, which is some samples of a weight: the addresses of
// their elements and of where they go, how many rows all of them have, the rows of a sample, and columns. A thread
// takes a row. Blocks side by side take one entry, those behind each other the others.
extern "C" __global__ void pack(const unsigned long long* table) {
    const unsigned long long* entry = table + 5 * blockIdx.y;
    const unsigned int n = entry[2], rows = entry[3], columns = entry[4];
    ELEMENT
    const float* from = reinterpret_cast<const float*>(entry[0]) + (size_t)i * columns;
    real* to = reinterpret_cast<real*>(entry[1]) + (size_t)(i / rows) * rows * columns + i % rows;
    for (unsigned int column = 0; column < columns; ++column) write(to + column * rows, from[column]);
}

// -- pooling, NHWC: (H, W) is the size of x, (OH, OW) of y ----------------------------------------

struct Windows {
    int height, width, channels, out_height, out_width, kernel, stride;
};

extern "C" __global__ void average(unsigned int n, const real* x, real* y, Windows w) {
    ELEMENT
    const Pixel o = pixel_of(i, w.out_height, w.out_width, w.channels);
    float total = 0.f;
    for (int ky = 0; ky < w.kernel; ++ky)
        for (int kx = 0; kx < w.kernel; ++kx) {
            const int at = (o.y * w.stride + ky) * w.width + o.x * w.stride + kx;
            total += f32(x[(o.b * w.height * w.width + at) * w.channels + o.c]);
        }
    write(y + i, total / (w.kernel * w.kernel));
}

// The windows that see a pixel: from `first` to `last`, along one axis.
__device__ inline void windows_of(int pixel, int kernel, int stride, int out, int* first, int* last) {
    *first = pixel < kernel ? 0 : (pixel - kernel) / stride + 1;
    *last = min(pixel / stride, out - 1);
}

// A thread for an element of dx, which takes its share from each window that sees it.
extern "C" __global__ void average_backward(unsigned int n, const real* dy, real* dx, Windows w, int add) {
    ELEMENT
    const Pixel p = pixel_of(i, w.height, w.width, w.channels);
    int top, bottom, left, right;
    windows_of(p.y, w.kernel, w.stride, w.out_height, &top, &bottom);
    windows_of(p.x, w.kernel, w.stride, w.out_width, &left, &right);
    float total = 0.f;
    for (int oy = top; oy <= bottom; ++oy)
        for (int ox = left; ox <= right; ++ox)
            total += f32(dy[((p.b * w.out_height + oy) * w.out_width + ox) * w.channels + p.c]);
    put(dx + i, total / (w.kernel * w.kernel), add);
}

extern "C" __global__ void maximum(unsigned int n, const real* x, real* y, Windows w) {
    ELEMENT
    const Pixel o = pixel_of(i, w.out_height, w.out_width, w.channels);
    float best = -INFINITY;
    for (int ky = 0; ky < w.kernel; ++ky)
        for (int kx = 0; kx < w.kernel; ++kx) {
            const int at = (o.y * w.stride + ky) * w.width + o.x * w.stride + kx;
            const float v = f32(x[(o.b * w.height * w.width + at) * w.channels + o.c]);
            if (v > best || v != v) best = v;  // NaN wins and stays
        }
    write(y + i, best);
}

// Each window's gradient belongs to the first pixel that is its maximum.
extern "C" __global__ void maximum_backward(unsigned int n, const real* x, const real* y,
                                            const real* dy, real* dx, Windows w, int add) {
    ELEMENT
    const Pixel p = pixel_of(i, w.height, w.width, w.channels);
    int top, bottom, left, right;
    windows_of(p.y, w.kernel, w.stride, w.out_height, &top, &bottom);
    windows_of(p.x, w.kernel, w.stride, w.out_width, &left, &right);
    float total = 0.f;
    for (int oy = top; oy <= bottom; ++oy)
        for (int ox = left; ox <= right; ++ox) {
            const unsigned int o = ((p.b * w.out_height + oy) * w.out_width + ox) * w.channels + p.c;
            int first = -1;
            for (int k = 0; k < w.kernel * w.kernel && first < 0; ++k) {
                const int at = (oy * w.stride + k / w.kernel) * w.width + ox * w.stride + k % w.kernel;
                if (!(f32(x[(p.b * w.height * w.width + at) * w.channels + p.c]) < f32(y[o]))) first = at;
            }
            if (first == p.y * w.width + p.x) total += f32(dy[o]);
        }
    put(dx + i, total, add);
}

extern "C" __global__ void global_average(unsigned int n, const real* x, real* y, int pixels, int channels) {
    ELEMENT
    const real* first = x + (size_t)(i / channels) * pixels * channels + i % channels;
    float total = 0.f;
    for (int p = 0; p < pixels; ++p) total += f32(first[(size_t)p * channels]);
    write(y + i, total / pixels);
}

extern "C" __global__ void global_average_backward(unsigned int n, const real* dy, real* dx, int pixels,
                                                   int channels, int add) {
    ELEMENT
    const unsigned int b = i / channels / pixels;
    put(dx + i, f32(dy[b * channels + i % channels]) / pixels, add);
}

// -- a convolution as a product of matrices -------------------------------------------------------

struct Im2col {
    int height, width, channels, out_height, out_width, kernel_height, kernel_width, stride, padding;
};

// The windows of x as rows of (KH, KW, C), with zeros in the padding. A thread takes V neighbours of a row of the
// kernel, which are neighbours in x too; V divides C.
template <int V> __device__ void to_windows(unsigned int n, const float* x, float* windows, const Im2col& s) {
    ELEMENT
    const unsigned int of_a_row = s.kernel_width * s.channels / V;
    const unsigned int first = i % of_a_row * V, row = i / of_a_row;
    const Pixel window = pixel_of(row / s.kernel_height, s.out_height, s.out_width, 1);
    const int y = window.y * s.stride + (int)(row % s.kernel_height) - s.padding;
    const int at = (window.x * s.stride - s.padding) * s.channels + (int)first;
    float v[V] = {};
    if (y >= 0 && y < s.height && at >= 0 && at < s.width * s.channels)
        load(v, x + ((size_t)window.b * s.height + y) * s.width * s.channels + at);
    store(windows + (size_t)i * V, v);
}

extern "C" __global__ void im2col1(unsigned int n, const float* x, float* windows, Im2col s) {
    to_windows<1>(n, x, windows, s);
}

extern "C" __global__ void im2col4(unsigned int n, const float* x, float* windows, Im2col s) {
    to_windows<4>(n, x, windows, s);
}

// dx from the gradient of the windows. A thread takes V channels of a pixel, and sums all windows that see it.
template <int V>
__device__ void from_windows(unsigned int n, const float* windows, float* dx, const Im2col& s, int add) {
    ELEMENT
    Pixel at = pixel_of(i, s.height, s.width, s.channels / V);
    at.c *= V;
    float total[V] = {}, v[V];
    for (int ky = 0; ky < s.kernel_height; ++ky) {
        const int down = at.y + s.padding - ky, y = down / s.stride;
        if (down < 0 || down % s.stride != 0 || y >= s.out_height) continue;
        for (int kx = 0; kx < s.kernel_width; ++kx) {
            const int right = at.x + s.padding - kx, x = right / s.stride;
            if (right < 0 || right % s.stride != 0 || x >= s.out_width) continue;
            const size_t window = ((size_t)at.b * s.out_height + y) * s.out_width + x;
            load(v, windows + ((window * s.kernel_height + ky) * s.kernel_width + kx) * s.channels + at.c);
            for (int k = 0; k < V; ++k) total[k] += v[k];
        }
    }
    float* to = dx + (size_t)i * V;
    if (add) load(v, to);
    for (int k = 0; k < V; ++k) total[k] = add ? v[k] + total[k] : total[k];
    store(to, total);
}

extern "C" __global__ void col2im1(unsigned int n, const float* windows, float* dx, Im2col s, int add) {
    from_windows<1>(n, windows, dx, s, add);
}

extern "C" __global__ void col2im4(unsigned int n, const float* windows, float* dx, Im2col s, int add) {
    from_windows<4>(n, windows, dx, s, add);
}

// -- what follows a convolution: bias, ReLU and the mean over windows that do not overlap ---------

// y (B, OH, OW, C) from z (B, H, W, C).
extern "C" __global__ void epilogue(unsigned int n, const real* z, const float* bias, real* y, Windows w,
                                    int relu) {
    ELEMENT
    const Pixel o = pixel_of(i, w.out_height, w.out_width, w.channels);
    const float shift = bias ? bias[o.c] : 0.f;
    float total = 0.f;
    for (int ky = 0; ky < w.kernel; ++ky)
        for (int kx = 0; kx < w.kernel; ++kx) {
            const int at = (o.y * w.kernel + ky) * w.width + o.x * w.kernel + kx;
            const float v = f32(z[(o.b * w.height * w.width + at) * w.channels + o.c]) + shift;
            total += relu ? positive(v) : v;
        }
    write(y + i, total / (w.kernel * w.kernel));
}

// dz from dy; a thread for an element of dz.
extern "C" __global__ void epilogue_backward(unsigned int n, const real* z, const float* bias, const real* dy,
                                             real* dz, Windows w, int relu) {
    ELEMENT
    const Pixel p = pixel_of(i, w.height, w.width, w.channels);
    const int oy = p.y / w.kernel, ox = p.x / w.kernel;
    const bool seen = ox < w.out_width && oy < w.out_height;
    const bool cut = relu && f32(z[i]) + (bias ? bias[p.c] : 0.f) <= 0.f;
    const unsigned int o = ((p.b * w.out_height + oy) * w.out_width + ox) * w.channels + p.c;
    write(dz + i, seen && !cut ? f32(dy[o]) / (w.kernel * w.kernel) : 0.f);
}

// -- sums of columns, in two passes and one order -------------------------------------------------

// Block (bx, by) sums rows_of_a_block rows of 32 columns: partial[by][column]. Blocks of 32 x 8 threads.
extern "C" __global__ void column_sums(const real* x, float* partial, int rows, int columns,
                                       int rows_of_a_block) {
    __shared__ float sums[8][32];
    const int column = blockIdx.x * 32 + threadIdx.x;
    const int end = min(rows, ((int)blockIdx.y + 1) * rows_of_a_block);
    float total = 0.f;
    if (column < columns)
        for (int row = blockIdx.y * rows_of_a_block + threadIdx.y; row < end; row += 8)
            total += f32(x[(size_t)row * columns + column]);
    sums[threadIdx.y][threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.y == 0 && column < columns) {
        for (int k = 1; k < 8; ++k) total += sums[k][threadIdx.x];
        partial[blockIdx.y * columns + column] = total;
    }
}

// to[i] = the sum of partial[k][first + i] over k; rows of `width`. Blocks of 32 x 32.
extern "C" __global__ void __launch_bounds__(1024) combine(const float* partial, float* to, int n, int count, int width, int first,
                                   int add) {
    __shared__ double sums[32][33];
    const int i = blockIdx.x * 32 + threadIdx.x;
    double total = 0.;
    if (i < n)
        for (int k = threadIdx.y; k < count; k += 32) total += partial[(size_t)k * width + first + i];
    sums[threadIdx.y][threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.y == 0 && i < n) {
        for (int k = 1; k < 32; ++k) total += sums[k][threadIdx.x];
        put(to + i, (float)total, add);
    }
}

// -- loss and optimizer ---------------------------------------------------------------------------

// A thread for a row of logits. A label that is no class gives NaN.
extern "C" __global__ void cross_entropy(unsigned int n, const float* y_hat, const unsigned int* y, float* loss,
                                         int classes) {
    ELEMENT
    const float* row = y_hat + (size_t)i * classes;
    float largest = -INFINITY, total = 0.f;
    for (int c = 0; c < classes; ++c) largest = fmaxf(largest, row[c]);
    for (int c = 0; c < classes; ++c) total += expf(row[c] - largest);
    loss[i] = y[i] < classes ? logf(total) - (row[y[i]] - largest) : NAN;
}

// softmax(y_hat), less 1 at the label, times the gradient of the loss.
extern "C" __global__ void cross_entropy_backward(unsigned int n, const float* y_hat, const unsigned int* y,
                                                  const float* d_loss, float* gradient, int classes) {
    ELEMENT
    const float* row = y_hat + (size_t)i * classes;
    float* to = gradient + (size_t)i * classes;
    float largest = -INFINITY, total = 0.f;
    for (int c = 0; c < classes; ++c) largest = fmaxf(largest, row[c]);
    for (int c = 0; c < classes; ++c) total += expf(row[c] - largest);
    const float d = y[i] < classes ? d_loss[i] : NAN;
    for (int c = 0; c < classes; ++c)
        to[c] = d * expf(row[c] - largest) / total - (c == y[i] ? d : 0.f);
}

// The sum of n numbers, by one block of 256 threads.
extern "C" __global__ void total(const float* x, float* y, int n) {
    __shared__ double sums[256];
    double sum = 0.;
    for (int i = threadIdx.x; i < n; i += 256) sum += x[i];
    sums[threadIdx.x] = sum;
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) *y = (float)sums[0];
}

// As functional::Sgd, with the gradients' sums times `share`. `table` has five numbers for each entry, which is a part
// of a parameter: the addresses of its elements, of their gradients and of the two values that are kept of them, or 0,
// and how many there are. Blocks side by side take one entry, those behind each other the others.
extern "C" __global__ void sgd(const unsigned long long* table, float lr, float momentum, float ahead, float decay,
                               float share) {
    const unsigned long long* entry = table + 5 * blockIdx.y;
    float* param = reinterpret_cast<float*>(entry[0]);
    const float* grad = reinterpret_cast<const float*>(entry[1]);
    float* velocity = reinterpret_cast<float*>(entry[2]);
    const unsigned int n = entry[4];
    ELEMENTS
    float p[WIDE], step[WIDE], v[WIDE];
    load(p, param + at, count);
    load(step, grad + at, count);
    for (int k = 0; k < WIDE; ++k) step[k] = share * step[k] + decay * p[k];
    if (velocity) {
        load(v, velocity + at, count);
        for (int k = 0; k < WIDE; ++k) {
            v[k] = step[k] + momentum * v[k];
            step[k] = ahead != 0.f ? step[k] + ahead * v[k] : v[k];
        }
        store(velocity + at, v, count);
    }
    for (int k = 0; k < WIDE; ++k) p[k] -= lr * step[k];
    store(param + at, p, count);
}

// As functional::AdamW, with a table as above.
extern "C" __global__ void adamw(const unsigned long long* table, float share, float keep, float rate, float root,
                                 float new1, float beta2, float new2, float eps) {
    const unsigned long long* entry = table + 5 * blockIdx.y;
    float* param = reinterpret_cast<float*>(entry[0]);
    const float* grad = reinterpret_cast<const float*>(entry[1]);
    float* mean = reinterpret_cast<float*>(entry[2]);
    float* of_squares = reinterpret_cast<float*>(entry[3]);
    const unsigned int n = entry[4];
    ELEMENTS
    float p[WIDE], g[WIDE], m[WIDE], v[WIDE];
    load(p, param + at, count);
    load(g, grad + at, count);
    load(m, mean + at, count);
    load(v, of_squares + at, count);
    for (int k = 0; k < WIDE; ++k) {
        g[k] *= share;
        m[k] += new1 * (g[k] - m[k]);
        v[k] = beta2 * v[k] + new2 * g[k] * g[k];
        p[k] = keep * p[k] - rate * m[k] / (sqrtf(v[k]) / root + eps);
    }
    store(mean + at, m, count);
    store(of_squares + at, v, count);
    store(param + at, p, count);
}
