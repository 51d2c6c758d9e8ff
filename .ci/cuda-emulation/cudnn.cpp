// libcudnn: convolutions in NHWC, of f32 or of bf16 with sums in f32. It offers algorithms in an order that depends on
// the shape, the GPU and the seed. The caller must reject some of them: they do not work, need too much memory, round,
// sum in another order every time, or refuse when they are called. It overwrites workspaces, and refuses misaligned
// addresses. None adds to what is there (beta), which NVIDIA promises for no algorithm.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "driver.hpp"
#include "products.hpp"

using namespace emulated;

enum Status {
    SUCCESS = 0,
    NOT_INITIALIZED = 1001,
    BAD_PARAM = 2000,
    MISALIGNED_POINTER = 2003,
    SIZE_INSUFFICIENT = 2006,
    NOT_SUPPORTED = 3000,
    EXECUTION_FAILED = 5000,
};
enum { NCHW = 0, NHWC = 1 };
enum { FLOAT = 0, BFLOAT16 = 9 };
enum Math { DEFAULT_MATH = 0, TENSOR_OP_MATH = 1, FMA_MATH = 3 };

namespace {

struct Handle {
    int gpu;
    Stream* stream;
};

// Also describes a filter, with n outputs and c inputs.
struct Tensor {
    int format, type, n, c, h, w;

    size_t image() const { return size_t(h) * w * c; }
    size_t elements() const { return n * image(); }
    size_t bytes() const { return elements() * (type == BFLOAT16 ? 2 : 4); }
};

struct Convolution {
    int pad_h, pad_w, stride_h, stride_w, math;
};

// The layout of cuDNN's answers about algorithms.
struct Answer {
    int algorithm, status;
    float time;
    size_t memory;
    int deterministic, math, reserved[3];
};

enum Direction { FORWARD, DATA, FILTER };

struct Algorithm {
    int number;
    bool works, deterministic, tensor_cores, refuses;
    size_t workspace;
};

const size_t HUGE_WORKSPACE = size_t(3) << 30, WORKSPACE = 5000;

// The algorithms of each direction.
const std::vector<Algorithm> ALGORITHMS[] = {
    {{0, true, true, false, false, 0},
     {1, true, true, true, false, WORKSPACE},
     {2, false, true, false, false, 0},
     {4, true, true, false, false, HUGE_WORKSPACE},
     {6, true, true, false, true, 0}},
    {{0, true, false, false, false, 0},
     {1, true, true, true, false, WORKSPACE},
     {2, true, true, false, false, HUGE_WORKSPACE},
     {4, true, true, false, true, 0},
     {5, false, true, false, false, 0}},
    {{0, true, false, false, false, 0},
     {1, true, true, true, false, WORKSPACE},
     {2, true, true, false, false, HUGE_WORKSPACE},
     {3, true, false, false, false, WORKSPACE},
     {4, true, true, false, true, 0}},
};

// The algorithm, or null if it does not work. In bf16, algorithms that transform their inputs do not, nor does any with
// channels that are no multiples of 8.
const Algorithm* find(Direction direction, int number, const Tensor& weight) {
    const bool f32 = weight.type == FLOAT, eights = weight.n % 8 == 0 && weight.c % 8 == 0;
    for (const Algorithm& algorithm : ALGORITHMS[direction])
        if (algorithm.number == number) {
            const bool does = algorithm.works && (f32 || (eights && number < 4)) && (number == 1 || !settings().one);
            return does ? &algorithm : nullptr;
        }
    return nullptr;
}

// Whether the descriptors fit together.
Status check(const Tensor& x, const Tensor& weight, const Convolution& by, const Tensor& y) {
    if (x.format != NHWC || weight.format != NHWC || y.format != NHWC) return NOT_SUPPORTED;
    if (x.type != weight.type || x.type != y.type) return NOT_SUPPORTED;
    if (x.type == BFLOAT16 && by.math == FMA_MATH) return NOT_SUPPORTED;
    if (settings().narrow && (by.pad_h >= weight.h || by.pad_w >= weight.w)) return NOT_SUPPORTED;
    const auto out = [](int size, int kernel, int padding, int stride) {
        return (size + 2 * padding - kernel) / stride + 1;
    };
    const bool fit = x.c == weight.c && x.n == y.n && y.c == weight.n &&
                     y.h == out(x.h, weight.h, by.pad_h, by.stride_h) &&
                     y.w == out(x.w, weight.w, by.pad_w, by.stride_w);
    return fit ? SUCCESS : BAD_PARAM;
}

Status offer(const Handle* handle, Direction direction, const Tensor& x, const Tensor& weight, const Convolution& by,
             int room, int* count, Answer* answers) {
    std::mt19937_64 order(settings().seed);
    const int kind = settings().alike ? 0 : handle->gpu;
    for (int number : {kind, int(direction), x.n, x.h, x.c, weight.n, weight.h, by.stride_h})
        order.seed(order() ^ number);
    std::vector<Answer> all;
    for (const Algorithm& of : ALGORITHMS[direction]) {
        const int status = find(direction, of.number, weight) ? SUCCESS : NOT_SUPPORTED;
        const auto answer = [&](Math math) {
            all.push_back({of.number, status, 1.f, of.workspace, of.deterministic, math, {}});
        };
        answer(by.math == FMA_MATH ? FMA_MATH : DEFAULT_MATH);
        if (of.tensor_cores && by.math != FMA_MATH) answer(TENSOR_OP_MATH);
    }
    for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[order() % i]);
    *count = std::min<int>(room, all.size());
    std::copy_n(all.begin(), *count, answers);
    return SUCCESS;
}

// -- what is computed -----------------------------------------------------------------------------

// A convolution as products: each output pixel has a row of `taps` inputs.
struct Shape {
    Tensor x, weight, y;
    Convolution by;

    size_t taps() const { return weight.image(); }
    size_t pixels() const { return size_t(y.h) * y.w; }

    // Calls f(position in the rows, position in an image of x) for all channels of a tap inside the image.
    template <class F> void each(F f) const {
        for (int oy = 0; oy < y.h; ++oy)
            for (int ox = 0; ox < y.w; ++ox)
                for (int ky = 0; ky < weight.h; ++ky)
                    for (int kx = 0; kx < weight.w; ++kx) {
                        const int row = oy * by.stride_h + ky - by.pad_h, column = ox * by.stride_w + kx - by.pad_w;
                        if (row < 0 || row >= x.h || column < 0 || column >= x.w) continue;
                        const size_t pixel = size_t(oy) * y.w + ox, tap = size_t(ky) * weight.w + kx;
                        f(pixel * taps() + tap * x.c, (size_t(row) * x.w + column) * x.c);
                    }
    }

    std::vector<float> rows(const float* image) const {
        std::vector<float> all(pixels() * taps(), 0.f);
        each([&](size_t at, size_t from) { std::copy_n(image + from, x.c, &all[at]); });
        return all;
    }
};

std::vector<size_t> in_order(size_t n, bool deterministic) {
    std::vector<size_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = n; !deterministic && i > 1; --i) std::swap(order[i - 1], order[chance(i)]);
    return order;
}

void scale(const std::vector<float>& sum, float alpha, float* to) {
    for (size_t i = 0; i < sum.size(); ++i) to[i] = alpha * sum[i];
}

struct Run {
    Shape shape;
    Arithmetic arithmetic;
    bool deterministic;
    float alpha;

    // a and b are read, in the order of cuDNN's arguments.
    void go(Direction direction, const float* a, const float* b, float* to) const {
        if (direction == FORWARD) forward(a, b, to);
        if (direction == DATA) data(a, b, to);
        if (direction == FILTER) filter(a, b, to);
    }

    void forward(const float* a, const float* b, float* to) const {
        const size_t taps = shape.taps(), outputs = shape.weight.n;
        for (int n = 0; n < shape.x.n; ++n) {
            const auto rows = shape.rows(a + n * shape.x.image());
            multiply(shape.pixels(), outputs, taps, alpha, {rows.data(), taps, 1}, {b, 1, taps}, 0.f,
                     to + n * shape.y.image(), outputs, 1, arithmetic);
        }
    }

    void data(const float* a, const float* b, float* to) const {
        const size_t taps = shape.taps(), outputs = shape.weight.n, some = 4;
        std::vector<float> rows(shape.pixels() * taps);
        for (int n = 0; n < shape.x.n; ++n) {
            const float* dy = b + n * shape.y.image();
            std::vector<float> dx(shape.x.image(), 0.f);
            for (size_t part : in_order((outputs + some - 1) / some, deterministic)) {
                const size_t first = part * some, count = std::min(some, outputs - first);
                multiply(shape.pixels(), taps, count, 1.f, {dy + first, outputs, 1}, {a + first * taps, taps, 1}, 0.f,
                         rows.data(), taps, 1, arithmetic);
                shape.each([&](size_t at, size_t from) {
                    for (int c = 0; c < shape.x.c; ++c) dx[from + c] += rows[at + c];
                });
            }
            scale(dx, alpha, to + n * shape.x.image());
        }
    }

    void filter(const float* a, const float* b, float* to) const {
        const size_t taps = shape.taps(), outputs = shape.weight.n;
        std::vector<float> dw(outputs * taps, 0.f);
        for (size_t n : in_order(shape.x.n, deterministic)) {
            const auto rows = shape.rows(a + n * shape.x.image());
            multiply(outputs, taps, shape.pixels(), 1.f, {b + n * shape.y.image(), 1, outputs}, {rows.data(), taps, 1},
                     1.f, dw.data(), taps, 1, arithmetic);
        }
        scale(dw, alpha, to);
    }
};

struct Place {
    Address at;
    Tensor of;
};

Status check(const Handle* handle, const Place& place) {
    if (place.at % 16) return MISALIGNED_POINTER;
    return gpu_of(place.at, place.of.bytes()) == handle->gpu ? SUCCESS : EXECUTION_FAILED;
}

// The bf16 values at a place, in f32.
std::vector<float> widened(const Place& place) {
    std::vector<float> all(place.of.elements());
    const auto* from = reinterpret_cast<const uint16_t*>(place.at);
    for (size_t i = 0; i < all.size(); ++i) {
        const uint32_t bits = uint32_t(from[i]) << 16;
        memcpy(&all[i], &bits, sizeof bits);
    }
    return all;
}

// Writes values in bf16: rounds to the nearest, ties to even.
void narrow(const std::vector<float>& all, const Place& place) {
    auto* to = reinterpret_cast<uint16_t*>(place.at);
    for (size_t i = 0; i < all.size(); ++i) {
        uint32_t bits;
        memcpy(&bits, &all[i], sizeof bits);
        to[i] = all[i] != all[i] ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    }
}

float* pointer(const Place& place) { return reinterpret_cast<float*>(place.at); }

// `a` and `b` are read, `to` is written.
Status convolve(Handle* handle, Direction direction, int number, const Shape& shape, const float* alpha, Place a,
                Place b, Address workspace, size_t size, const float* beta, Place to) {
    const Guard guard(lock());
    if (current_gpu() != handle->gpu || handle->stream->gpu != handle->gpu) return EXECUTION_FAILED;
    const Algorithm* by = find(direction, number, shape.weight);
    if (!by || by->refuses || *beta != 0.f) return NOT_SUPPORTED;
    for (Status status : {check(shape.x, shape.weight, shape.by, shape.y), check(handle, a), check(handle, b),
                          check(handle, to)})
        if (status != SUCCESS) return status;
    if (size < by->workspace) return SIZE_INSUFFICIENT;
    if (by->workspace && gpu_of(workspace, size) != handle->gpu) return EXECUTION_FAILED;
    const bool rounds = by->tensor_cores && shape.by.math != FMA_MATH;
    const Run run = {shape, rounds ? Arithmetic::tf32 : Arithmetic::f32, by->deterministic, *alpha};
    const auto work = [=] {
        if (by->number == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the slowest
        if (by->workspace) memset(reinterpret_cast<void*>(workspace), 0xff, by->workspace);
        if (shape.x.type == FLOAT) return run.go(direction, pointer(a), pointer(b), pointer(to));
        std::vector<float> result(to.of.elements());
        run.go(direction, widened(a).data(), widened(b).data(), result.data());
        narrow(result, to);
    };
    static const char* const names[] = {"a convolution", "the gradient of a convolution's input",
                                        "the gradient of a convolution's weight"};
    enqueue(handle->stream, {names[direction], work});
    return SUCCESS;
}

}  // namespace

extern "C" {

size_t cudnnGetVersion() { return 91000; }

Status cudnnCreate(Handle** handle) {
    const Guard guard(lock());
    if (current_gpu() < 0) return NOT_INITIALIZED;
    *handle = new Handle{current_gpu(), stream_of(nullptr, current_gpu())};
    return SUCCESS;
}

Status cudnnDestroy(Handle* handle) {
    delete handle;
    return SUCCESS;
}

Status cudnnSetStream(Handle* handle, void* stream) {
    const Guard guard(lock());
    handle->stream = stream_of(stream, handle->gpu);
    return handle->stream && handle->stream->gpu == handle->gpu ? SUCCESS : BAD_PARAM;
}

Status cudnnCreateTensorDescriptor(Tensor** tensor) {
    *tensor = new Tensor();
    return SUCCESS;
}

Status cudnnDestroyTensorDescriptor(Tensor* tensor) {
    delete tensor;
    return SUCCESS;
}

Status cudnnCreateFilterDescriptor(Tensor** filter) { return cudnnCreateTensorDescriptor(filter); }

Status cudnnDestroyFilterDescriptor(Tensor* filter) { return cudnnDestroyTensorDescriptor(filter); }

Status cudnnSetTensor4dDescriptor(Tensor* tensor, int format, int type, int n, int c, int h, int w) {
    if (n < 1 || c < 1 || h < 1 || w < 1) return BAD_PARAM;
    *tensor = {format, type, n, c, h, w};
    return (type == FLOAT || type == BFLOAT16) && format <= NHWC ? SUCCESS : NOT_SUPPORTED;
}

Status cudnnSetFilter4dDescriptor(Tensor* filter, int type, int format, int n, int c, int h, int w) {
    return cudnnSetTensor4dDescriptor(filter, format, type, n, c, h, w);
}

Status cudnnCreateConvolutionDescriptor(Convolution** convolution) {
    *convolution = new Convolution();
    return SUCCESS;
}

Status cudnnDestroyConvolutionDescriptor(Convolution* convolution) {
    delete convolution;
    return SUCCESS;
}

Status cudnnSetConvolution2dDescriptor(Convolution* convolution, int pad_h, int pad_w, int stride_h, int stride_w,
                                       int dilation_h, int dilation_w, int cross_correlation, int type) {
    if (pad_h < 0 || pad_w < 0 || stride_h < 1 || stride_w < 1) return BAD_PARAM;
    *convolution = {pad_h, pad_w, stride_h, stride_w, DEFAULT_MATH};
    return dilation_h == 1 && dilation_w == 1 && cross_correlation == 1 && type == FLOAT ? SUCCESS : NOT_SUPPORTED;
}

Status cudnnSetConvolutionMathType(Convolution* convolution, int math) {
    convolution->math = math;
    return math >= 0 && math <= FMA_MATH ? SUCCESS : BAD_PARAM;
}

Status cudnnGetConvolutionForwardAlgorithm_v7(Handle* handle, const Tensor* x, const Tensor* weight,
                                              const Convolution* by, const Tensor* y, int room, int* count,
                                              Answer* answers) {
    const Status status = check(*x, *weight, *by, *y);
    return status == SUCCESS ? offer(handle, FORWARD, *x, *weight, *by, room, count, answers) : status;
}

Status cudnnGetConvolutionBackwardDataAlgorithm_v7(Handle* handle, const Tensor* weight, const Tensor* dy,
                                                   const Convolution* by, const Tensor* dx, int room, int* count,
                                                   Answer* answers) {
    const Status status = check(*dx, *weight, *by, *dy);
    return status == SUCCESS ? offer(handle, DATA, *dx, *weight, *by, room, count, answers) : status;
}

Status cudnnGetConvolutionBackwardFilterAlgorithm_v7(Handle* handle, const Tensor* x, const Tensor* dy,
                                                     const Convolution* by, const Tensor* dw, int room, int* count,
                                                     Answer* answers) {
    const Status status = check(*x, *dw, *by, *dy);
    return status == SUCCESS ? offer(handle, FILTER, *x, *dw, *by, room, count, answers) : status;
}

Status cudnnConvolutionForward(Handle* handle, const float* alpha, const Tensor* x_is, Address x, const Tensor* w_is,
                               Address w, const Convolution* by, int algorithm, Address workspace, size_t size,
                               const float* beta, const Tensor* y_is, Address y) {
    return convolve(handle, FORWARD, algorithm, {*x_is, *w_is, *y_is, *by}, alpha, {x, *x_is},
                    {w, *w_is}, workspace, size, beta, {y, *y_is});
}

Status cudnnConvolutionBackwardData(Handle* handle, const float* alpha, const Tensor* w_is, Address w,
                                    const Tensor* dy_is, Address dy, const Convolution* by, int algorithm,
                                    Address workspace, size_t size, const float* beta, const Tensor* dx_is,
                                    Address dx) {
    return convolve(handle, DATA, algorithm, {*dx_is, *w_is, *dy_is, *by}, alpha, {w, *w_is},
                    {dy, *dy_is}, workspace, size, beta, {dx, *dx_is});
}

Status cudnnConvolutionBackwardFilter(Handle* handle, const float* alpha, const Tensor* x_is, Address x,
                                      const Tensor* dy_is, Address dy, const Convolution* by, int algorithm,
                                      Address workspace, size_t size, const float* beta, const Tensor* dw_is,
                                      Address dw) {
    return convolve(handle, FILTER, algorithm, {*x_is, *dw_is, *dy_is, *by}, alpha, {x, *x_is},
                    {dy, *dy_is}, workspace, size, beta, {dw, *dw_is});
}

}  // extern "C"
