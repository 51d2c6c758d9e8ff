//! Step 2: a reduce-scatter and an all-gather in place of the star.

use anyhow::Result;
use candle_core::{Tensor, Var};
use collective::{Member, group};
use functional::{backward, cross_entropy};

use crate::{Job, Optimizer, copies, flatten, lenet, on_threads, shard, unflatten, zeros};

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
        let part = reduce_scatter(flatten(&self.grads)?, &mut self.member)?;
        let sum = join_parts(part, &mut self.member)?;
        unflatten(&sum, &self.grads)?;
        for (i, (w, grad)) in self.params.iter().zip(&self.grads).enumerate() {
            self.optimizer.step(i, w, grad, x.dim(0)?)?;
        }
        Ok(())
    }
}

/// The sum of this member's part of the vectors of all members.
fn reduce_scatter(vector: Tensor, member: &mut Member) -> Result<Tensor> {
    let own = member.part(vector.elem_count());
    let all = member.all_gather(vector)?; // no copies: all are in one memory
    let mut sum = all[0].narrow(0, own.start, own.len())?;
    for other in &all[1..] {
        sum = (sum + other.narrow(0, own.start, own.len())?)?;
    }
    Ok(sum)
}

/// The parts of all members as one vector: the all-gather.
fn join_parts(part: Tensor, member: &mut Member) -> Result<Tensor> {
    Ok(Tensor::cat(&member.all_gather(part)?, 0)?)
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
