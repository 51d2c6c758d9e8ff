//! A function of candle's own operations, as one operation here.

use candle_core::{Result, Tensor};
use std::rc::Rc;

/// A function of tensors, with all the variables that it reads.
#[derive(Clone)]
pub(crate) struct CandleOp(pub Rc<Function>);

pub(crate) type Function = dyn Fn(&[Tensor]) -> Result<Tensor>;
