//! Settings of the whole process: precision, algorithms, and streams.

pub(crate) mod algorithms;
pub(crate) mod precision;
pub(crate) mod streams;
