//! Functions of each element: sigmoid, tanh, SiLU, ReLU6 and the limits of a range.

use crate::cpu::buffer::Buffer;
use crate::cpu::exp::{sigmoid, tanh};
use crate::cpu::gradient::{At, CHUNK, Grad, Pass};
use crate::cpu::threads::for_each_chunk;
use crate::graph::value::Value;
use crate::kernel::{Cpu, Kernel, SelfContained};
use candle_core::{Result, Tensor, bail};

impl Value {
    /// 1 / (1 + e⁻ˣ) of each element: PyTorch's `torch.sigmoid`.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let x = Tensor::new(&[-100f32, 0., 100.], &Device::Cpu)?;
    /// assert_eq!(Value::new(&x)?.sigmoid()?.eval()?.to_vec1::<f32>()?[1..], [0.5, 1.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where it is not f32.
    pub fn sigmoid(&self) -> Result<Self> {
        self.self_contained("sigmoid", Activation::Sigmoid, &[], self.dims())
    }

    /// The hyperbolic tangent of each element.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let x = Tensor::new(&[-100f32, 0., 100.], &Device::Cpu)?;
    /// assert_eq!(Value::new(&x)?.tanh()?.eval()?.to_vec1::<f32>()?, [-1., 0., 1.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where it is not f32.
    pub fn tanh(&self) -> Result<Self> {
        self.self_contained("tanh", Activation::Tanh, &[], self.dims())
    }

    /// x / (1 + e⁻ˣ) of each element, which is also called swish: PyTorch's `nn.SiLU()`.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let y = Value::new(&Tensor::new(&[0f32, 1.], &Device::Cpu)?)?.silu()?.eval()?.to_vec1::<f32>()?;
    /// assert!(y[0] == 0. && (y[1] - 0.731_058_6).abs() < 1e-6);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where it is not f32.
    pub fn silu(&self) -> Result<Self> {
        self.self_contained("silu", Activation::Silu, &[], self.dims())
    }

    /// Each element, at least 0 and at most 6: PyTorch's `nn.ReLU6()`, whose gradient is 0 at both ends.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let x = Tensor::new(&[-1f32, 5., 7.], &Device::Cpu)?;
    /// assert_eq!(Value::new(&x)?.relu6()?.eval()?.to_vec1::<f32>()?, [0., 5., 6.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where it is not f32.
    pub fn relu6(&self) -> Result<Self> {
        self.self_contained("relu6", Activation::Relu6, &[], self.dims())
    }

    /// Each element, at least `least` and at most `most`: PyTorch's `torch.clamp`, whose gradient at both ends is that of
    /// the element.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let x = Tensor::new(&[-2f32, 0.5, 2.], &Device::Cpu)?;
    /// assert_eq!(Value::new(&x)?.clamp(-1., 1.)?.eval()?.to_vec1::<f32>()?, [-1., 0.5, 1.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where it is not f32, or `least` is above `most` or one is NaN.
    pub fn clamp(&self, least: f32, most: f32) -> Result<Self> {
        if least > most || least.is_nan() || most.is_nan() {
            bail!("clamp: from {least} to {most}, expected a range")
        }
        let clamp = Activation::Clamp { least, most };
        self.self_contained("clamp", clamp, &[], self.dims())
    }
}

/// A function of each element.
#[derive(Debug, Clone, Copy)]
enum Activation {
    Sigmoid,
    Tanh,
    Silu,
    Relu6,
    Clamp { least: f32, most: f32 },
}

impl SelfContained for Activation {
    fn on_cpu(&self) -> Box<dyn Kernel<Cpu>> {
        Box::new(*self)
    }

    fn with_candle(&self, x: &[Tensor]) -> Result<Tensor> {
        let x = &x[0];
        let inside =
            |is_inside: Tensor, limited: Tensor| is_inside.where_cond(x, &limited.detach());
        match *self {
            Self::Sigmoid => sigmoid_of(x),
            Self::Tanh => x.tanh(),
            Self::Silu => x * sigmoid_of(x)?,
            Self::Relu6 => {
                let is_inside = (x.gt(0.)? * x.lt(6.)?)?;
                inside((is_inside + x.ne(x)?)?, x.clamp(0., 6.)?)
            }
            Self::Clamp { least, most } => {
                let is_inside = (x.ge(least)? * x.le(most)?)?;
                inside((is_inside + x.ne(x)?)?, x.clamp(least, most)?)
            }
        }
    }
}

/// By tanh, whose gradient candle computes right for large numbers as well.
pub(super) fn sigmoid_of(x: &Tensor) -> Result<Tensor> {
    (x * 0.5)?.tanh()?.affine(0.5, 0.5)
}

/// Calls `f` with each element of `y` and that of `x`, and writes what it returns to `y`.
fn map(y: &mut [f32], x: &[f32], f: impl Fn(f32, f32) -> f32 + Sync) {
    for_each_chunk(
        y,
        CHUNK,
        #[inline(always)]
        |i, y| {
            for (y, x) in y.iter_mut().zip(&x[i * CHUNK..]) {
                *y = f(*y, *x);
            }
        },
    );
}

/// A function of two numbers that is compiled into its loop.
macro_rules! inline {
    ($f:expr) => {
        #[inline(always)]
        $f
    };
}

impl Kernel<Cpu> for Activation {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let x = x[0];
        match *self {
            Self::Sigmoid => map(y, x, inline!(|_, x| sigmoid(x))),
            Self::Tanh => map(y, x, inline!(|_, x| tanh(x))),
            Self::Silu => map(y, x, inline!(|_, x| x * sigmoid(x))),
            Self::Relu6 => map(y, x, inline!(|_, x: f32| x.clamp(0., 6.))),
            Self::Clamp { least, most } => map(y, x, inline!(|_, x: f32| x.clamp(least, most))),
        }
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, at: At<'_, '_>, mut dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        let x = at.x[0];
        match *self {
            Self::Sigmoid => map(&mut dy, at.y, inline!(|dy, y| dy * y * (1. - y))),
            Self::Tanh => map(&mut dy, at.y, inline!(|dy, y| dy * (1. - y * y))),
            Self::Silu => map(
                &mut dy,
                x,
                inline!(|dy, x| {
                    let y = sigmoid(x);
                    dy * y * (1. + x * (1. - y))
                }),
            ),
            Self::Relu6 => map(
                &mut dy,
                x,
                inline!(|dy, x| if x <= 0. || x >= 6. { 0. } else { dy }),
            ),
            Self::Clamp { least, most } => map(
                &mut dy,
                x,
                inline!(|dy, x| if x < least || x > most { 0. } else { dy }),
            ),
        }
        dx[0].give(dy);
        Ok(())
    }
}
