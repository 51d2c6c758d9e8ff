//! The loss of a minibatch, which stays on the devices that computed it until somebody reads it.

use candle_core::{Result, Tensor};

/// The loss of a minibatch over all devices. To read it is to wait for the devices, so a training loop
/// hands it on, and [`Run::step`](crate::Run::step) reads it now and then.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// // the sums over two examples on one device, and over one on another
/// let sums = vec![Tensor::new(5f32, &Device::Cpu)?, Tensor::new(1f32, &Device::Cpu)?];
/// assert_eq!(d2l::BatchLoss::new(sums, 3).mean()?, 2.0);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Debug, Clone)]
pub struct BatchLoss {
    sums: Vec<Tensor>,
    examples: usize,
}

impl BatchLoss {
    /// From the sum of the examples' losses on each device, scalars, and the number of examples on all.
    pub fn new(sums: Vec<Tensor>, examples: usize) -> Self {
        // detached: a graph would keep the step's memory
        let sums = sums.into_iter().map(|sum| sum.detach()).collect();
        Self { sums, examples }
    }

    /// Examples in the minibatch.
    pub fn examples(&self) -> usize {
        self.examples
    }

    /// The mean loss of an example; waits until the devices have computed it.
    ///
    /// # Errors
    /// If a device fails.
    pub fn mean(&self) -> Result<f32> {
        let sums = self.sums.iter().map(Tensor::to_scalar::<f32>);
        Ok(sums.sum::<Result<f32>>()? / self.examples as f32)
    }

    /// Whether nobody has to wait for it.
    pub(crate) fn is_at_hand(&self) -> bool {
        self.sums.iter().all(|sum| sum.device().is_cpu())
    }
}
