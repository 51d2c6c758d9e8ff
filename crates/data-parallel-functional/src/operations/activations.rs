//! Functions of each element: sigmoid, tanh, SiLU, GELU, the limits of a range, ReLU6 among them, and x · scale + shift.

use crate::cpu::activation::{inlined, map};
use crate::cpu::buffer::Buffer;
use crate::cpu::exp::{normal, sigmoid, tanh};
use crate::cpu::gradient::{At, Grad, Pass};
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
        self.self_contained("gelu", Activation::Gelu, &[], self.dims())
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
        let clamp = Activation::Clamp {
            least: 0.,
            most: 6.,
            is_open: true,
        };
        self.self_contained("relu6", clamp, &[], self.dims())
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
        let clamp = Activation::Clamp {
            least,
            most,
            is_open: false,
        };
        self.self_contained("clamp", clamp, &[], self.dims())
    }
}

/// A function of each element.
#[derive(Debug, Clone, Copy)]
pub(super) enum Activation {
    Sigmoid,
    Tanh,
    Silu,
    /// x · Φ(x), where Φ is the distribution function of the normal distribution.
    Gelu,
    Clamp {
        least: f32,
        most: f32,
        /// True if the gradient is 0 at both ends.
        is_open: bool,
    },
    /// x · scale + shift.
    Affine {
        scale: f32,
        shift: f32,
    },
}

impl SelfContained for Activation {
    fn with_candle(&self, x: &[Tensor]) -> Result<Tensor> {
        let x = &x[0];
        match *self {
            Self::Sigmoid => sigmoid_of(x),
            Self::Tanh => x.tanh(),
            Self::Silu => x * sigmoid_of(x)?,
            Self::Gelu => x.gelu_erf(),
            Self::Clamp {
                least,
                most,
                is_open,
            } => {
                let is_inside = if is_open {
                    (x.gt(least)? * x.lt(most)?)?
                } else {
                    (x.ge(least)? * x.le(most)?)?
                };
                let limited = x.clamp(least, most)?.detach();
                (is_inside + x.ne(x)?)?.where_cond(x, &limited)
            }
            Self::Affine { scale, shift } => x.affine(f64::from(scale), f64::from(shift)),
        }
    }
}

/// By tanh, whose gradient candle computes right for large numbers as well.
pub(super) fn sigmoid_of(x: &Tensor) -> Result<Tensor> {
    (x * 0.5)?.tanh()?.affine(0.5, 0.5)
}

impl Kernel<Cpu> for Activation {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let x = [x[0]];
        match *self {
            Self::Sigmoid => map(y, x, inlined!(|_, [x]| sigmoid(x))),
            Self::Tanh => map(y, x, inlined!(|_, [x]| tanh(x))),
            Self::Silu => map(y, x, inlined!(|_, [x]| x * sigmoid(x))),
            Self::Gelu => map(y, x, inlined!(|_, [x]| x * normal(x).0)),
            Self::Clamp { least, most, .. } => {
                map(y, x, inlined!(|_, [x]: [f32; 1]| x.clamp(least, most)));
            }
            Self::Affine { scale, shift } => map(y, x, inlined!(|_, [x]| x * scale + shift)),
        }
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, at: At<'_, '_>, mut dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        let d = &mut dy[..];
        let x = [at.x[0]];
        let y = [at.y];
        match *self {
            Self::Sigmoid => map(d, y, inlined!(|dy, [y]| dy * y * (1. - y))),
            Self::Tanh => map(d, y, inlined!(|dy, [y]| dy * (1. - y * y))),
            Self::Silu => map(
                d,
                x,
                inlined!(|dy, [x]| {
                    let y = sigmoid(x);
                    dy * y * (1. + x * (1. - y))
                }),
            ),
            Self::Gelu => map(
                d,
                x,
                inlined!(|dy, [x]| {
                    let (below, density) = normal(x);
                    dy * (below + x * density)
                }),
            ),
            Self::Clamp {
                least,
                most,
                is_open: true,
            } => map(
                d,
                x,
                inlined!(|dy, [x]| if x <= least || x >= most { 0. } else { dy }),
            ),
            Self::Clamp { least, most, .. } => map(
                d,
                x,
                inlined!(|dy, [x]| if x < least || x > most { 0. } else { dy }),
            ),
            Self::Affine { scale, .. } => map(d, [], inlined!(|dy, []| dy * scale)),
        }
        dx[0].give(dy);
        Ok(())
    }
}
