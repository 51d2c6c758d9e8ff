//! ReLU, and the sum of two values with or without it; for any shape.

use crate::cpu::buffer::Buffer;
use crate::cpu::gradient::{At, CHUNK, Grad, Pass};
use crate::cpu::threads::for_each_chunk;
use crate::descriptors::{Add, Relu};
use crate::kernel::{Cpu, Kernel};
use candle_core::Result;

/// The positive part; NaN stays.
#[inline(always)]
pub(crate) fn positive(v: f32) -> f32 {
    if v <= 0. { 0. } else { v }
}

/// Zeros in `dy` where ReLU's result `y` is not positive.
#[inline(always)]
pub(crate) fn mask(y: &[f32], dy: &mut [f32]) {
    for (y, dy) in y.iter().zip(dy) {
        // both read first: then the choice needs no branch, which would be mispredicted
        let y = *y;
        let d = *dy;
        *dy = if y <= 0. { 0. } else { d };
    }
}

/// [`mask`], by chunks.
pub(crate) fn mask_all(y: &[f32], dy: &mut [f32]) {
    for_each_chunk(
        dy,
        CHUNK,
        #[inline(always)]
        |i, dy| mask(&y[i * CHUNK..], dy),
    );
}

impl Kernel<Cpu> for Relu {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        for_each_chunk(
            y,
            CHUNK,
            #[inline(always)]
            |i, y| {
                for (y, x) in y.iter_mut().zip(&x[0][i * CHUNK..]) {
                    *y = positive(*x);
                }
            },
        );
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, at: At<'_, '_>, mut dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        mask_all(at.y, &mut dy);
        dx[0].give(dy);
        Ok(())
    }
}

impl Kernel<Cpu> for Add {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        for_each_chunk(
            y,
            CHUNK,
            #[inline(always)]
            |i, y| {
                let values = x[0][i * CHUNK..].iter().zip(&x[1][i * CHUNK..]);
                for (y, (a, b)) in y.iter_mut().zip(values) {
                    *y = if self.relu { positive(a + b) } else { a + b };
                }
            },
        );
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, at: At<'_, '_>, mut dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        if self.relu {
            mask_all(at.y, &mut dy);
        }
        dx[0].add(&dy);
        dx[1].give(dy);
        Ok(())
    }
}
