//! Step 6, second part: the gradients are sharded too (ZeRO stage 2). Backward goes layer by layer.

use anyhow::Result;
use candle_core::{Tensor, Var};
use collective::Member;
use functional::{Value, backward, cross_entropy};

use crate::{
    Job, Optimizer, copies, dot, flatten, layer, on_threads, own_part, shard, tensor, unflatten,
    zeros,
};

/// The state of one device.
pub struct Replica {
    /// Its copy of the parameters.
    pub params: Vec<Var>,
    /// The sums of the gradients: this member's part of each layer.
    pub sums: Vec<Tensor>,
    /// The optimizer, with its state for these parts.
    pub optimizer: Optimizer,
    /// Its place among the others.
    member: Member,
}

impl Replica {
    fn new(job: &Job, member: Member) -> Result<Self> {
        Ok(Self {
            params: copies(&job.params)?,
            sums: Vec::new(),
            optimizer: Optimizer::new(job),
            member,
        })
    }

    /// A step. All members take it at the same time.
    fn step(&mut self, x: &Tensor, y: &Tensor) -> Result<()> {
        let (x_shard, y_shard) = shard(x, y, &self.member)?;
        let mut inputs = vec![Var::from_tensor(&x_shard)?];
        for (i, w) in self.params.chunks(2).take(3).enumerate() {
            let h = layer(i, &Value::new(&inputs[i])?, w)?.eval()?;
            inputs.push(Var::from_tensor(&h)?);
        }
        let mut dh = None::<Var>;
        self.sums.clear();
        for (i, x) in inputs.into_iter().enumerate().rev() {
            let w = &self.params[2 * i..][..2];
            let h = layer(i, &Value::new(&x)?, w)?;
            let l = match &dh {
                None => cross_entropy(&h, &y_shard)?.sum()?,
                Some(dh) => dot(&h, dh)?, // with the gradients of the loss
            };
            let (grads, dx) = (zeros(w)?, zeros([&x])?.remove(0));
            backward(&l, w.iter().zip(&grads).chain([(&x, &dx)]))?;
            let sum = self.member.reduce_scatter(flatten(&grads)?.to_vec1()?)?;
            self.sums.insert(0, tensor(sum)?);
            dh = Some(dx);
        }
        for (i, (params, sum)) in self.params.chunks(2).zip(&self.sums).enumerate() {
            let w = own_part(params, &self.member)?;
            self.optimizer.step(i, &w, sum, x.dim(0)?)?;
            let flat = self.member.all_gather_parts(w.to_vec1()?)?;
            unflatten(&tensor(flat)?, params)?;
        }
        Ok(())
    }
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
