//! Step 7: the parameters are sharded too (ZeRO stage 3, FSDP). Those of a layer are whole while it computes.

use anyhow::Result;
use candle_core::{DType, Device, Shape, Tensor, Var};
use collective::Member;
use functional::{Value, backward, cross_entropy};

use crate::{
    Job, Optimizer, copies, dot, flatten, layer, on_threads, own_part, shard, tensor, unflatten,
    zeros,
};

/// The state of one device.
pub struct Replica {
    /// This member's part of the parameters of each layer.
    pub params: Vec<Var>,
    /// The sums of the gradients: this member's part of each layer.
    pub sums: Vec<Tensor>,
    /// The optimizer, with its state for these parts.
    pub optimizer: Optimizer,
    /// Its place among the others.
    member: Member,
    /// The shapes of the parameters of each layer.
    shapes: Vec<Vec<Shape>>,
}

impl Replica {
    fn new(job: &Job, member: Member) -> Result<Self> {
        let (mut params, mut shapes) = (Vec::new(), Vec::new());
        for layer in job.params.chunks(2) {
            params.push(own_part(&copies(layer)?, &member)?);
            shapes.push(layer.iter().map(|w| w.shape().clone()).collect());
        }
        Ok(Self {
            params,
            sums: Vec::new(),
            optimizer: Optimizer::new(job),
            member,
            shapes,
        })
    }

    /// A step. All members take it at the same time.
    fn step(&mut self, x: &Tensor, y: &Tensor) -> Result<()> {
        let (x_shard, y_shard) = shard(x, y, &self.member)?;
        let mut inputs = vec![Var::from_tensor(&x_shard)?];
        for i in 0..3 {
            let w = self.gather(i)?; // until the end of this round
            let h = layer(i, &Value::new(&inputs[i])?, &w)?.eval()?;
            inputs.push(Var::from_tensor(&h)?);
        }
        let mut dh = None::<Var>;
        self.sums.clear();
        for (i, x) in inputs.into_iter().enumerate().rev() {
            let w = self.gather(i)?;
            let h = layer(i, &Value::new(&x)?, &w)?;
            let l = match &dh {
                None => cross_entropy(&h, &y_shard)?.sum()?,
                Some(dh) => dot(&h, dh)?, // with the gradients of the loss
            };
            let (grads, dx) = (zeros(&w)?, zeros([&x])?.remove(0));
            backward(&l, w.iter().zip(&grads).chain([(&x, &dx)]))?;
            let sum = self.member.reduce_scatter(flatten(&grads)?.to_vec1()?)?;
            self.sums.insert(0, tensor(sum)?);
            dh = Some(dx);
        }
        for (i, (w, sum)) in self.params.iter().zip(&self.sums).enumerate() {
            self.optimizer.step(i, w, sum, x.dim(0)?)?;
        }
        Ok(())
    }

    /// The parameters of layer `i`, from all members.
    pub fn gather(&mut self, i: usize) -> Result<Vec<Var>> {
        let flat = self.member.all_gather_parts(self.params[i].to_vec1()?)?;
        let zeros = |shape| Var::zeros(shape, DType::F32, &Device::Cpu);
        let params: Vec<_> = self.shapes[i].iter().map(zeros).collect::<Result<_, _>>()?;
        unflatten(&tensor(flat)?, &params)?;
        Ok(params)
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
