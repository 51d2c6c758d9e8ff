//! Step 5: several processes. The members of a group may be anywhere; their program is the same.

use std::sync::mpsc::channel;
use std::thread;

use anyhow::Result;
use candle_core::{Tensor, Var};
use collective::Member;
use functional::{BackwardOptions, Bucket, BucketMemory, Gradients, cross_entropy};

use crate::{Job, Optimizer, copies, floats, lenet, on_threads, shard};

/// The state of one device.
pub struct Replica {
    /// Its copy of the parameters.
    pub params: Vec<Var>,
    /// The gradients of all parameters, in buckets.
    pub gradients: Gradients,
    /// The optimizer, with its state for each parameter.
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
        sums.into_iter()
            .try_for_each(|sum| self.gradients.put_back(sum))?;
        for (i, (w, grad)) in self.params.iter().zip(self.gradients.values()?).enumerate() {
            self.optimizer.step(i, w, &grad, x.dim(0)?)?;
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
