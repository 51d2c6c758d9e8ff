//! Operations of which each has a file with all that it is: the method of [`Value`](crate::Value), the check of its sizes,
//! its kernel on the CPU, and its function of candle's, which computes it on any other device. No other operation is fused
//! with one of them.
//!
//! A GPU runs the function of candle's as one kernel of the tape. A test compares it with the kernel on the CPU.

mod activations;
mod arithmetic;
pub(crate) mod attention;
mod broadcast;
mod cat;
mod conv_transpose2d;
mod dropout;
mod embedding;
mod group_norm;
mod grouped_conv2d;
pub(crate) mod losses;
mod recurrent;
mod rotary;
mod row_norm;
mod upsample;

use crate::graph::compile::computed_by_candle;
use crate::graph::value::{Source, Value};
use crate::kernel::Op;

impl Value {
    /// For tests: the value as a device without a kernel of its last operation computes it. None if that is no operation of
    /// this folder.
    #[doc(hidden)]
    pub fn without_kernel(&self) -> Option<Self> {
        match &self.0.source {
            Source::Op(Op::SelfContained(operation), inputs) => {
                Some(computed_by_candle(operation, inputs, self.dims()))
            }
            _ => None,
        }
    }
}
