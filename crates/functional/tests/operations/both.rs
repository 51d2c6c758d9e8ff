//! A network of ours beside the same network of the reference.

use crate::reference;
use crate::support::{assert_results, pass, reference_pass, tensors, upstream, variables};
use candle_core::{Result, Tensor, Var};
use functional::{Network, Value, candle};

/// A value, and what the reference computes for it.
#[derive(Clone)]
pub struct Both {
    pub ours: Value,
    pub reference: Tensor,
}

impl Both {
    pub fn new(x: &Tensor) -> Result<Self> {
        Self::of(Value::new(x), Ok(x.clone()))
    }

    fn of(ours: Result<Value>, reference: Result<Tensor>) -> Result<Self> {
        let (ours, reference) = (ours?, reference?);
        assert_eq!(ours.dims(), reference.dims());
        Ok(Self { ours, reference })
    }

    pub fn nhwc(&self) -> Result<Self> {
        Self::of(self.ours.nhwc(), reference::nhwc(&self.reference))
    }

    pub fn flatten(&self) -> Result<Self> {
        Self::of(self.ours.flatten(), reference::flatten(&self.reference))
    }

    pub fn relu(&self) -> Result<Self> {
        Self::of(self.ours.relu(), reference::relu(&self.reference))
    }

    pub fn plus(&self, other: &Self) -> Result<Self> {
        let sum = reference::add(&self.reference, &other.reference);
        Self::of(&self.ours + &other.ours, sum)
    }

    pub fn conv2d(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        stride: usize,
        padding: usize,
    ) -> Result<Self> {
        let reference = reference::conv2d(&self.reference, weight, bias, stride, padding);
        Self::of(self.ours.conv2d(weight, bias, stride, padding), reference)
    }

    pub fn avg_pool2d(&self, kernel: usize, stride: usize) -> Result<Self> {
        let reference = reference::avg_pool2d(&self.reference, kernel, stride);
        Self::of(self.ours.avg_pool2d(kernel, stride), reference)
    }

    pub fn max_pool2d(&self, kernel: usize, stride: usize) -> Result<Self> {
        let reference = reference::max_pool2d(&self.reference, kernel, stride);
        Self::of(self.ours.max_pool2d(kernel, stride), reference)
    }

    pub fn global_avg_pool2d(&self) -> Result<Self> {
        let reference = reference::global_avg_pool2d(&self.reference);
        Self::of(self.ours.global_avg_pool2d(), reference)
    }

    pub fn linear(&self, weight: &Tensor, bias: Option<&Tensor>) -> Result<Self> {
        let reference = reference::linear(&self.reference, weight, bias);
        Self::of(self.ours.linear(weight, bias), reference)
    }

    pub fn matmul(&self, weight: &Tensor, bias: Option<&Tensor>) -> Result<Self> {
        let reference = reference::matmul(&self.reference, weight, bias);
        Self::of(self.ours.matmul(weight, bias), reference)
    }

    /// With running statistics for ours, and for the reference.
    pub fn batch_norm2d(
        &self,
        weight: &Tensor,
        bias: &Tensor,
        running: &[[Var; 2]; 2],
        train: bool,
    ) -> Result<Self> {
        let [[mean, var], [mean_there, var_there]] = running;
        let x = &self.reference;
        let reference = reference::batch_norm2d(x, weight, bias, mean_there, var_there, train);
        let ours = self.ours.batch_norm2d(weight, bias, mean, var, train);
        Self::of(ours, reference)
    }

    pub fn cross_entropy(&self, y: &Tensor) -> Result<Self> {
        let reference = reference::cross_entropy(&self.reference, y);
        Self::of(self.ours.cross_entropy(y), reference)
    }

    pub fn sum(&self) -> Result<Self> {
        Self::of(self.ours.sum(), reference::sum(&self.reference))
    }

    /// A function of candle's operations, which is an operation of ours.
    pub fn candle(&self, f: impl Fn(&Tensor) -> Result<Tensor> + 'static) -> Result<Self> {
        let reference = f(&self.reference);
        Self::of(candle(f).forward(&self.ours, true), reference)
    }
}

/// Checks that both sides of a network of variables agree, in the value and in all gradients.
pub fn assert_both(inputs: &[Tensor], tolerance: f64, network: impl Fn(&[Tensor]) -> Result<Both>) {
    let vars = variables(inputs).unwrap();
    let Both { ours, reference } = network(&tensors(&vars)).unwrap();
    let up = upstream(ours.dims());
    let theirs = reference_pass(&vars, &reference, &up).unwrap();
    assert_results(&pass(&vars, &ours, up).unwrap(), &theirs, tolerance);
}
