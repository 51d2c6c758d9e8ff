//! The 5 × 5 convolution with ReLU and average pooling of 2 × 2 windows, by Winograd's F(4×4, 5×5): 64
//! products in place of 400 for 16 outputs. A tile is four windows, so that the convolution's output
//! never leaves the registers. It knows no other kernel, stride or padding.
//!
//! Winograd's sums of zeros are not exactly zero. So outputs of which all inputs are zero are set to the bias, if all
//! weights are finite. Otherwise a black background would fall on a random side of ReLU's edge.

mod passes;
mod sizes;
mod tiles;
mod weights;

use crate::cpu::buffer::Buffer;
use crate::cpu::gradient::{At, Grad, Pass};
use crate::kernel::{Cpu, Kernel};
use candle_core::Result;
use passes::Backward;
pub(crate) use sizes::Pooled;

impl Kernel<Cpu> for Pooled {
    fn forward(&self, pass: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let mut positive = Buffer::new(if pass.keep { y.len() } else { 0 });
        self.convolve(x[0], x[1], x.get(2).copied(), y, &mut positive);
        Ok(vec![positive])
    }

    fn backward(&self, _: &Pass, at: At<'_, '_>, dy: Buffer, grads: &mut [Grad<'_>]) -> Result<()> {
        let mut dx = grads[0].wanted().then(|| Buffer::new(at.x[0].len()));
        let mut dw = Buffer::new(at.x[1].len());
        let mut db = Buffer::new(self.g.out_channels);
        Backward {
            pooled: self,
            x: at.x[0],
            weight: at.x[1],
            positive: &at.saved[0],
            dy: &dy,
        }
        .run(dx.as_deref_mut(), &mut dw, &mut db);
        for (grad, part) in grads.iter_mut().zip([dx, Some(dw), Some(db)]) {
            part.into_iter().for_each(|part| grad.give(part));
        }
        Ok(())
    }
}
