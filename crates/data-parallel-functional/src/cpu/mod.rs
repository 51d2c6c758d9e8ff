//! The CPU: kernels for AVX-512, AVX2 and NEON, chosen at run time, on slices of f32.

pub(crate) mod activation;
pub(crate) mod backend;
pub mod budget;
pub(crate) mod buffer;
#[cfg(test)]
pub(crate) mod case;
pub(crate) mod conv;
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
