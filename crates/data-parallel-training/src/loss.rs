//! The loss of a minibatch, which stays on the devices that computed it until it is read.

use std::sync::{Arc, OnceLock};

use candle_core::{Result, Tensor};

/// The loss of a minibatch over all devices. Reading it waits for the devices, so a training loop
/// passes it to an [`Unread`](crate::Unread), which on a GPU reads it some steps later.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// // the sums over two examples on one device, and over one on another
/// let sums = vec![Tensor::new(5f32, &Device::Cpu)?, Tensor::new(1f32, &Device::Cpu)?];
/// assert_eq!(data_parallel_training::BatchLoss::new(sums, 3).mean()?, 2.0);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Debug, Clone)]
pub struct BatchLoss {
    sums: Vec<Tensor>,
    examples: usize,
    divisor: f64,
    /// The mean, once it was read: by this loss or a clone of it.
    read: Arc<OnceLock<f32>>,
}

impl BatchLoss {
    /// From the sum of the examples' losses on each device, scalars, and the number of examples on all.
    pub fn new(sums: Vec<Tensor>, examples: usize) -> Self {
        // detached: a graph would keep the step's memory
        let sums = sums.into_iter().map(|sum| sum.detach()).collect();
        Self {
            sums,
            examples,
            divisor: examples as f64,
            read: Arc::default(),
        }
    }

    /// Divides by another number than that of the examples, such as that of the tokens.
    pub fn divided_by(self, divisor: f64) -> Self {
        Self {
            divisor,
            read: Arc::default(),
            ..self
        }
    }

    /// Examples in the minibatch.
    pub fn examples(&self) -> usize {
        self.examples
    }

    /// Divisor that makes the sum of the losses a mean: the number of examples, or another, such as that of the tokens.
    pub fn divisor(&self) -> f64 {
        self.divisor
    }

    /// The mean loss of an example; waits until the devices have computed it, the first time. It is NaN or infinite where
    /// the [divisor](Self::divisor) is 0, as of a minibatch of padding alone: that has no mean.
    ///
    /// # Errors
    /// If a device fails.
    pub fn mean(&self) -> Result<f32> {
        if let Some(mean) = self.read.get() {
            return Ok(*mean);
        }
        let sums = self.sums.iter().map(Tensor::to_scalar::<f32>);
        Ok(self.was_read(sums.sum::<Result<f32>>()?))
    }

    /// Keeps what was read, for clones of this loss. Returns the mean.
    fn was_read(&self, sum: f32) -> f32 {
        *self.read.get_or_init(|| sum / self.divisor as f32)
    }

    /// The mean losses of several minibatches; waits once for each replica's device, not for each loss.
    pub(crate) fn means(losses: &[Self]) -> Result<Vec<f32>> {
        let unread: Vec<&Self> = losses
            .iter()
            .filter(|loss| loss.read.get().is_none())
            .collect();
        let replicas = unread.first().map_or(0, |loss| loss.sums.len());
        let alike = unread.iter().all(|loss| loss.sums.len() == replicas);
        if unread.len() > 1 && alike {
            let mut totals = vec![0f32; unread.len()];
            for replica in 0..replicas {
                let sums: Vec<&Tensor> = unread.iter().map(|loss| &loss.sums[replica]).collect();
                let sums = Tensor::stack(&sums, 0)?.to_vec1::<f32>()?;
                totals.iter_mut().zip(sums).for_each(|(t, sum)| *t += sum);
            }
            for (loss, total) in unread.iter().zip(totals) {
                loss.was_read(total);
            }
        }
        losses.iter().map(Self::mean).collect()
    }

    /// True if it can be read without waiting: it is on the CPU, or was read before.
    pub(crate) fn is_at_hand(&self) -> bool {
        self.read.get().is_some() || self.sums.iter().all(|sum| sum.device().is_cpu())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn many_are_read_as_each_of_them() -> Result<()> {
        let loss = |sums: &[f32], examples| -> Result<BatchLoss> {
            let sums = sums.iter().map(|sum| Tensor::new(*sum, &Device::Cpu));
            Ok(BatchLoss::new(sums.collect::<Result<_>>()?, examples))
        };
        let mut losses = vec![loss(&[0.1, 0.7], 3)?, loss(&[1.3, 2.9], 7)?];
        let one_by_one = |losses: &[BatchLoss]| losses.iter().map(BatchLoss::mean).collect();
        let expected: Result<Vec<f32>> = one_by_one(&losses);
        assert_eq!(BatchLoss::means(&losses)?, expected?);
        losses.push(loss(&[5.0], 1)?); // of a minibatch too small for two replicas
        let expected: Result<Vec<f32>> = one_by_one(&losses);
        assert_eq!(BatchLoss::means(&losses)?, expected?);
        assert!(BatchLoss::means(&[])?.is_empty());
        Ok(())
    }
}
