// libcublas, in f32, and the functions of libcurand that candle calls when it opens a GPU. They draw no numbers. A
// product sums in another order where an address is no multiple of 16 bytes: NVIDIA's may take another kernel there.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "driver.hpp"
#include "products.hpp"

namespace emulated {

static float rounded(float value, Arithmetic arithmetic) {
    if (arithmetic == Arithmetic::f32 || !std::isfinite(value)) return value;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0x1000) & ~0x1fffu;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// The elements of a matrix, row by row.
static std::vector<float> packed(Matrix m, size_t rows, size_t columns, Arithmetic arithmetic) {
    std::vector<float> all(rows * columns);
    for (size_t r = 0; r < rows; ++r)
        for (size_t c = 0; c < columns; ++c)
            all[r * columns + c] = rounded(m.at[r * m.by_row + c * m.by_column], arithmetic);
    return all;
}

// The rows and columns of the result that stay in the CPU's registers.
static const size_t TALL = 4, WIDE = 32;

// sums = `tall` rows of a times `wide` columns of b.
static void tile(float (&sums)[TALL][WIDE], const float* a, const float* b, size_t k, size_t n, size_t tall,
                 size_t wide) {
    memset(sums, 0, sizeof sums);
    if (tall == TALL && wide == WIDE) {
        for (size_t p = 0; p < k; ++p)
            for (size_t i = 0; i < TALL; ++i)
                for (size_t j = 0; j < WIDE; ++j) sums[i][j] += a[i * k + p] * b[p * n + j];
        return;
    }
    for (size_t p = 0; p < k; ++p)
        for (size_t i = 0; i < tall; ++i)
            for (size_t j = 0; j < wide; ++j) sums[i][j] += a[i * k + p] * b[p * n + j];
}

void multiply(size_t m, size_t n, size_t k, float alpha, Matrix a, Matrix b, float beta, float* c, size_t c_by_row,
              size_t c_by_column, Arithmetic arithmetic, Order order) {
    std::vector<float> left = packed(a, m, k, arithmetic), right = packed(b, k, n, arithmetic);
    if (order == Order::backwards) {
        for (size_t row = 0; row < m; ++row) std::reverse(&left[row * k], &left[row * k] + k);
        for (size_t p = 0; p < k / 2; ++p)
            std::swap_ranges(&right[p * n], &right[p * n] + n, &right[(k - 1 - p) * n]);
    }
    float sums[TALL][WIDE];
    for (size_t row = 0; row < m; row += TALL)
        for (size_t column = 0; column < n; column += WIDE) {
            const size_t tall = std::min(TALL, m - row), wide = std::min(WIDE, n - column);
            tile(sums, &left[row * k], &right[column], k, n, tall, wide);
            for (size_t i = 0; i < tall; ++i)
                for (size_t j = 0; j < wide; ++j) {
                    float& to = c[(row + i) * c_by_row + (column + j) * c_by_column];
                    to = alpha * sums[i][j] + (beta == 0.f ? 0.f : beta * to);
                }
        }
}

}  // namespace emulated

using namespace emulated;

enum Status { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum { F32 = 0, COMPUTE_32F = 68, COMPUTE_32F_PEDANTIC = 69, COMPUTE_32F_FAST_TF32 = 77 };

namespace {

struct Handle {
    int gpu;
    Stream* stream;
};

// A matrix for BLAS: its columns are `ld` elements apart, and the matrices of a batch `stride` elements.
struct Operand {
    Address first;
    int ld;
    long long stride;
    bool transposed;

    Matrix of_batch(size_t i) const {
        const auto* at = reinterpret_cast<const float*>(first) + i * stride;
        return transposed ? Matrix{at, size_t(ld), 1} : Matrix{at, 1, size_t(ld)};
    }
};

// Whether the operand has room for `count` matrices op(operand) of rows x columns, in memory of that GPU.
Status check(const Operand& of, size_t rows, size_t columns, size_t count, int gpu) {
    if (of.transposed) std::swap(rows, columns);
    if (size_t(of.ld) < std::max<size_t>(rows, 1)) return INVALID_VALUE;
    if (!rows || !columns || !count) return SUCCESS;
    const size_t elements = (count - 1) * of.stride + (columns - 1) * of.ld + rows;
    return gpu_of(of.first, elements * sizeof(float)) == gpu ? SUCCESS : EXECUTION_FAILED;
}

Status gemm(Handle* handle, int m, int n, int k, float alpha, Operand a, Operand b, float beta, Operand c, int count,
            Arithmetic arithmetic) {
    const Guard guard(lock());
    if (m < 0 || n < 0 || k < 0 || count < 0) return INVALID_VALUE;
    // the GPU must be that of the calling thread
    if (current_gpu() != handle->gpu || handle->stream->gpu != handle->gpu) return EXECUTION_FAILED;
    for (Status status : {check(a, m, k, count, handle->gpu), check(b, k, n, count, handle->gpu),
                          check(c, m, n, count, handle->gpu)})
        if (status != SUCCESS) return status;
    const bool aligned = (a.first | b.first | c.first) % 16 == 0;
    const Order order = aligned ? Order::forwards : Order::backwards;
    const auto run = [=] {
        for (int i = 0; i < count; ++i) {
            float* to = reinterpret_cast<float*>(c.first) + i * c.stride;
            // the transposed product, which is stored row by row
            const Matrix left = a.of_batch(i), right = b.of_batch(i);
            multiply(n, m, k, alpha, {right.at, right.by_column, right.by_row}, {left.at, left.by_column, left.by_row},
                     beta, to, c.ld, 1, arithmetic, order);
        }
    };
    enqueue(handle->stream, {"a product of matrices", run});
    return SUCCESS;
}

}  // namespace

extern "C" {

Status cublasCreate_v2(Handle** handle) {
    const Guard guard(lock());
    if (current_gpu() < 0) return NOT_INITIALIZED;
    *handle = new Handle{current_gpu(), stream_of(nullptr, current_gpu())};
    return SUCCESS;
}

Status cublasDestroy_v2(Handle* handle) {
    delete handle;
    return SUCCESS;
}

Status cublasSetStream_v2(Handle* handle, void* stream) {
    const Guard guard(lock());
    handle->stream = stream_of(stream, handle->gpu);
    return handle->stream ? SUCCESS : INVALID_VALUE;
}

Status cublasSgemm_v2(Handle* handle, int op_a, int op_b, int m, int n, int k, const float* alpha, Address a, int lda,
                      Address b, int ldb, const float* beta, Address c, int ldc) {
    return gemm(handle, m, n, k, *alpha, {a, lda, 0, op_a != 0}, {b, ldb, 0, op_b != 0}, *beta, {c, ldc, 0, false}, 1,
                Arithmetic::f32);
}

Status cublasGemmStridedBatchedEx(Handle* handle, int op_a, int op_b, int m, int n, int k, const float* alpha,
                                  Address a, int type_a, int lda, long long stride_a, Address b, int type_b, int ldb,
                                  long long stride_b, const float* beta, Address c, int type_c, int ldc,
                                  long long stride_c, int count, int compute, int) {
    const bool known = compute == COMPUTE_32F || compute == COMPUTE_32F_PEDANTIC || compute == COMPUTE_32F_FAST_TF32;
    if (type_a != F32 || type_b != F32 || type_c != F32 || !known) return NOT_SUPPORTED;
    const auto arithmetic = compute == COMPUTE_32F_FAST_TF32 ? Arithmetic::tf32 : Arithmetic::f32;
    return gemm(handle, m, n, k, *alpha, {a, lda, stride_a, op_a != 0}, {b, ldb, stride_b, op_b != 0}, *beta,
                {c, ldc, stride_c, false}, count, arithmetic);
}

// -- cuRAND ---------------------------------------------------------------------------------------

int curandCreateGenerator(void** generator, int) {
    *generator = new int;
    return SUCCESS;
}

int curandDestroyGenerator(void* generator) {
    delete static_cast<int*>(generator);
    return SUCCESS;
}

int curandSetPseudoRandomGeneratorSeed(void*, unsigned long long) { return SUCCESS; }

int curandSetStream(void*, void*) { return SUCCESS; }

}  // extern "C"
