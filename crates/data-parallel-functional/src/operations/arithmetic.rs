//! Differences of two values, and a value with numbers.

use super::activations::Activation;
use crate::cpu::activation::{inlined, map};
use crate::cpu::buffer::Buffer;
use crate::cpu::gradient::{At, Grad, Pass};
use crate::graph::value::Value;
use crate::kernel::{Cpu, Kernel, SelfContained};
use candle_core::{Result, Tensor};
use std::ops::{Add, Mul, Sub};

impl Value {
    /// x · scale + shift of each element. `&x * 2.` and `&x + 1.` are this as well.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let x = Value::new(&Tensor::new(&[1f32, 2.], &Device::Cpu)?)?;
    /// assert_eq!(x.affine(10., -1.)?.eval()?.to_vec1::<f32>()?, [9., 19.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where it is not f32.
    pub fn affine(&self, scale: f32, shift: f32) -> Result<Self> {
        let affine = Activation::Affine { scale, shift };
        self.self_contained("affine", affine, &[], self.dims())
    }
}

/// The product of each element and a number.
impl Mul<f32> for &Value {
    type Output = Result<Value>;

    fn mul(self, scale: f32) -> Result<Value> {
        self.affine(scale, 0.)
    }
}

/// The sum of each element and a number.
impl Add<f32> for &Value {
    type Output = Result<Value>;

    fn add(self, shift: f32) -> Result<Value> {
        self.affine(1., shift)
    }
}

/// The elementwise difference of two values of f32 with the same shape.
impl Sub for &Value {
    type Output = Result<Value>;

    fn sub(self, other: Self) -> Result<Value> {
        self.check_same("sub", other)?;
        self.self_contained_with("sub", Difference, &[("other", other)], self.dims())
    }
}

/// x − other.
#[derive(Debug, Clone, Copy)]
struct Difference;

impl SelfContained for Difference {
    fn with_candle(&self, x: &[Tensor]) -> Result<Tensor> {
        &x[0] - &x[1]
    }
}

impl Kernel<Cpu> for Difference {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        map(y, [x[0], x[1]], inlined!(|_, [x, other]| x - other));
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, _: At<'_, '_>, mut dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        dx[0].add(&dy);
        if dx[1].wanted() {
            map(&mut dy, [], inlined!(|dy, []| -dy));
            dx[1].give(dy);
        }
        Ok(())
    }
}
