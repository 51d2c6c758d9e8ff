//! Computations: values that are written down, the tape that runs them, and their gradients.

pub(crate) mod candle;
pub(crate) mod checked;
pub(crate) mod comparison;
pub(crate) mod compile;
pub(crate) mod difference;
mod eval;
pub(crate) mod gradients;
pub(crate) mod network;
pub(crate) mod tape;
pub(crate) mod value;
pub(crate) mod writing;
