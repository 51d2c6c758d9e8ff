//! Into NHWC and out of it: the two places where a network's data changes its order.

use super::args;
use candle_core::Result;

/// Transposes each sample, a matrix of rows × columns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Transpose {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

impl Transpose {
    /// For x (B, C, H, W), with the shape of the result.
    pub(crate) fn nhwc(x: &[usize]) -> Result<(Self, [usize; 4])> {
        let [b, c, h, w] = args::dims4("nhwc", "(B, C, H, W)", x)?;
        let transpose = Self {
            rows: c,
            columns: h * w,
        };
        Ok((transpose, [b, h, w, c]))
    }

    /// For x (B, H, W, C), with the shape of the result.
    pub(crate) fn flatten(x: &[usize]) -> Result<(Self, [usize; 2])> {
        let [b, h, w, c] = args::dims4("flatten", "(B, H, W, C)", x)?;
        let transpose = Self {
            rows: h * w,
            columns: c,
        };
        Ok((transpose, [b, c * h * w]))
    }
}
