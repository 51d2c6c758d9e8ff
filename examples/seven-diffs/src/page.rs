//! Step 0: the `train_batch` of the page (book: 13.5.6), from the view of one device.

use anyhow::Result;
use candle_core::{Tensor, Var};
use collective::{Member, group};
use functional::{backward, cross_entropy};

use crate::{Job, Optimizer, copies, lenet, on_threads, shard, zeros};

/// The state of one device.
pub struct Replica {
    /// Its copy of the parameters.
    pub params: Vec<Var>,
    /// One gradient for each parameter.
    pub grads: Vec<Var>,
    /// The optimizer, with its state for each parameter.
    pub optimizer: Optimizer,
    /// Its place among the others.
    member: Member,
}

impl Replica {
    fn new(job: &Job, member: Member) -> Result<Self> {
        let params = copies(&job.params)?;
        Ok(Self {
            grads: zeros(&params)?,
            params,
            optimizer: Optimizer::new(job),
            member,
        })
    }

    /// A step. All members take it at the same time.
    fn step(&mut self, x: &Tensor, y: &Tensor) -> Result<()> {
        let (x_shard, y_shard) = shard(x, y, &self.member)?;
        let l = cross_entropy(&lenet(&x_shard, &self.params)?, &y_shard)?.sum()?;
        backward(&l, self.params.iter().zip(&self.grads))?;
        for grad in &self.grads {
            grad.set(&allreduce(grad.copy()?, &mut self.member)?)?;
        }
        for (i, (w, grad)) in self.params.iter().zip(&self.grads).enumerate() {
            self.optimizer.step(i, w, grad, x.dim(0)?)?;
        }
        Ok(())
    }
}

/// The book's `allreduce`: member 0 adds up the tensors of all, and the others get the sum.
fn allreduce(data: Tensor, member: &mut Member) -> Result<Tensor> {
    let all = member.all_gather(data)?; // no copies: all are in one memory
    let mut sum = all[0].clone();
    if member.rank() == 0 {
        for other in &all[1..] {
            sum = (sum + other)?;
        }
    }
    Ok(member.all_gather(sum)?.swap_remove(0))
}

/// Trains on `k` devices.
///
/// # Errors
/// If a device fails, or the job does not fit LeNet.
pub fn train(job: &Job, k: usize) -> Result<Vec<Replica>> {
    on_threads(group(k, job.group), |member| {
        let mut replica = Replica::new(job, member)?;
        for batch in &job.batches {
            replica.step(&batch.x, &batch.y)?;
        }
        Ok(replica)
    })
}
