//! Settings of the whole process: precision and algorithms.

pub(crate) mod algorithms;
pub(crate) mod precision;
