//! Computations: values that are written down, the tape that runs them, and their gradients.
//!
//! This crate owns the step; candle keeps tensors, devices and files.
//!
//! - **A `Value` is written down, not computed.** Shapes, types and devices are checked there, so an error stands
//!   where the mistake is. `Value::eval` computes a value alone and changes nothing else.
//! - **`compile` makes a tape**: the kernels in their order, each with the values that it reads. It fuses operations
//!   that one kernel can compute: convolution + ReLU + pooling, linear + ReLU, batch norm + sum + ReLU.
//! - **One tape serves both backends.** A `Backend` says what memory, views and accumulation are; a `Kernel` has
//!   forward and backward.
//! - **Gradients go to gradient views**: slices of buckets that the caller owns. There is no other way out. After
//!   forward it is known which kernel is the last to add to each gradient. So a bucket can be handed out as soon as it
//!   is complete, in the first step too, and a network may change from step to step. A parameter on which the loss
//!   does not depend is an error before any gradient is written, unless `allow_unused` is set.
//! - **A network of candle's operations is one kernel** (`candle`), which `compile` makes and the tape calls.

pub(crate) mod alone;
pub(crate) mod candle;
pub(crate) mod checked;
pub(crate) mod comparison;
pub(crate) mod compile;
pub(crate) mod difference;
mod eval;
pub(crate) mod gather;
pub(crate) mod gradient_error;
pub(crate) mod gradients;
pub(crate) mod missing;
pub(crate) mod network;
pub(crate) mod tape;
pub(crate) mod value;
pub(crate) mod variables;
pub(crate) mod watch;
pub(crate) mod writing;
