//! Differences of two values, and a value with numbers.

use crate::cpu::buffer::Buffer;
use crate::cpu::gradient::{At, CHUNK, Grad, Pass};
use crate::cpu::threads::for_each_chunk;
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
        self.self_contained("affine", Affine { scale, shift }, &[], self.dims())
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

/// x · scale + shift.
#[derive(Debug, Clone, Copy)]
struct Affine {
    scale: f32,
    shift: f32,
}

impl SelfContained for Affine {
    fn on_cpu(&self) -> Box<dyn Kernel<Cpu>> {
        Box::new(*self)
    }

    fn with_candle(&self, x: &[Tensor]) -> Result<Tensor> {
        x[0].affine(f64::from(self.scale), f64::from(self.shift))
    }
}

impl Kernel<Cpu> for Affine {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let Self { scale, shift } = *self;
        for_each_chunk(
            y,
            CHUNK,
            #[inline(always)]
            |i, y| {
                for (y, x) in y.iter_mut().zip(&x[0][i * CHUNK..]) {
                    *y = x * scale + shift;
                }
            },
        );
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, _: At<'_, '_>, mut dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        scale(&mut dy, self.scale);
        dx[0].give(dy);
        Ok(())
    }
}

fn scale(values: &mut [f32], by: f32) {
    for_each_chunk(
        values,
        CHUNK,
        #[inline(always)]
        |_, values| values.iter_mut().for_each(|value| *value *= by),
    );
}

/// x − other.
#[derive(Debug, Clone, Copy)]
struct Difference;

impl SelfContained for Difference {
    fn on_cpu(&self) -> Box<dyn Kernel<Cpu>> {
        Box::new(*self)
    }

    fn with_candle(&self, x: &[Tensor]) -> Result<Tensor> {
        &x[0] - &x[1]
    }
}

impl Kernel<Cpu> for Difference {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        for_each_chunk(
            y,
            CHUNK,
            #[inline(always)]
            |i, y| {
                let both = x[0][i * CHUNK..].iter().zip(&x[1][i * CHUNK..]);
                for (y, (x, other)) in y.iter_mut().zip(both) {
                    *y = x - other;
                }
            },
        );
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, _: At<'_, '_>, mut dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        dx[0].add(&dy);
        if dx[1].wanted() {
            scale(&mut dy, -1.);
            dx[1].give(dy);
        }
        Ok(())
    }
}
