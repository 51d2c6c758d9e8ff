//! GELU.

use crate::cpu::buffer::Buffer;
use crate::cpu::exp::normal;
use crate::cpu::gradient::{At, CHUNK, Grad, Pass};
use crate::cpu::threads::for_each_chunk;
use crate::graph::value::Value;
use crate::kernel::{Cpu, Kernel, SelfContained};
use candle_core::{Result, Tensor};

impl Value {
    /// x · Φ(x) of each element, where Φ is the distribution function of the normal distribution: PyTorch's `nn.GELU()`.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let x = Tensor::new(&[-1f32, 0., 1.], &Device::Cpu)?;
    /// let y = Value::new(&x)?.gelu()?.eval()?.to_vec1::<f32>()?;
    /// assert!((y[0] + 0.15866).abs() < 1e-5 && y[1] == 0. && (y[2] - 0.84134).abs() < 1e-5);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where it is not f32.
    pub fn gelu(&self) -> Result<Self> {
        self.self_contained("gelu", Gelu, &[], self.dims())
    }
}

/// x · Φ(x), where Φ is the distribution function of the normal distribution.
#[derive(Debug, Clone, Copy)]
struct Gelu;

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
