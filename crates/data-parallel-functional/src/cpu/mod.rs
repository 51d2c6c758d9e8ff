//! The CPU: kernels for AVX-512, AVX2 and NEON, chosen at run time, on slices of f32.
//!
//! **Convolutions** have four algorithms: `conv` says which one is for what.
//!
//! **Threads.** Replicas come first, then operations: an operation uses as many threads as its replica has cores. Its
//! shape alone cuts it into tasks, and partial sums have a fixed order. So the number of threads changes no bit.
//! `threads` says how much work is in a task, and `thread_pool` shares the tasks out.
//!
//! **Vectors of 4, 8 or 16 floats give the same bits.** `devices::instruction_set` is chosen once, and kernels, matrix
//! products and sums of gradients obey it. No kernel's order of additions depends on the length of a vector; `gemm`
//! says what that takes for products. `exp` and `ln` are polynomials (`exp`). `pow` comes from the crate `libm`, and
//! so does `cos` in the schedules of `data-parallel`. Losses are kernels, because candle's sums have other bits on
//! ARM. Checksums are in `tests/operations/bits.txt` of this crate, and in `tests/claims/models.txt`.
//!
//! **Long sums** in f32 have blocks of some hundred terms, because a chain of very many additions is inexact: the sums
//! of blocks are added to each other. `sums`, `norm` and `gemm` have such blocks.

pub(crate) mod activation;
pub(crate) mod backend;
pub mod budget;
pub(crate) mod buffer;
pub(crate) mod conv;
pub(crate) mod depthwise;
pub(crate) mod exp;
pub(crate) mod finite;
pub(crate) mod gemm;
pub(crate) mod gradient;
pub(crate) mod im2col;
pub(crate) mod layout;
pub(crate) mod linear;
pub(crate) mod loss;
pub(crate) mod norm;
pub(crate) mod one_channel;
pub(crate) mod pool;
pub(crate) mod scratch;
pub(crate) mod sums;
pub(crate) mod thread_pool;
pub(crate) mod threads;
pub(crate) mod vector;
pub(crate) mod winograd;
