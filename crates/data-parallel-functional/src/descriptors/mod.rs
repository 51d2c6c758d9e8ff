//! Descriptors of operations on images: their sizes, and the checks of their arguments. Nothing is computed here.
//!
//! A descriptor says what an operation is: its sizes, which are checked when a `Value` is written down. A backend has
//! a kernel for it. An operation has a descriptor if several of them become one kernel, or if GPUs have kernels of
//! their own. An operation with a kernel on the CPU alone is self-contained: `operations` has a file for each.
//! Convolutions and norms cannot be so: their kernels of both backends are too large for a file, and `compile` has to
//! know what it fuses.

pub(crate) mod args;
pub(crate) mod convolution;
pub(crate) mod layout;
pub(crate) mod linear;
pub(crate) mod loss;
pub(crate) mod norm;
pub(crate) mod pool;

/// The positive part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Relu;

/// The elementwise sum of two values, and its positive part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Add {
    pub relu: bool,
}

/// The sum of all elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sum;

/// The mean of all elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mean;
