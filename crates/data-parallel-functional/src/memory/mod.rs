//! Memory: what is free and used again, the floats of candle's tensors, buckets of gradients, and limits.

pub(crate) mod allocator;
pub(crate) mod bucket;
pub(crate) mod free;
pub(crate) mod limits;
pub(crate) mod tensors;
