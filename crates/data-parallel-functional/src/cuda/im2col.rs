//! Convolutions of small images with few channels on a GPU as products of matrices: the windows of x become rows of a
//! matrix, which cuBLAS multiplies in f32. They are for channels that are no multiples of eight, such as those of
//! LeNet's second convolution. cuDNN has its fast algorithms for channels that are multiples of eight. Of the time of
//! LeNet's kernels, others of cuDNN's took more than half.

use super::floats::{Element, Floats};
use super::gemm::{Matrix, multiply};
use super::launch::{Argument, launch};
use super::memory::Block;
use super::stream::Stream;
use crate::descriptors::convolution::Geometry;
use candle_core::Result;

/// The most weights of an output. With more, or with more outputs, cuDNN's tensor cores are probably faster, although
/// channels are filled up to eights for them.
const TAPS: usize = 512;
/// The most outputs.
const OUTPUTS: usize = 64;
/// The most elements of an image, and of its windows: 256 KiB. What is done does not depend on the batch, or the last
/// batch of an epoch could be computed otherwise than the rest.
const SMALL: usize = 1 << 16;

/// A convolution that is computed so.
pub(crate) struct Im2col<'a> {
    geometry: &'a Geometry,
}

/// The kernels have a struct of nine integers of 32 bits.
impl Argument for &Im2col<'_> {
    type Raw = [[i32; 3]; 3];

    fn raw(&self) -> Result<Self::Raw> {
        let g = self.geometry;
        [
            [g.height, g.width, g.channels],
            [g.out_height, g.out_width, g.kernel_height],
            [g.kernel_width, g.stride, g.padding],
        ]
        .raw()
    }
}

impl<'a> Im2col<'a> {
    /// `g`, if it suits; x is of that type.
    pub fn new(g: &'a Geometry, of_x: Element) -> Option<Self> {
        let in_eights = g.channels.is_multiple_of(8) && g.out_channels.is_multiple_of(8);
        let few = g.taps() <= TAPS && g.out_channels <= OUTPUTS && g.kernel_area() > 1;
        let image = g.height * g.width * g.channels;
        let small = image.max(g.out_height * g.out_width * g.taps()) <= SMALL;
        (of_x == Element::F32 && few && small && !in_eights).then_some(Self { geometry: g })
    }

    /// Windows of all examples.
    fn rows(&self) -> usize {
        self.geometry.batch * self.geometry.out_height * self.geometry.out_width
    }

    /// The windows of x as rows.
    fn windows(&self, stream: &Stream, x: Floats) -> Result<Block> {
        let windows = Block::new(stream, self.rows() * self.geometry.taps())?;
        let to = windows.floats();
        let (n, name) = if self.has_fours(x) {
            (to.len / 4, "im2col4")
        } else {
            (to.len, "im2col1")
        };
        launch!(stream, name, elements n; n, x, to, self)?;
        Ok(windows)
    }

    /// True if a thread can take four channels of x at once.
    fn has_fours(&self, x: Floats) -> bool {
        self.geometry.channels.is_multiple_of(4) && x.are_aligned()
    }

    /// `y` from `x` and the packed `weight`.
    pub fn forward(&self, stream: &Stream, x: Floats, weight: Floats, y: Floats) -> Result<()> {
        let rows = self.rows();
        let taps = self.geometry.taps();
        let memory = self.windows(stream, x)?;
        let windows = Matrix::new(memory.floats(), rows, taps);
        let weight = Matrix::new(weight, self.geometry.out_channels, taps);
        multiply(stream, y, false, windows, weight.t())
    }

    /// The gradient of x, written or added.
    pub fn backward_x(
        &self,
        stream: &Stream,
        weight: Floats,
        dy: Floats,
        dx: Floats,
        add: bool,
    ) -> Result<()> {
        let rows = self.rows();
        let taps = self.geometry.taps();
        let outputs = self.geometry.out_channels;
        let windows = Block::new(stream, rows * taps)?;
        let dy = Matrix::new(dy, rows, outputs);
        let weight = Matrix::new(weight, outputs, taps);
        multiply(stream, windows.floats(), false, dy, weight)?;
        let (n, name) = if self.has_fours(dx) {
            (dx.len / 4, "col2im4")
        } else {
            (dx.len, "col2im1")
        };
        launch!(stream, name, elements n; n, windows.floats(), dx, self, add)
    }

    /// The gradient of the packed weight.
    pub fn backward_weight(
        &self,
        stream: &Stream,
        x: Floats,
        dy: Floats,
        dw: Floats,
    ) -> Result<()> {
        let rows = self.rows();
        let taps = self.geometry.taps();
        let memory = self.windows(stream, x)?;
        let windows = Matrix::new(memory.floats(), rows, taps);
        let dy = Matrix::new(dy, rows, self.geometry.out_channels);
        multiply(stream, dw, false, dy.t(), windows)
    }
}
