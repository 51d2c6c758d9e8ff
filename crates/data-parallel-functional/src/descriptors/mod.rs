//! What operations of images are: their sizes, and the checks of what they are given. Nothing is computed here.

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
