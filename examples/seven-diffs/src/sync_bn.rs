//! Step 4: batch norm over the whole minibatch. The later steps go on without it.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::Result;
use candle_core::{DType, Device, Tensor, Var};
use collective::{Member, group};
use functional::{
    BackwardOptions, Bucket, BucketMemory, Gradients, Summation, Value, cross_entropy,
};

use crate::{Job, Optimizer, copies, floats, layer, on_threads, shard};

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
    /// The running mean and variance of the norm.
    running: [Var; 2],
    norms: Arc<OverAll>,
}

impl Replica {
    fn new(job: &Job, member: Member, norms: Member) -> Result<Self> {
        let ones = || Var::ones(20, DType::F32, &Device::Cpu);
        let zeros = || Var::zeros(20, DType::F32, &Device::Cpu);
        let mut params = copies(&job.params)?;
        params.splice(2..2, [ones()?, zeros()?]); // the weight and the bias of the norm
        Ok(Self {
            gradients: Gradients::new(params.iter().map(|w| ("", w)), job.bucket_len)?,
            params,
            optimizer: Optimizer::new(job),
            member,
            running: [zeros()?, ones()?],
            norms: Arc::new(OverAll(Mutex::new(norms))),
        })
    }

    /// LeNet with batch norm behind its first convolution.
    fn lenet(&self, x: &Tensor) -> Result<Value> {
        let (w, running) = (&self.params, self.running.each_ref());
        let h1_conv = Value::new(x)?.nhwc()?.conv2d(&w[0], Some(&w[1]), 1, 0)?;
        let h1_norm = h1_conv.batch_norm2d([&w[2], &w[3]], running, None, true)?;
        let h1 = h1_norm.relu()?.avg_pool2d(2, 2)?;
        (1..4).try_fold(h1, |h, i| Ok(layer(i, &h, &w[2 * i + 2..][..2])?))
    }

    /// A step. All members take it at the same time.
    fn step(&mut self, x: &Tensor, y: &Tensor) -> Result<()> {
        let (x_shard, y_shard) = shard(x, y, &self.member)?;
        let l = cross_entropy(&self.lenet(&x_shard)?, &y_shard)?.sum()?;
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
                norms: Some(self.norms.clone()),
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

/// Sums statistics over all members, in the middle of forward and backward.
struct OverAll(Mutex<Member>);

impl Summation for OverAll {
    fn sum(&self, values: &mut [f64]) -> candle_core::Result<()> {
        let mut member = self.0.lock().expect("no panic");
        member.sum(values).map_err(candle_core::Error::wrap)
    }
}

/// The bucket with the sums over all members.
#[tracing::instrument(skip_all, name = "all-reduce")]
fn all_reduce(bucket: Bucket, member: &mut Member) -> Result<Bucket> {
    let values = BucketMemory::Floats(member.all_reduce(floats(bucket.values))?);
    Ok(Bucket { values, ..bucket })
}

/// Trains on `k` devices.
///
/// # Errors
/// If a device fails, or the job does not fit LeNet.
pub fn train(job: &Job, k: usize) -> Result<Vec<Replica>> {
    let members = group(k, job.group).into_iter().zip(group(k, job.group));
    on_threads(members.collect(), |(member, norms)| {
        let mut replica = Replica::new(job, member, norms)?;
        for batch in &job.batches {
            replica.step(&batch.x, &batch.y)?;
        }
        Ok(replica)
    })
}
