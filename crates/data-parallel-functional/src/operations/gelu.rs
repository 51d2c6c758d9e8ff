//! GELU.

use super::SelfContained;
use crate::cpu::buffer::Buffer;
use crate::cpu::exp::normal;
use crate::cpu::gradient::{At, CHUNK, Grad, Pass};
use crate::cpu::threads::for_each_chunk;
use crate::kernel::{Cpu, Kernel};
use candle_core::{Result, Tensor};

/// x · Φ(x), where Φ is the distribution function of the normal distribution.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gelu;

impl SelfContained for Gelu {
    fn on_cpu(&self) -> Box<dyn Kernel<Cpu>> {
        Box::new(*self)
    }

    fn with_candle(&self, x: &[Tensor]) -> Result<Tensor> {
        x[0].gelu_erf()
    }
}

impl Kernel<Cpu> for Gelu {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        for_each_chunk(
            y,
            CHUNK,
            #[inline(always)]
            |i, y| {
                for (y, x) in y.iter_mut().zip(&x[0][i * CHUNK..]) {
                    *y = x * normal(*x).0;
                }
            },
        );
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, at: At<'_, '_>, mut dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        for_each_chunk(
            &mut dy,
            CHUNK,
            #[inline(always)]
            |i, dy| {
                for (dy, x) in dy.iter_mut().zip(&at.x[0][i * CHUNK..]) {
                    let (below, density) = normal(*x);
                    *dy *= below + x * density;
                }
            },
        );
        dx[0].give(dy);
        Ok(())
    }
}
