//! A training step that one GPU repeats as a whole, for `--cuda-graph`.

use candle_core::{Device, Result, Tensor};
use functional::Repeated;

use crate::BatchLoss;

/// A training step that is recorded and repeated ([`Repeated`]): each minibatch is copied to where the first one of
/// its size lay. Where there is nothing to record it is just called.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// use d2l::{BatchLoss, Recorded};
///
/// let step = |x: &Tensor, y: &Tensor| Ok(BatchLoss::new(vec![x.sum_all()?], y.dim(0)?));
/// let mut step = Recorded::new(None, step);
/// let x = Tensor::new(&[1f32, 2.0], &Device::Cpu)?;
/// assert_eq!(step.call(&x, &x)?.mean()?, 1.5);
/// # candle_core::Result::Ok(())
/// ```
pub struct Recorded<F> {
    step: F,
    device: Option<Device>,
    sizes: Vec<OfSize>,
}

/// The step for minibatches of one size, and what it reads and writes.
struct OfSize {
    x: Tensor,
    y: Tensor,
    /// The losses' sum, (1,).
    sum: Tensor,
    step: Repeated,
}

impl<F: Fn(&Tensor, &Tensor) -> Result<BatchLoss>> Recorded<F> {
    /// `step` on `device`, the only one that it uses; with none it is never recorded.
    pub fn new(device: Option<&Device>, step: F) -> Self {
        Self {
            step,
            device: device.cloned(),
            sizes: Vec::new(),
        }
    }

    /// Takes the step on a minibatch.
    ///
    /// # Errors
    /// As of the step; and where it cannot be recorded.
    pub fn call(&mut self, x: &Tensor, y: &Tensor) -> Result<BatchLoss> {
        let Some(device) = &self.device else {
            return (self.step)(x, y);
        };
        let number = match self.sizes.iter().position(|of| of.x.dims() == x.dims()) {
            Some(number) => number,
            None => {
                self.sizes.push(OfSize::new(device, x, y)?);
                self.sizes.len() - 1
            }
        };
        let of = &mut self.sizes[number];
        of.x.slice_set(x, 0, 0)?;
        of.y.slice_set(y, 0, 0)?;
        of.step.run(|| {
            let sum = (self.step)(&of.x, &of.y)?.sum()?;
            of.sum.slice_set(&sum.reshape(1)?, 0, 0)
        })?;
        let sum = of.sum.copy()?.reshape(())?; // the next step writes over it
        Ok(BatchLoss::new(vec![sum], x.dim(0)?))
    }
}

impl OfSize {
    fn new(device: &Device, x: &Tensor, y: &Tensor) -> Result<Self> {
        let like = |t: &Tensor| Tensor::zeros(t.shape(), t.dtype(), device);
        Ok(Self {
            x: like(x)?,
            y: like(y)?,
            sum: Tensor::zeros(1, candle_core::DType::F32, device)?,
            step: Repeated::new(device),
        })
    }
}
