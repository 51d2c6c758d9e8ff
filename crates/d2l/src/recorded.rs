//! A training step that one GPU repeats as a whole, for `--cuda-graph`.

use candle_core::{DType, Device, Result, Tensor};
use functional::Repeated;

use crate::BatchLoss;

/// A training step that is recorded and repeated ([`Repeated`]): each minibatch is copied to where the first one of
/// its size lay. Where there is nothing to record it is just called.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// use d2l::{BatchLoss, Recorded};
///
/// let mut recorded = Recorded::new(None);
/// let x = Tensor::new(&[1f32, 2.0], &Device::Cpu)?;
/// let step = |x: &Tensor, y: &Tensor| Ok(BatchLoss::new(vec![x.sum_all()?], y.dim(0)?));
/// assert_eq!(recorded.step(&x, &x, step)?.mean()?, 1.5);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct Recorded {
    device: Option<Device>,
    sizes: Vec<OfSize>,
}

/// The step for minibatches of one size, and what it reads and writes.
#[derive(Debug)]
struct OfSize {
    x: Tensor,
    y: Tensor,
    /// The sum of the examples' losses, (1,).
    sum: Tensor,
    repeated: Repeated,
}

impl Recorded {
    /// On `device`, the only one that the step uses; call `functional::one_stream` with it before. No other
    /// thread may give it work in a step: use [`DataIter::when_asked`](dataset::DataIter::when_asked). Without
    /// a device nothing is recorded.
    pub fn new(device: Option<&Device>) -> Self {
        Self {
            device: device.cloned(),
            sizes: Vec::new(),
        }
    }

    /// Takes `step` on a minibatch. It has to be the same step each time, with the same parameters and the same
    /// learning rate: once it is recorded, none of its code runs on the host any more.
    ///
    /// # Errors
    /// As of the step; and where it cannot be recorded.
    pub fn step(
        &mut self,
        x: &Tensor,
        y: &Tensor,
        step: impl FnOnce(&Tensor, &Tensor) -> Result<BatchLoss>,
    ) -> Result<BatchLoss> {
        let Some(device) = &self.device else {
            return step(x, y);
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
        of.repeated.run(|| {
            let sum = step(&of.x, &of.y)?.sum()?;
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
            sum: Tensor::zeros(1, DType::F32, device)?,
            repeated: Repeated::new(device),
        })
    }
}
