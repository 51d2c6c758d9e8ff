//! The smaller operations on a GPU: one kernel in each direction.

use super::elementwise::{mask, transpose};
use super::floats::Floats;
use super::gradient::{At, Cuda, Grad, Pass};
use super::launch::{Argument, launch};
use super::memory::Block;
use crate::descriptors::layout::Transpose;
use crate::descriptors::pool::{Average, GlobalAverage, Maximum, Windows};
use crate::descriptors::{Add, Relu};
use crate::kernel::Kernel;
use candle_core::Result;

impl Kernel<Cuda> for Relu {
    fn forward(&self, pass: &Pass, x: &[Floats], y: Floats) -> Result<Vec<Block>> {
        launch!(pass.stream, y.kernel("relu"), wide y.len; y.len, x[0], y)?;
        Ok(vec![])
    }

    fn backward(&self, pass: &Pass, at: At<'_, '_>, dy: Block, dx: &mut [Grad<'_>]) -> Result<()> {
        mask(&pass.stream, at.y, dy.floats())?;
        dx[0].give(&pass.stream, dy)
    }
}

impl Kernel<Cuda> for Add {
    fn forward(&self, pass: &Pass, x: &[Floats], y: Floats) -> Result<Vec<Block>> {
        launch!(pass.stream, y.kernel("sum"), wide y.len; y.len, x[0], x[1], y, self.relu)?;
        Ok(vec![])
    }

    fn backward(&self, pass: &Pass, at: At<'_, '_>, dy: Block, dx: &mut [Grad<'_>]) -> Result<()> {
        if self.relu {
            mask(&pass.stream, at.y, dy.floats())?;
        }
        dx[0].add(&pass.stream, dy.floats())?;
        dx[1].give(&pass.stream, dy)
    }
}

impl Kernel<Cuda> for Transpose {
    fn forward(&self, pass: &Pass, x: &[Floats], y: Floats) -> Result<Vec<Block>> {
        transpose(&pass.stream, x[0], y, [self.rows, self.columns], false)?;
        Ok(vec![])
    }

    fn backward(&self, pass: &Pass, _: At<'_, '_>, dy: Block, dx: &mut [Grad<'_>]) -> Result<()> {
        let stream = &pass.stream;
        dx[0].write(stream, |to, add| {
            transpose(stream, dy.floats(), to, [self.columns, self.rows], add)
        })
    }
}

/// The kernels have a struct of seven integers of 32 bits.
impl Argument for Windows {
    type Raw = [i32; 7];

    fn raw(&self) -> Result<Self::Raw> {
        let sizes = [
            self.height,
            self.width,
            self.channels,
            self.out_height,
            self.out_width,
            self.kernel,
            self.stride,
        ];
        sizes.raw()
    }
}

impl Kernel<Cuda> for Average {
    fn forward(&self, pass: &Pass, x: &[Floats], y: Floats) -> Result<Vec<Block>> {
        launch!(pass.stream, y.kernel("average"), elements y.len; y.len, x[0], y, self.0)?;
        Ok(vec![])
    }

    fn backward(&self, pass: &Pass, _: At<'_, '_>, dy: Block, dx: &mut [Grad<'_>]) -> Result<()> {
        dx[0].write(&pass.stream, |to, add| {
            let name = to.kernel("average_backward");
            launch!(pass.stream, name, elements to.len; to.len, dy.floats(), to, self.0, add)
        })
    }
}

impl Kernel<Cuda> for Maximum {
    fn forward(&self, pass: &Pass, x: &[Floats], y: Floats) -> Result<Vec<Block>> {
        launch!(pass.stream, y.kernel("maximum"), elements y.len; y.len, x[0], y, self.0)?;
        Ok(vec![])
    }

    fn backward(&self, pass: &Pass, at: At<'_, '_>, dy: Block, dx: &mut [Grad<'_>]) -> Result<()> {
        dx[0].write(&pass.stream, |to, add| {
            let name = to.kernel("maximum_backward");
            launch!(pass.stream, name, elements to.len; to.len, at.x[0], at.y, dy.floats(), to, self.0, add)
        })
    }
}

impl Kernel<Cuda> for GlobalAverage {
    fn forward(&self, pass: &Pass, x: &[Floats], y: Floats) -> Result<Vec<Block>> {
        let pixels = self.pixels;
        let channels = self.channels;
        let name = y.kernel("global_average");
        launch!(pass.stream, name, elements y.len; y.len, x[0], y, pixels, channels)?;
        Ok(vec![])
    }

    fn backward(&self, pass: &Pass, _: At<'_, '_>, dy: Block, dx: &mut [Grad<'_>]) -> Result<()> {
        dx[0].write(&pass.stream, |to, add| {
            let name = to.kernel("global_average_backward");
            let pixels = self.pixels;
            let channels = self.channels;
            launch!(pass.stream, name, elements to.len; to.len, dy.floats(), to, pixels, channels, add)
        })
    }
}
