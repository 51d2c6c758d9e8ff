//! Optimizer state: the numbers that go from step to step, and the step on buckets.

use candle_core::{Device, Result, Tensor, Var, bail};

use super::{Data, Optimizer, Slice, check_range};
use crate::cpu::finite::not_finite_part;
use crate::cpu::gradient::CHUNK;
use crate::cpu::threads::for_each_chunk;
use crate::memory::bucket::{Bucket, BucketMemory, Part};
use devices::retry_with_empty_cache;

/// The state of an optimizer for all parameters; it is empty before the first step.
#[derive(Default)]
pub struct OptimizerState {
    /// For each bucket one memory for each name of the state, laid out as the bucket is.
    buckets: Vec<Vec<BucketMemory>>,
    /// The steps that each parameter has taken.
    steps: Vec<u64>,
}

/// The numbers of a step.
#[derive(Debug, Clone, Copy)]
pub struct Update<'a> {
    /// The learning rate, 0 or more.
    pub lr: f64,
    /// A factor of it for each parameter, 0 or more. With 0 the parameter and its state stay as they are.
    pub rates: &'a [f64],
    /// The largest norm of the mean gradients of all parameters: larger ones are scaled down to it.
    pub max_norm: Option<f64>,
    /// The examples whose gradients were summed, or what else the mean is over, such as tokens.
    pub examples: f64,
}

impl OptimizerState {
    /// Takes the step on `params`, all parameters of the [`Gradients`](crate::Gradients) that the buckets `sums`
    /// come from, with their names.
    ///
    /// # Errors
    /// Where they do not fit, or a number cannot be used: then nothing was changed.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use data_parallel_functional::{AdamW, Gradients, OptimizerState, Update, Value};
    /// let w = Var::new(&[1f32, 2.], &Device::Cpu)?;
    /// let mut gradients = Gradients::new([("w", &w)], usize::MAX)?;
    /// gradients.backward(&Value::new(&w)?.sum()?)?;
    /// let mut sums = Vec::new();
    /// gradients.give(&mut |bucket| Ok(sums.push(bucket)))?;
    ///
    /// let mut state = OptimizerState::default();
    /// let how = Update { lr: 0.5, rates: &[1.0], max_norm: None, examples: 1.0 };
    /// let adamw = AdamW { weight_decay: 0.0, ..AdamW::default() };
    /// state.step(&adamw, &[("w", &w)], &sums, how)?;
    /// let moved = (w.to_vec1::<f32>()?[0] - 0.5).abs(); // the first step is lr, whatever the gradient
    /// assert!(moved < 1e-6);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn step(
        &mut self,
        optimizer: &dyn Optimizer,
        params: &[(&str, &Var)],
        sums: &[Bucket],
        how: Update<'_>,
    ) -> Result<()> {
        optimizer.check()?;
        check_numbers(how)?;
        check(params, sums, how.rates)?;
        let examples = match how.max_norm {
            None => how.examples,
            Some(max) => divisor(norm(sums, how.rates)?, max, how.examples),
        };
        self.begin(optimizer, params.len(), sums)?;
        for (bucket, state) in sums.iter().zip(&mut self.buckets) {
            let mut slices = Vec::new();
            for (part, data) in bucket.parts.iter().zip(data(bucket, state)?) {
                let (name, param) = params[part.parameter];
                let rate = how.rates[part.parameter];
                if rate == 0. {
                    continue;
                }
                let step = &mut self.steps[part.parameter];
                *step += 1;
                slices.push(Slice {
                    name,
                    range: 0..part.range.len(),
                    lr: how.lr * rate,
                    step: *step,
                    examples,
                    param,
                    data,
                });
            }
            if !slices.is_empty() {
                optimizer.step(&mut slices)?;
            }
        }
        Ok(())
    }

    /// Zeros, where there is nothing yet.
    fn begin(&mut self, optimizer: &dyn Optimizer, params: usize, sums: &[Bucket]) -> Result<()> {
        let names = optimizer.state().len();
        if self.buckets.len() > sums.len() || self.buckets.iter().any(|state| state.len() != names)
        {
            bail!("the optimizer's state is that of another optimizer or network")
        }
        self.steps.resize(params, 0);
        for bucket in &sums[self.buckets.len()..] {
            let zeros = |_: &&str| match &bucket.values {
                BucketMemory::Floats(sums) => Ok(BucketMemory::Floats(vec![0.; sums.len()])),
                BucketMemory::Tensor(sums) => {
                    Ok(BucketMemory::Tensor(retry_with_empty_cache(|| {
                        sums.zeros_like()
                    })?))
                }
            };
            let state = optimizer.state().iter().map(zeros);
            self.buckets.push(state.collect::<Result<_>>()?);
        }
        Ok(())
    }

    /// The state of each bucket, in the order of the names in [`state`](Optimizer::state).
    pub fn buckets(&self) -> &[Vec<BucketMemory>] {
        &self.buckets
    }

    /// The steps that each parameter has taken; none before the first step of all.
    pub fn steps(&self) -> &[u64] {
        &self.steps
    }

    /// Goes on with the state of another one.
    pub fn new(buckets: Vec<Vec<BucketMemory>>, steps: Vec<u64>) -> Self {
        Self { buckets, steps }
    }
}

/// The first part of the sums that is NaN or infinite, with its value. On a GPU none is looked at, because that would
/// wait for the GPU.
///
/// ```
/// use data_parallel_functional::{Bucket, Part, BucketMemory, not_finite_sum};
/// let part = |parameter, range| Part { parameter, range };
/// let bucket = |values: [f32; 3]| Bucket {
///     index: 0,
///     parts: [part(0, 0..1), part(1, 1..3)].into(),
///     values: BucketMemory::Floats(values.to_vec()),
/// };
/// assert!(not_finite_sum(&[bucket([1., 2., 3.])]).is_none());
/// let sums = [bucket([1., 2., f32::INFINITY])];
/// assert_eq!(not_finite_sum(&sums), Some((&part(1, 1..3), f32::INFINITY)));
/// ```
pub fn not_finite_sum(sums: &[Bucket]) -> Option<(&Part, f32)> {
    sums.iter()
        .find_map(|bucket| not_finite_part(&bucket.values, &bucket.parts))
}

/// An error that names a number that no step can be taken with.
fn check_numbers(how: Update<'_>) -> Result<()> {
    check_range("Update", "lr", how.lr, f64::INFINITY)?;
    for rate in how.rates {
        check_range("Update", "a rate", *rate, f64::INFINITY)?;
    }
    let Update {
        max_norm, examples, ..
    } = how;
    if let Some(max) = max_norm
        && (max.is_nan() || max <= 0.)
    {
        bail!("Update: max_norm is {max}; expected more than 0")
    }
    if !(examples.is_finite() && examples > 0.) {
        bail!("Update: examples is {examples}; expected a finite number above 0")
    }
    Ok(())
}

/// An error, where parameters, sums and rates do not fit.
fn check(params: &[(&str, &Var)], sums: &[Bucket], rates: &[f64]) -> Result<()> {
    let all = params.len();
    if rates.len() != all {
        bail!("{all} parameters and {} rates", rates.len())
    }
    for part in sums.iter().flat_map(|bucket| bucket.parts.iter()) {
        let number = part.parameter;
        let len = part.range.len();
        let Some((name, param)) = params.get(number) else {
            bail!("a gradient of parameter {number}, there are {all}")
        };
        let elements = param.elem_count();
        if elements != len {
            bail!("{name} has {elements} elements, the sum of its gradients {len}")
        }
    }
    Ok(())
}

/// The sums and the state of each part of a bucket.
fn data<'a>(bucket: &'a Bucket, state: &'a mut [BucketMemory]) -> Result<Vec<Data<'a>>> {
    let parts = bucket.parts.iter();
    match &bucket.values {
        BucketMemory::Floats(sums) => {
            let mut rest: Vec<&mut [f32]> = Vec::new();
            for values in state {
                match values {
                    BucketMemory::Floats(floats) if floats.len() == sums.len() => rest.push(floats),
                    _ => bail!("the optimizer's state is that of another optimizer or network"),
                }
            }
            let data = parts.map(|part| {
                let len = part.range.len();
                let state = rest.iter_mut().map(|all| all.split_off_mut(..len));
                Data::Cpu {
                    sum: &sums[part.range.clone()],
                    state: state.map(|state| state.expect("as long")).collect(),
                }
            });
            Ok(data.collect())
        }
        BucketMemory::Tensor(sums) => {
            let tensor = |values: &mut BucketMemory| match values {
                BucketMemory::Tensor(tensor) if tensor.dims() == sums.dims() => Ok(tensor.clone()),
                _ => bail!("the optimizer's state is that of another optimizer or network"),
            };
            let state: Vec<Tensor> = state.iter_mut().map(tensor).collect::<Result<_>>()?;
            parts
                .map(|part| {
                    Ok(Data::Gpu {
                        sum: sums.narrow(0, part.range.start, part.range.len())?,
                        state: state.clone(),
                        first: part.range.start,
                    })
                })
                .collect()
        }
    }
}

/// The divisor of the sums with which the norm of their mean is at most `max`: PyTorch's clip_grad_norm_.
fn divisor(norm: f64, max: f64, examples: f64) -> f64 {
    examples / (max / (norm / examples + 1e-6)).min(1.)
}

/// The Euclidean norm of all sums of parameters with a rate.
fn norm(sums: &[Bucket], rates: &[f64]) -> Result<f64> {
    let mut all = 0.;
    for bucket in sums {
        let has_a_rate = |part: &&Part| rates[part.parameter] != 0.;
        for part in bucket.parts.iter().filter(has_a_rate) {
            all += match &bucket.values {
                BucketMemory::Floats(sums) => squares(&sums[part.range.clone()]),
                BucketMemory::Tensor(sums) => {
                    let sums = sums.narrow(0, part.range.start, part.range.len())?;
                    let squares = sums.sqr()?.sum_all()?.to_device(&Device::Cpu)?;
                    f64::from(squares.to_scalar::<f32>()?)
                }
            };
        }
    }
    Ok(all.sqrt())
}

/// Their sum, added in the same order however many threads there are.
fn squares(values: &[f32]) -> f64 {
    let mut of_chunks = vec![0.; values.len().div_ceil(CHUNK)];
    for_each_chunk(
        &mut of_chunks,
        1,
        #[inline(always)]
        |i, sum| {
            let chunk = &values[i * CHUNK..];
            let (strips, rest) = chunk[..CHUNK.min(chunk.len())].as_chunks::<8>();
            let mut sums = [0f64; 8];
            for strip in strips {
                for j in 0..8 {
                    sums[j] += f64::from(strip[j]) * f64::from(strip[j]);
                }
            }
            let of_rest = rest.iter().map(|v| f64::from(*v) * f64::from(*v));
            sum[0] = sums.into_iter().chain(of_rest).sum();
        },
    );
    of_chunks.iter().sum()
}
