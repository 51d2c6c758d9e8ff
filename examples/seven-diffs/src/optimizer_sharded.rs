//! Step 6: the state of the optimizer is sharded (ZeRO stage 1).

use std::sync::mpsc::channel;
use std::thread;

use anyhow::Result;
use candle_core::{Tensor, Var};
use collective::Member;
use functional::{BackwardOptions, Bucket, BucketMemory, Gradients, cross_entropy};

use crate::{
    Job, Optimizer, copies, floats, lenet, on_threads, own_part, shard, tensor, unflatten,
};

/// The state of one device.
pub struct Replica {
    /// Its copy of the parameters.
    pub params: Vec<Var>,
    /// The gradients of all parameters, in buckets.
    pub gradients: Gradients,
    /// The optimizer, with its state for this member's part of each bucket.
    pub optimizer: Optimizer,
    /// Its place among the others.
    member: Member,
}

impl Replica {
    fn new(job: &Job, member: Member) -> Result<Self> {
        let params = copies(&job.params)?;
        Ok(Self {
            gradients: Gradients::new(params.iter().map(|w| ("", w)), job.bucket_len)?,
            params,
            optimizer: Optimizer::new(job),
            member,
        })
    }

    /// A step. All members take it at the same time.
    fn step(&mut self, x: &Tensor, y: &Tensor) -> Result<()> {
        let (x_shard, y_shard) = shard(x, y, &self.member)?;
        let l = cross_entropy(&lenet(&x_shard, &self.params)?, &y_shard)?.sum()?;
        self.gradients.zero();
        let sums = thread::scope(|scope| {
            let (ready, buckets) = channel();
            let (gradients, member) = (&mut self.gradients, &mut self.member);
            let thread = thread::Builder::new().name(format!("sums {}", member.rank()));
            let sums = thread.spawn_scoped(scope, move || {
                let sums = buckets.iter().map(|bucket| all_reduce(bucket, member));
                sums.collect::<Result<Vec<_>>>()
            })?;
            // if the other thread has ended, its error says why
            let leave = &mut |bucket| ready.send(bucket).or(Ok(()));
            let how = BackwardOptions {
                ready: Some(leave),
                ..BackwardOptions::default()
            };
            gradients.backward_with(&l, how)?;
            drop(ready);
            sums.join().expect("no panic")
        })?;
        for bucket in sums {
            let params = &self.params[bucket.parts[0].parameter..][..bucket.parts.len()];
            let w = own_part(params, &self.member)?;
            let own = self.member.part(bucket.values.elem_count());
            let sum = bucket.values.get(own)?;
            self.optimizer.step(bucket.index, &w, &sum, x.dim(0)?)?;
            let flat = self.member.all_gather_parts(w.to_vec1()?)?;
            unflatten(&tensor(flat)?, params)?;
            self.gradients.put_back(bucket)?;
        }
        Ok(())
    }
}

/// The bucket with the sums over all members.
#[tracing::instrument(skip_all, name = "all-reduce")]
fn all_reduce(bucket: Bucket, member: &mut Member) -> Result<Bucket> {
    let values = BucketMemory::Floats(member.all_reduce(floats(bucket.values))?);
    Ok(Bucket { values, ..bucket })
}

/// Trains the replicas of this process.
///
/// # Errors
/// If a device fails, or the job does not fit LeNet.
pub fn train(job: &Job, members: Vec<Member>) -> Result<Vec<Replica>> {
    on_threads(members, |member| {
        let mut replica = Replica::new(job, member)?;
        for batch in &job.batches {
            replica.step(&batch.x, &batch.y)?;
        }
        Ok(replica)
    })
}
