//! Pooling: the sizes of its windows.

use super::args;
use candle_core::{Result, bail};

/// The windows of one pooling.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Windows {
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) out_height: usize,
    pub(crate) out_width: usize,
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) channels: usize,
    pub(crate) batch: usize,
}

impl Windows {
    /// The windows of operation `op` on x (B, H, W, C).
    pub(crate) fn new(op: &str, x: &[usize], kernel: usize, stride: usize) -> Result<Self> {
        let [batch, height, width, channels] = args::dims4(op, "(B, H, W, C)", x)?;
        Ok(Self {
            kernel,
            stride,
            out_height: args::windows(op, height, kernel, stride, 0)?,
            out_width: args::windows(op, width, kernel, stride, 0)?,
            batch,
            height,
            width,
            channels,
        })
    }

    /// The shape of the result.
    pub(crate) fn dims(&self) -> [usize; 4] {
        [self.batch, self.out_height, self.out_width, self.channels]
    }
}

/// The mean of each window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Average(pub Windows);

/// The largest value of each window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Maximum(pub Windows);

/// The mean of each channel over a whole image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GlobalAverage {
    pub(crate) pixels: usize,
    pub(crate) channels: usize,
}

impl GlobalAverage {
    pub(crate) fn new(x: &[usize]) -> Result<Self> {
        let [_, h, w, channels] = args::dims4("global_avg_pool2d", "(B, H, W, C)", x)?;
        let pixels = h * w;
        if pixels == 0 {
            bail!("global_avg_pool2d: x has shape {x:?}, expected at least one pixel")
        }
        Ok(Self { pixels, channels })
    }
}
