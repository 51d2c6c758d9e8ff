//! Convolution: its sizes, and what may follow it in one step.

use super::args;
use candle_core::{Result, bail};

/// The sizes of one convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Geometry {
    pub(crate) batch: usize,
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) channels: usize,
    pub(crate) out_height: usize,
    pub(crate) out_width: usize,
    pub(crate) out_channels: usize,
    pub(crate) kernel_height: usize,
    pub(crate) kernel_width: usize,
    pub(crate) stride: usize,
    pub(crate) padding: usize,
}

impl Geometry {
    /// From the shapes of x (B, H, W, I), weight (O, I, KH, KW) and bias (O,).
    pub(crate) fn new(
        x: &[usize],
        weight: &[usize],
        bias: Option<&[usize]>,
        stride: usize,
        padding: usize,
    ) -> Result<Self> {
        let [batch, height, width, channels] = args::dims4("conv2d", "(B, H, W, I)", x)?;
        let [out_channels, expected, kernel_height, kernel_width] = match *weight {
            [o, i, kh, kw] if o > 0 && i > 0 => [o, i, kh, kw],
            _ => {
                bail!("conv2d: weight has shape {weight:?}, expected (O, I, KH, KW) of at least 1")
            }
        };
        if channels != expected {
            bail!(
                "conv2d: x has {channels} channels, weight has {expected}; x is (B, H, W, I), \
                 weight (O, I, KH, KW)"
            )
        }
        args::bias("conv2d", bias, out_channels, "output channels of weight")?;
        Ok(Self {
            batch,
            height,
            width,
            channels,
            out_height: args::windows("conv2d", height, kernel_height, stride, padding)?,
            out_width: args::windows("conv2d", width, kernel_width, stride, padding)?,
            out_channels,
            kernel_height,
            kernel_width,
            stride,
            padding,
        })
    }

    /// The shape of y.
    #[cfg(feature = "cuda")]
    pub(crate) fn out_dims(&self) -> [usize; 4] {
        [
            self.batch,
            self.out_height,
            self.out_width,
            self.out_channels,
        ]
    }

    /// Weights of the kernel between one input and one output channel.
    pub(crate) fn kernel_area(&self) -> usize {
        self.kernel_height * self.kernel_width
    }

    /// The side of a kernel that is a square.
    pub(crate) fn square_kernel(&self) -> Option<usize> {
        (self.kernel_height == self.kernel_width).then_some(self.kernel_height)
    }

    /// Columns of the im2col matrix: the inputs that one output pixel sees.
    pub(crate) fn taps(&self) -> usize {
        self.kernel_area() * self.channels
    }

    /// Floats of one sample of x.
    pub(crate) fn sample(&self) -> usize {
        self.height * self.width * self.channels
    }

    /// Lines of the whole batch.
    pub(crate) fn lines(&self) -> usize {
        self.batch * self.out_height
    }
}

/// A convolution with its ReLU and its mean over `pool` × `pool` windows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Convolution {
    pub(crate) geometry: Geometry,
    pub(crate) relu: bool,
    pub(crate) pool: usize,
}

impl Convolution {
    /// The size of the result's images.
    pub(crate) fn pooled(&self) -> [usize; 2] {
        let g = &self.geometry;
        [g.out_height / self.pool, g.out_width / self.pool]
    }

    /// The shape of the result.
    pub(crate) fn dims(&self) -> [usize; 4] {
        let g = &self.geometry;
        let [height, width] = self.pooled();
        [g.batch, height, width, g.out_channels]
    }
}
