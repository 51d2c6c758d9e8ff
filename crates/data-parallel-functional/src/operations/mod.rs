//! Operations of which each has a file with all that it is: the check of its sizes, its kernel on the CPU, and its
//! function of candle's, which computes it on any other device. No other operation is fused with one of them.

mod attention;
mod dropout;
mod embedding;
mod gelu;
mod layer_norm;

pub(crate) use crate::kernel::SelfContained;
pub(crate) use attention::Attention;
pub(crate) use dropout::Dropout;
pub(crate) use embedding::Embedding;
pub(crate) use gelu::Gelu;
pub(crate) use layer_norm::LayerNorm;
