//! The linear layer: its sizes, for weights of both orders.

use super::args;
use candle_core::{Result, bail};

/// The layer, with its ReLU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Linear {
    pub batch: usize,
    pub features: usize,
    pub outputs: usize,
    /// True if the weight lies in memory as (I, O).
    pub transposed: bool,
    pub relu: bool,
}

impl Linear {
    /// From the shapes of x (…, I), weight (O, I) and bias (O,).
    pub fn new(x: &[usize], weight: &[usize], bias: Option<&[usize]>) -> Result<Self> {
        match (x, weight) {
            ([b @ .., i], [o, expected]) if i == expected && !b.is_empty() => {
                Self::with_bias("linear", [b.iter().product(), *i, *o], false, bias)
            }
            ([_, .., i], [_, expected]) => bail!(
                "linear: x has {i} features, weight (O, I) has {expected}; for a weight (I, O) use \
                 matmul"
            ),
            (x, w) => bail!("linear: x has shape {x:?}, weight {w:?}, expected (…, I) and (O, I)"),
        }
    }

    /// Like [`new`](Self::new), for a weight (I, O).
    pub fn matmul(x: &[usize], weight: &[usize], bias: Option<&[usize]>) -> Result<Self> {
        match (x, weight) {
            ([b, i], [expected, o]) if i == expected => {
                Self::with_bias("matmul", [*b, *i, *o], true, bias)
            }
            ([_, i], [expected, _]) => bail!(
                "matmul: x has {i} columns, weight (I, O) has {expected} rows; for a weight (O, I) \
                 use linear"
            ),
            (x, w) => bail!("matmul: x has shape {x:?}, weight {w:?}, expected (B, I) and (I, O)"),
        }
    }

    fn with_bias(
        op: &str,
        [batch, features, outputs]: [usize; 3],
        transposed: bool,
        bias: Option<&[usize]>,
    ) -> Result<Self> {
        args::bias(op, bias, outputs, "outputs of weight")?;
        Ok(Self {
            batch,
            features,
            outputs,
            transposed,
            relu: false,
        })
    }
}
