// Products of matrices, which cuBLAS and cuDNN share.
#pragma once

#include <cstddef>

namespace emulated {

// An element is `at[row * by_row + column * by_column]`.
struct Matrix {
    const float* at;
    size_t by_row, by_column;
};

// How a GPU multiplies: in f32, or with inputs rounded to 10 bits of mantissa.
enum class Arithmetic { f32, tf32 };

// Which of the k products of a sum comes first.
enum class Order { forwards, backwards };

// c (m x n) = alpha a (m x k) b (k x n) + beta c; c is not read where beta is 0.
void multiply(size_t m, size_t n, size_t k, float alpha, Matrix a, Matrix b, float beta, float* c, size_t c_by_row,
              size_t c_by_column, Arithmetic arithmetic, Order order = Order::forwards);

}  // namespace emulated
