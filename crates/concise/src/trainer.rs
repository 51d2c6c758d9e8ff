//! One synchronized step of all replicas.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, ensure};
use candle_core::Tensor;
use d2l::BatchLoss;
use functional::Sgd;

use crate::DataParallel;
use crate::replica::Replica;

/// The number of the next trainer; 0 is none.
static NEXT_ID: AtomicUsize = AtomicUsize::new(1);

/// A loss of each example, such as [`functional::cross_entropy`]: outputs (B, …) and labels
/// (B,) to losses (B,).
pub type Loss = fn(&Tensor, &Tensor) -> candle_core::Result<Tensor>;

/// Trains a replicated network: its [`step`](Trainer::step) is all that a training loop needs.
///
/// ```
/// use candle_core::{DType, Device, Module, Tensor};
/// use concise::{DataParallel, Initializer, Sgd, Trainer, layers::Linear};
///
/// let devices = d2l::devices_of_kind(d2l::DeviceKind::Cpu, Some(2))?;
/// let net = DataParallel::new(&devices, Initializer::Normal(0.1), 0, |vb| {
///     let fc = Linear::new(3, 2, vb)?;
///     Ok(move |x: &Tensor| fc.forward(x))
/// })?;
/// let mut trainer = Trainer::new(&net, functional::cross_entropy, Sgd::new(0.5));
/// let x = Tensor::ones((5, 3), DType::F32, &Device::Cpu)?; // three examples and two
/// let y = Tensor::zeros(5, DType::U32, &Device::Cpu)?;
/// let before = trainer.step(&x, &y)?.loss.mean()?;
/// assert!(trainer.step(&x, &y)?.loss.mean()? < before);
/// # anyhow::Ok(())
/// ```
pub struct Trainer<'a> {
    net: &'a DataParallel,
    loss: Loss,
    optimizer: Sgd,
    /// Tells its steps from those of another trainer of the same network.
    id: usize,
}

/// What a step leaves.
#[derive(Debug)]
pub struct Step {
    /// The loss of the minibatch, before the step.
    pub loss: BatchLoss,
    /// Outputs and labels of each shard, on its device, before the step: for a metric. Replicas
    /// without an example have none.
    pub shards: Vec<(Tensor, Tensor)>,
}

impl<'a> Trainer<'a> {
    /// A trainer of all parameters of `net`.
    pub fn new(net: &'a DataParallel, loss: Loss, optimizer: Sgd) -> Self {
        Self {
            net,
            loss,
            optimizer,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// One step on the minibatch `x` (B, …), `y` (B,): splits it over the devices, computes
    /// the loss and its gradient on all of them at once, sums the gradients, and takes the same
    /// step everywhere, divided by the number of examples there are.
    ///
    /// # Errors
    /// If `x` and `y` do not fit, or a replica fails; the message names it. After that the
    /// network trains no further.
    pub fn step(&mut self, x: &Tensor, y: &Tensor) -> Result<Step> {
        let shards = self.net.scatter(x, y)?;
        let (loss, batch_size) = (self.loss, y.dim(0)?);
        ensure!(
            batch_size > 0,
            "a step needs at least 1 example, the minibatch has 0"
        );
        let (optimizer, id) = (self.optimizer, self.id);
        let done = self.net.on_each(shards, move |replica, (x, y)| {
            let output = replica.compute(|replica| forward_backward(replica, loss, &x, &y))?;
            replica.reduce_and_step(id, optimizer, batch_size)?;
            Ok(output.map(|(l, y_hat)| (l, (y_hat, y))))
        })?;
        let (ls, shards): (Vec<Tensor>, Vec<_>) = done.into_iter().flatten().unzip();
        let loss = BatchLoss::new(ls, batch_size);
        Ok(Step { loss, shards })
    }
}

/// The sum of the shard's losses and its outputs; the gradient stays in the replica.
fn forward_backward(
    replica: &mut Replica,
    loss: Loss,
    x: &Tensor,
    y: &Tensor,
) -> Result<Option<(Tensor, Tensor)>> {
    if y.dim(0)? == 0 {
        replica.zero_grad();
        return Ok(None);
    }
    let y_hat = replica.net.forward_t(x, true)?;
    let l = loss(&y_hat, y)?.sum_all()?;
    replica.backward(&l)?;
    Ok(Some((l.detach(), y_hat.detach())))
}
