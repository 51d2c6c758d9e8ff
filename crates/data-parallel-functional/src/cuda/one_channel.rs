//! Convolution of images with one channel and a kernel of 3 × 3 or 5 × 5 on a GPU, with its ReLU and its pooling:
//! kernels of our own, because the sums are too short for cuDNN's.

use super::elementwise::combine;
use super::floats::Floats;
use super::gradient::Grad;
use super::launch::{Argument, THREADS, launch};
use super::memory::Block;
use super::stream::Stream;
use crate::descriptors::convolution::Convolution;
use candle_core::Result;

/// The most blocks of the forward kernel, in which each thread takes one pixel after the other.
const FORWARD_BLOCKS: usize = 1024;
/// The most blocks of the backward kernel, each of which has its own sums.
const BACKWARD_BLOCKS: usize = 512;

/// A convolution that these kernels compute.
pub(crate) struct OneChannel<'a>(&'a Convolution);

/// The kernels have a struct of eight integers of 32 bits.
impl Argument for &OneChannel<'_> {
    type Raw = [[i32; 4]; 2];

    fn raw(&self) -> Result<Self::Raw> {
        let g = &self.0.geometry;
        let [out_height, out_width] = self.0.pooled();
        let sizes = [g.height, g.width, out_height, out_width];
        [sizes, [g.out_channels, g.stride, g.padding, self.0.pool]].raw()
    }
}

impl<'a> OneChannel<'a> {
    pub fn new(convolution: &'a Convolution) -> Option<Self> {
        let g = &convolution.geometry;
        let kernel = matches!(g.square_kernel(), Some(3 | 5));
        let channels = g.channels == 1 && g.out_channels <= THREADS as usize;
        (kernel && channels).then_some(Self(convolution))
    }

    /// Pixels that a block takes at once, if each thread takes `outputs` outputs of one.
    fn lanes(&self, outputs: usize) -> usize {
        THREADS as usize / self.0.geometry.out_channels.div_ceil(outputs)
    }

    pub fn forward(&self, stream: &Stream, x: &[Floats], y: Floats) -> Result<()> {
        // a kernel, and the outputs that a thread takes, as one_channel.cu has it
        let (name, outputs) = if self.0.geometry.kernel_height == 3 {
            ("one_channel3", 4)
        } else {
            ("one_channel5", 2)
        };
        let pixels = y.len / self.0.geometry.out_channels;
        let blocks = pixels.div_ceil(self.lanes(outputs)).min(FORWARD_BLOCKS);
        if blocks == 0 {
            return Ok(());
        }
        let grid = (blocks as u32, 1, 1);
        let bias = x.get(2).copied();
        launch!(stream, y.kernel(name), grid, (THREADS, 1, 1);
            x[0], x[1], bias, y, self, self.0.relu, pixels)
    }

    /// The gradients of weight and bias, where they are wanted.
    pub fn backward(
        &self,
        stream: &Stream,
        x: &[Floats],
        dy: Floats,
        dx: &mut [Grad],
    ) -> Result<()> {
        let g = &self.0.geometry;
        let (name, outputs) = if g.kernel_height == 3 {
            ("one_channel3_backward", 4)
        } else {
            ("one_channel5_backward", 1)
        };
        let of_weight = g.out_channels * g.taps();
        let pixels = dy.len / g.out_channels;
        let width = of_weight + g.out_channels;
        let at_least = pixels.div_ceil(BACKWARD_BLOCKS).max(1);
        let of_a_block = at_least.next_multiple_of(self.lanes(outputs)); // all threads take as many
        let parts = pixels.div_ceil(of_a_block);
        let memory = Block::new(stream, parts * width)?;
        let partial = memory.floats();
        let bias = x.get(2).copied();
        if parts > 0 {
            launch!(stream, dy.kernel(name), (parts as u32, 1, 1), (THREADS, 1, 1);
                x[0], x[1], bias, dy, partial, self, self.0.relu, pixels, of_a_block)?;
        }
        for (gradient, first) in dx[1..].iter_mut().zip([0, of_weight]) {
            let sum = |to, add| combine(stream, partial, width, first, to, add);
            gradient.write(stream, sum)?;
        }
        Ok(())
    }
}
