//! From the loop of the book to sharded training, in seven changes: the steps of the chapter `seven-diffs`.
//!
//! Each file is a step, and differs little from the one before: [`page`], [`flat`], [`parts`], [`overlap`],
//! [`sync_bn`] (a branch of its own), [`processes`], [`optimizer_sharded`], [`gradients_sharded`] and
//! [`parameters_sharded`]. They train LeNet on the CPU. The trainer that does this with care is `data-parallel`.

extern crate data_parallel_collective as collective;
extern crate data_parallel_functional as functional;

pub mod flat;
pub mod gradients_sharded;
pub mod optimizer_sharded;
pub mod overlap;
pub mod page;
pub mod parameters_sharded;
pub mod parts;
pub mod processes;
pub mod program;
pub mod sync_bn;

use std::sync::Arc;
use std::thread;

use anyhow::Result;
use candle_core::{Device, Tensor, Var};
use collective::{GroupOptions, Member};
use functional::{Bucket, BucketMemory, OptimizerState, Part, Update, Value};

/// The training that every step runs.
#[derive(Clone)]
pub struct Job {
    /// The initial parameters, of [`lenet`].
    pub params: Vec<Tensor>,
    /// The minibatches. B may differ.
    pub batches: Vec<Minibatch>,
    /// Such as `functional::Sgd` with momentum.
    pub optimizer: Arc<dyn functional::Optimizer>,
    /// The most elements of a bucket, from [`overlap`] on.
    pub bucket_len: usize,
    /// Options for the sums of a group, from [`parts`] on.
    pub group: GroupOptions,
}

/// B examples.
#[derive(Clone)]
pub struct Minibatch {
    /// Images (B, 1, 28, 28).
    pub x: Tensor,
    /// Labels (B,).
    pub y: Tensor,
}

/// Layer `i` of LeNet; `w` are its weight and its bias.
///
/// # Errors
/// If the shapes do not fit.
pub fn layer(i: usize, x: &Value, w: &[Var]) -> candle_core::Result<Value> {
    let weight = &w[0];
    let bias = Some(w[1].as_tensor());
    match i {
        0 => x
            .nhwc()?
            .conv2d(weight, bias, 1, 0)?
            .relu()?
            .avg_pool2d(2, 2),
        1 => x
            .conv2d(weight, bias, 1, 0)?
            .relu()?
            .avg_pool2d(2, 2)?
            .flatten(),
        2 => x.matmul(weight, bias)?.relu(),
        _ => x.matmul(weight, bias),
    }
}

/// LeNet: images (B, 1, 28, 28) to (B, 10).
///
/// # Errors
/// If the shapes do not fit.
pub fn lenet(x: &Tensor, params: &[Var]) -> candle_core::Result<Value> {
    let mut h = Value::new(x)?;
    for (i, w) in params.chunks(2).enumerate() {
        h = layer(i, &h, w)?;
    }
    Ok(h)
}

/// The shard of one member: as the book's `split_batch` cuts it.
///
/// # Errors
/// If there are not as many labels as images.
pub fn shard(x: &Tensor, y: &Tensor, member: &Member) -> candle_core::Result<(Tensor, Tensor)> {
    let n = d2l::num_examples(x, y)?;
    let k = member.size();
    let rank = member.rank();
    let start = |i: usize| i * (n / k) + i.min(n % k);
    let len = start(rank + 1) - start(rank);
    Ok((
        x.narrow(0, start(rank), len)?,
        y.narrow(0, start(rank), len)?,
    ))
}

/// Runs the program of a replica for each member of the group, each on a thread of its own.
///
/// # Errors
/// The error of a program. It ends the others, which say only that this member has left.
pub fn on_threads<M: Send, T: Send>(
    members: Vec<M>,
    program: impl Fn(M) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let program = &program;
    let mut ends: Vec<Result<T>> = thread::scope(|scope| {
        let start = |(i, member)| {
            let thread = thread::Builder::new().name(format!("replica {i}"));
            thread.spawn_scoped(scope, move || program(member))
        };
        let threads: Vec<_> = members.into_iter().enumerate().map(start).collect();
        let ends = threads
            .into_iter()
            .map(|thread| thread?.join().expect("no panic"));
        ends.collect()
    });
    let is_cause = |end: &Result<T>| match end {
        Err(error) => !format!("{error:#}").contains("has left the group"),
        Ok(_) => false,
    };
    if let Some(cause) = ends.iter().position(is_cause) {
        ends.swap(0, cause);
    }
    ends.into_iter().collect()
}

/// An optimizer with its state, for some vectors: parameters, or parts of them.
pub struct Optimizer {
    rule: Arc<dyn functional::Optimizer>,
    /// Of each vector, from its first step on.
    state: Vec<OptimizerState>,
}

impl Optimizer {
    /// Without a state.
    pub fn new(job: &Job) -> Self {
        Self {
            rule: job.optimizer.clone(),
            state: Vec::new(),
        }
    }

    /// Frees the state.
    pub fn forget(&mut self) {
        self.state.clear();
    }

    /// Vector `i` takes its step, with the sum of its gradients over `examples` examples.
    ///
    /// # Errors
    /// If the sum has another length.
    pub fn step(
        &mut self,
        i: usize,
        w: &Var,
        sum: &Tensor,
        examples: usize,
    ) -> candle_core::Result<()> {
        if self.state.len() <= i {
            self.state.resize_with(i + 1, OptimizerState::default);
        }
        let parameter = 0;
        let range = 0..sum.elem_count();
        let sum = Bucket {
            index: 0,
            parts: [Part { parameter, range }].into(),
            values: BucketMemory::Floats(sum.flatten_all()?.to_vec1()?),
        };
        let how = Update {
            lr: self.rule.lr(),
            rates: &[1.0],
            max_norm: None,
            examples: examples as f64,
        };
        self.state[i].step(&*self.rule, &[("", w)], &[sum], how)
    }
}

/// A copy of each.
///
/// # Errors
/// If there is no memory left.
pub fn copies(tensors: &[Tensor]) -> candle_core::Result<Vec<Var>> {
    tensors.iter().map(Var::from_tensor).collect()
}

/// A tensor of zeros beside each.
///
/// # Errors
/// If there is no memory left.
pub fn zeros<'a>(tensors: impl IntoIterator<Item = &'a Var>) -> candle_core::Result<Vec<Var>> {
    let zeros = |w: &Var| Var::zeros(w.shape(), w.dtype(), w.device());
    tensors.into_iter().map(zeros).collect()
}

/// A tensor of a vector.
///
/// # Errors
/// None on the CPU.
pub fn tensor(vector: Vec<f32>) -> candle_core::Result<Tensor> {
    let len = vector.len();
    Tensor::from_vec(vector, len, &Device::Cpu)
}

/// All elements of some tensors, one after the other.
///
/// # Errors
/// If there is no memory left.
pub fn flatten(tensors: &[Var]) -> Result<Tensor> {
    let flat = |tensor: &Var| tensor.as_detached_tensor().flatten_all();
    let vectors: Vec<_> = tensors.iter().map(flat).collect::<Result<_, _>>()?;
    Ok(Tensor::cat(&vectors, 0)?)
}

/// Cuts the vector into the tensors again.
///
/// # Errors
/// If it has too few elements.
pub fn unflatten(flat: &Tensor, tensors: &[Var]) -> Result<()> {
    let mut start = 0;
    for tensor in tensors {
        let part = flat.narrow(0, start, tensor.elem_count())?;
        tensor.set(&part.reshape(tensor.shape())?)?;
        start += tensor.elem_count();
    }
    Ok(())
}

/// This member's part of the vector of some parameters.
///
/// # Errors
/// If there is no memory left.
pub fn own_part(params: &[Var], member: &Member) -> Result<Var> {
    let flat = flatten(params)?.to_vec1::<f32>()?;
    let own = member.part(flat.len());
    Ok(Var::from_tensor(&tensor(flat[own].to_vec())?)?)
}

/// Σ h · dh over all elements. Its gradient with respect to h is dh.
///
/// # Errors
/// If the shapes differ.
pub fn dot(h: &Value, dh: &Tensor) -> Result<Value> {
    Ok((h * &Value::new(dh)?)?.sum()?)
}

/// The elements of a bucket.
///
/// # Panics
/// If it is on a GPU: the steps are not.
pub fn floats(values: BucketMemory) -> Vec<f32> {
    match values {
        BucketMemory::Floats(floats) => floats,
        BucketMemory::Tensor(_) => panic!("a bucket on a GPU"),
    }
}
