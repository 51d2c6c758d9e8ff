//! The gradients of a network's parameters: in buckets, as an all-reduce needs them, or each in a variable. Backward
//! writes there and nowhere else. It sends nothing to another replica.

use super::compile::compile;
use super::tape::{Plan, Saved, Tape};
use super::value::Value;
use super::writing::{Parameter, Writing, fill, unused};
use crate::cpu::finite::not_finite_part;
use crate::kernel::Cpu;
use crate::kernel::{Backend, Pass};
use crate::memory::bucket::{self, Bucket, BucketMemory, Part};
use crate::statistics::Summation;
use candle_core::{DType, Device, Result, Tensor, TensorId, Var, bail};
use devices::retry_with_empty_cache;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// Writes the gradient of the scalar `loss` with respect to each parameter into the variable beside it, on the
/// same device and of as many elements. Returns the loss. In the book: `l.backward()`.
///
/// ```
/// use candle_core::{DType, Device, Tensor, Var};
/// use data_parallel_functional::Value;
/// let w = Var::new(&[[1f32, 2.]], &Device::Cpu)?;
/// let grad = Var::zeros((1, 2), DType::F32, &Device::Cpu)?;
/// let x = Tensor::new(&[[10f32, 20.]], &Device::Cpu)?;
/// let loss = Value::new(&x)?.linear(&w, None)?.sum()?;
/// assert_eq!(data_parallel_functional::backward(&loss, [(&w, &grad)])?.to_scalar::<f32>()?, 50.);
/// assert_eq!(grad.to_vec2::<f32>()?, [[10., 20.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// Where the loss is no scalar or does not depend on a parameter, or the elements of a pair are not as many.
pub fn backward<'a>(
    loss: &Value,
    params: impl IntoIterator<Item = (&'a Var, &'a Var)>,
) -> Result<Tensor> {
    let pairs: Vec<(&Var, &Var)> = params.into_iter().collect();
    let mut params = Vec::new();
    let mut buckets = Vec::new();
    let all: HashSet<TensorId> = pairs.iter().map(|(param, _)| param.id()).collect();
    let mut given = HashSet::new();
    for (i, (param, grad)) in pairs.iter().enumerate() {
        if all.contains(&grad.id()) {
            bail!("backward: a parameter and its gradient are the same tensor")
        }
        if param.elem_count() != grad.elem_count() {
            let param = param.dims();
            let grad = grad.dims();
            bail!("backward: a parameter has shape {param:?}, its gradient {grad:?}")
        }
        if !given.insert(param.id()) {
            bail!("backward: a parameter is given twice")
        }
        params.push((i.to_string(), param.as_tensor().clone()));
        buckets.push((i..i + 1, BucketMemory::Tensor(grad.as_tensor().clone())));
    }
    Gradients::with(params, buckets).backward(loss)
}

/// The gradients of parameters in buckets, each a memory of its own that can be handed out.
///
/// A bucket has the gradients of parameters that follow each other. Bucket 0 has the last parameters, because
/// backward comes to those first; and buckets are handed out in that order, in every replica alike.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use data_parallel_functional::{BackwardOptions, Gradients, Value, BucketMemory};
/// let w = Var::new(&[[1f32, 2.]], &Device::Cpu)?;
/// let b = Var::new(&[3f32], &Device::Cpu)?;
/// let x = Tensor::new(&[[10f32, 20.]], &Device::Cpu)?;
/// let mut gradients = Gradients::new([("w", &w), ("b", &b)], 2)?;
/// let loss = Value::new(&x)?.linear(&w, Some(&b))?.sum()?;
/// let mut buckets = Vec::new();
/// // an all-reduce would begin with each bucket at once, while backward goes on
/// gradients.backward_with(&loss, BackwardOptions { ready: Some(&mut |bucket| Ok(buckets.push(bucket))), ..BackwardOptions::default() })?;
/// for (bucket, expected) in buckets.into_iter().zip([&[1.][..], &[10., 20.]]) {
///     assert!(matches!(&bucket.values, BucketMemory::Floats(floats) if floats == expected));
///     gradients.put_back(bucket)?;
/// }
/// # Ok::<(), candle_core::Error>(())
/// ```
pub struct Gradients {
    /// In the order in which they were given.
    parameters: Vec<Parameter>,
    by_id: HashMap<TensorId, usize>,
    /// The parts of each bucket; the first bucket has the last parameters.
    layout: Vec<Arc<[Part]>>,
    /// The memory of each bucket; none while it is handed out.
    buckets: Vec<Option<BucketMemory>>,
    allow_unused: bool,
    /// A backward pass began that did not end well.
    failed: bool,
}

/// Options of [`Gradients::backward_with`]. The default is [`Gradients::backward`]'s.
#[derive(Default)]
pub struct BackwardOptions<'a> {
    /// Sums the statistics of batch norms in training over replicas; with none, each norm takes those of its own
    /// values. Then a minibatch in parts gives what it gives as a whole. In PyTorch: `nn.SyncBatchNorm`.
    pub norms: Option<Arc<dyn Summation>>,
    /// More values to compute in the same pass: afterwards [`Value::eval`] gives them without computing again.
    pub outputs: &'a [&'a Value],
    /// Called between forward and backward, with the loss if it is on the CPU. After its error no gradient was written.
    pub forward_done: Option<&'a mut dyn FnMut(Option<f32>) -> Result<()>>,
    /// Gets each bucket as soon as its gradients are complete, while backward goes on. The bucket is out then,
    /// until it is put back.
    pub ready: Option<Ready<'a>>,
}

/// A function that takes buckets.
pub type Ready<'a> = &'a mut dyn FnMut(Bucket) -> Result<()>;

/// The buckets while backward runs: each is handed out when it is complete, in order.
struct HandingOut<'a, 'r, B: Backend> {
    stream: &'a B::Stream,
    buckets: &'a mut [Option<BucketMemory>],
    layout: &'a [Arc<[Part]>],
    /// For each bucket the entry that adds its last gradient.
    complete: &'a [usize],
    /// The number of the next bucket to hand out.
    next: usize,
    /// Takes the buckets; without it they stay here.
    ready: Option<Ready<'r>>,
}

impl<B: Backend> HandingOut<'_, '_, B> {
    /// Makes all buckets ready to be written.
    fn open(&mut self, writing: &mut Writing<'_, B>) -> Result<()> {
        for bucket in self.buckets.iter_mut() {
            writing.open(self.stream, bucket.as_mut().expect("all are here"))?;
            *bucket = None;
        }
        Ok(())
    }

    /// Hands out the buckets that are complete once the backward pass of `entry` has run.
    fn hand_out(&mut self, writing: &mut Writing<'_, B>, entry: usize) -> Result<()> {
        while self
            .complete
            .get(self.next)
            .is_some_and(|last| entry <= *last)
        {
            let index = self.next;
            let parts = self.layout[index].clone();
            self.next += 1;
            let values = writing.complete(self.stream, index, &parts)?;
            match &mut self.ready {
                None => self.buckets[index] = Some(values),
                Some(ready) => ready(Bucket {
                    index,
                    parts,
                    values,
                })?,
            }
        }
        Ok(())
    }
}

impl Gradients {
    /// For each of `params`, which have names for messages and are all on one device. A bucket has at most
    /// `bucket_len` elements, except that a parameter is never cut: a larger one has a bucket to itself. With
    /// `usize::MAX` there is one bucket.
    ///
    /// # Errors
    /// Where that device has no memory left.
    ///
    /// # Panics
    /// Where a parameter is there twice.
    pub fn new<'a>(
        params: impl IntoIterator<Item = (&'a str, &'a Var)>,
        bucket_len: usize,
    ) -> Result<Self> {
        let named = |(name, var): (&str, &Var)| (name.to_owned(), var.as_tensor().clone());
        let params: Vec<(String, Tensor)> = params.into_iter().map(named).collect();
        let lens: Vec<usize> = params.iter().map(|(_, param)| param.elem_count()).collect();
        let mut buckets = Vec::new();
        for numbers in bucket::share_out(&lens, bucket_len) {
            let len = lens[numbers.clone()].iter().sum();
            let values = match params[numbers.start].1.device() {
                Device::Cpu => BucketMemory::Floats(vec![0.; len]),
                device => BucketMemory::Tensor(retry_with_empty_cache(|| {
                    Tensor::zeros(len, DType::F32, device)
                })?),
            };
            buckets.push((numbers, values));
        }
        let count = params.len();
        let gradients = Self::with(params, buckets);
        assert_eq!(gradients.by_id.len(), count, "a parameter is given twice");
        Ok(gradients)
    }

    /// For parameters with names, in buckets of which each has the parameters of these numbers.
    fn with(params: Vec<(String, Tensor)>, buckets: Vec<(Range<usize>, BucketMemory)>) -> Self {
        let by_id = params
            .iter()
            .enumerate()
            .map(|(number, (_, tensor))| (tensor.id(), number))
            .collect();
        let parameter = |(name, tensor)| Parameter {
            name,
            tensor,
            view: (0, 0..0), // until its bucket is made
            written: false,
            touched: false,
            used: false,
        };
        let mut parameters: Vec<Parameter> = params.into_iter().map(parameter).collect();
        let mut layout = Vec::new();
        for (index, (numbers, _)) in buckets.iter().enumerate() {
            let mut start = 0;
            let parts = numbers.clone().map(|number| {
                let parameter = &mut parameters[number];
                let range = start..start + parameter.tensor.elem_count();
                start = range.end;
                parameter.view = (index, range.clone());
                Part {
                    parameter: number,
                    range,
                }
            });
            layout.push(parts.collect());
        }
        let buckets = buckets.into_iter().map(|(_, values)| Some(values));
        Self {
            parameters,
            by_id,
            layout,
            buckets: buckets.collect(),
            allow_unused: false,
            failed: false,
        }
    }

    /// With `true`, the gradient of a parameter on which the loss does not depend is zero. Until this is called, such
    /// a parameter is an error.
    pub fn allow_unused(&mut self, allow: bool) {
        self.allow_unused = allow;
    }

    /// The parts of each bucket, which never change.
    pub fn layout(&self) -> impl ExactSizeIterator<Item = &Arc<[Part]>> {
        self.layout.iter()
    }

    /// A copy of the gradient of each parameter, in their order. It is the last one also after [`zero`](Self::zero).
    ///
    /// # Errors
    /// Where a bucket is out.
    pub fn values(&self) -> Result<Vec<Tensor>> {
        let value = |parameter: &Parameter| {
            let (bucket, range) = &parameter.view;
            match &self.buckets[*bucket] {
                Some(values) => values.get(range.clone()),
                None => bail!("bucket {bucket} is handed out: put it back first"),
            }
        };
        self.parameters.iter().map(value).collect()
    }

    /// Forgets what there is: the next backward writes, and does not add. It touches no memory.
    pub fn zero(&mut self) {
        self.failed = false;
        for parameter in &mut self.parameters {
            parameter.written = false;
            parameter.used = false;
        }
    }

    /// For each parameter, true if a backward pass has added to its gradient since [`zero`](Self::zero). Without
    /// [`allow_unused`](Self::allow_unused) every pass does.
    pub fn used(&self) -> impl Iterator<Item = bool> {
        self.parameters.iter().map(|parameter| parameter.used)
    }

    /// Computes the scalar `loss`, and adds its gradients to what came since [`zero`](Self::zero), for instance of
    /// another minibatch. Returns the loss.
    ///
    /// # Errors
    /// Where the loss is no scalar, does not depend on a parameter, which the message names, or is on another
    /// device; and where a bucket is out. If the error came in the middle of the pass, [`zero`](Self::zero) has to
    /// come first afterwards.
    pub fn backward(&mut self, loss: &Value) -> Result<Tensor> {
        self.backward_with(loss, BackwardOptions::default())
    }

    /// Like [`backward`](Self::backward), with options.
    ///
    /// # Errors
    /// As of [`backward`](Self::backward); of `ready`, after which buckets may be out; and of the summation.
    pub fn backward_with(&mut self, loss: &Value, how: BackwardOptions<'_>) -> Result<Tensor> {
        self.check(loss)?;
        match loss.device() {
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => self.run::<crate::cuda::Cuda>(loss, how),
            _ => self.run::<Cpu>(loss, how),
        }
    }

    fn run<B: Backend>(&mut self, loss: &Value, how: BackwardOptions<'_>) -> Result<Tensor> {
        let computed = loss.computed()?;
        let outputs = [&[&computed], how.outputs].concat();
        let tape = compile::<B>(&outputs)?;
        let pass = Pass {
            stream: B::stream(loss.device(), tape.least_memory())?,
            keep: true,
            norms: how.norms,
        };
        let saved = tracing::info_span!("forward").in_scope(|| tape.forward(&pass))?;
        if let Some(forward_done) = how.forward_done {
            forward_done(tape.loss(&saved))?;
        }
        let plan = tape.plan(|id| self.by_id.get(&id).copied());
        let complete = self.completed_by(&plan)?;
        self.failed = true; // until the end
        let span = tracing::info_span!("backward");
        span.in_scope(|| self.write(&tape, &pass, &saved, &plan, &complete, how.ready))?;
        let results = tape.outputs(&pass, saved)?;
        for (value, result) in outputs.iter().zip(&results) {
            value.set_result(result.clone());
        }
        self.failed = false;
        let result = results[0].reshape(loss.dims())?;
        loss.set_result(result.clone());
        Ok(result)
    }

    /// An error unless `loss` is a scalar, and all parameters are on its device, in buckets that are here.
    fn check(&self, loss: &Value) -> Result<()> {
        let dims = loss.dims();
        if dims.iter().product::<usize>() != 1 {
            bail!("backward: the loss has shape {dims:?}, expected a scalar; take its sum or mean")
        }
        let elsewhere = |p: &&Parameter| !p.tensor.device().same_device(loss.device());
        if let Some(Parameter { name, tensor, .. }) = self.parameters.iter().find(elsewhere) {
            let of_loss = loss.device().location();
            let other = tensor.device().location();
            bail!("backward: the loss is on {of_loss:?}, the parameter {name} on {other:?}")
        }
        self.check_in()
    }

    /// An error unless all buckets are here and what they hold counts.
    fn check_in(&self) -> Result<()> {
        if self.failed {
            bail!("the last backward pass failed halfway: call zero() first")
        }
        match self.buckets.iter().position(Option::is_none) {
            Some(out) => bail!("bucket {out} is handed out: put it back first"),
            None => Ok(()),
        }
    }

    /// For each bucket the entry of the tape whose backward adds its last gradient. Backward runs from the last entry to
    /// the first, so that is the smallest number. A bucket without a gradient is complete from the start: the number is
    /// the largest that there is.
    fn completed_by(&self, plan: &Plan) -> Result<Vec<usize>> {
        let mut complete = vec![usize::MAX; self.buckets.len()];
        let entries = plan.completed_by(self.parameters.len());
        for (parameter, entry) in self.parameters.iter().zip(entries) {
            let of_bucket = &mut complete[parameter.view.0];
            match entry {
                Some(entry) => *of_bucket = entry.min(*of_bucket),
                None if self.allow_unused => {}
                None => bail!("{}", unused(&parameter.name)),
            }
        }
        Ok(complete)
    }

    /// Runs backward. Buckets that are not handed out come back, whatever happens.
    fn write<B: Backend>(
        &mut self,
        tape: &Tape<B>,
        pass: &Pass<B>,
        saved: &Saved<B>,
        plan: &Plan,
        complete: &[usize],
        ready: Option<Ready<'_>>,
    ) -> Result<()> {
        let mut writing = Writing::new(&mut self.parameters, self.allow_unused);
        let mut handing_out = HandingOut {
            stream: &pass.stream,
            buckets: &mut self.buckets,
            layout: &self.layout,
            complete,
            next: 0,
            ready,
        };
        let mut backward = || {
            handing_out.open(&mut writing)?;
            tape.backward(
                pass,
                saved,
                plan,
                &mut writing,
                &mut |writing: &mut Writing<'_, B>, entry: usize| {
                    handing_out.hand_out(writing, entry)
                },
            )?;
            handing_out.hand_out(&mut writing, 0) // those of which nothing was left to add
        };
        let result = backward();
        for (index, bucket) in self.buckets.iter_mut().enumerate() {
            if let Some(values) = writing.close(&pass.stream, index)? {
                *bucket = Some(values);
            }
        }
        result
    }

    /// The first part that is NaN or infinite, with its value, as [`not_finite_sum`](crate::not_finite_sum) of the buckets
    /// that are here.
    pub fn not_finite(&self) -> Option<(&Part, f32)> {
        let mut buckets = self.buckets.iter().zip(&self.layout);
        buckets.find_map(|(values, parts)| not_finite_part(values.as_ref()?, parts))
    }

    /// Hands out all buckets. Gradients that nothing wrote since [`zero`](Self::zero) are zeros, as a replica
    /// without an example needs them.
    ///
    /// # Errors
    /// Where a bucket is out, the pass before failed, or of `ready`.
    pub fn give(&mut self, ready: Ready<'_>) -> Result<()> {
        self.check_in()?;
        for (index, bucket) in self.buckets.iter_mut().enumerate() {
            let parts = self.layout[index].clone();
            let mut values = bucket.take().expect("all are here");
            fill(&mut self.parameters, &parts, &mut values)?;
            ready(Bucket {
                index,
                parts,
                values,
            })?;
        }
        Ok(())
    }

    /// Takes a bucket back, with what is in it now.
    ///
    /// # Errors
    /// Where it does not fit, or is not out.
    pub fn put_back(&mut self, bucket: Bucket) -> Result<()> {
        let Bucket { index, values, .. } = bucket;
        let Some(parts) = self.layout.get(index) else {
            let count = self.layout.len();
            bail!("cannot put back bucket {index}: there are {count} buckets")
        };
        let expected = parts.last().map_or(0, |part| part.range.end);
        if values.elem_count() != expected {
            let found = values.elem_count();
            bail!("cannot put back bucket {index} with {found} elements: it had {expected}")
        }
        let device = parts
            .first()
            .map(|part| self.parameters[part.parameter].tensor.device());
        let is_at_home = device.is_none_or(|device| match &values {
            BucketMemory::Floats(_) => device.is_cpu(),
            BucketMemory::Tensor(tensor) => tensor.device().same_device(device),
        });
        if !is_at_home {
            bail!("cannot put back bucket {index}: it is not on the device of its parameters")
        }
        if self.buckets[index].is_some() {
            bail!("cannot put back bucket {index}: it was not handed out")
        }
        self.buckets[index] = Some(values);
        Ok(())
    }
}
