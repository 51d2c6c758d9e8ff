//! Numbers, gradients and comparisons that the tests share.

use crate::hook::Hook;
use candle_core::{CpuStorage, CustomOp1, Device, Layout, Result, Shape, Tensor, Var};
use functional::{
    BackwardOptions, Bucket, BucketMemory, Gradients, Network, Ready, Summation, Value, candle,
};
use proptest::test_runner::Config as ProptestConfig;
use std::fmt::Display;
use std::sync::Arc;

/// `cases` random cases a test; a failure prints its smallest case and writes no file.
pub fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases)
    }
}

/// Numbers in (−1, 1) that depend on nothing but the seed (SplitMix64).
pub fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let number = |i: usize| {
        let mut z = (seed << 32).wrapping_add(i as u64 + 1);
        z = z.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1. + f32::EPSILON
    };
    (0..n).map(number).collect()
}

/// A tensor of [`numbers`].
pub fn random(shape: impl Into<Shape>, seed: u64) -> Tensor {
    let shape = shape.into();
    tensor(numbers(shape.elem_count(), seed), shape)
}

/// Targets of a binary cross-entropy.
pub fn from_0_to_1(x: &Tensor) -> Tensor {
    x.abs().and_then(|x| x.clamp(0f32, 1f32)).unwrap()
}

/// As [`random`], multiples of 1/8: sums of some hundred products are exact, so that whether one is
/// above 0 does not depend on their order.
pub fn coarse(shape: impl Into<Shape>, seed: u64) -> Tensor {
    let shape = shape.into();
    let numbers = numbers(shape.elem_count(), seed).into_iter();
    tensor(numbers.map(|v| (v * 8.).round() / 8.).collect(), shape)
}

pub fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> Tensor {
    Tensor::from_vec(values, shape.into(), &Device::Cpu).unwrap()
}

/// Labels below `classes`.
pub fn labels(n: usize, classes: usize, seed: u64) -> Tensor {
    let label = |v: &f32| ((v + 1.) / 2. * classes as f32) as u32;
    let labels: Vec<u32> = numbers(n, seed).iter().map(label).collect();
    Tensor::from_vec(labels, n, &Device::Cpu).unwrap()
}

pub fn values(t: &Tensor) -> Vec<f32> {
    t.flatten_all().unwrap().to_vec1().unwrap()
}

pub fn bits(t: &Tensor) -> Vec<u32> {
    values(t).iter().map(|v| v.to_bits()).collect()
}

/// Where the gradients of up to four parameters go.
pub fn gradients_of(params: &[Var], bucket_len: usize) -> Gradients {
    let names = ["first", "second", "third", "fourth"];
    Gradients::new(names.into_iter().zip(params), bucket_len).unwrap()
}

/// The gradients of the parameters in their order, by a pass into one bucket.
pub fn in_one_bucket(loss: &Value, params: &[Var]) -> Vec<f32> {
    let mut gradients = gradients_of(params, usize::MAX);
    gradients.backward(loss).unwrap();
    given(&mut gradients).concat()
}

pub fn values_of(bucket: &Bucket) -> Vec<f32> {
    match &bucket.values {
        BucketMemory::Floats(floats) => floats.clone(),
        BucketMemory::Tensor(tensor) => values(tensor),
    }
}

/// All buckets, handed out.
pub fn taken(gradients: &mut Gradients) -> Vec<Bucket> {
    let mut buckets = Vec::new();
    let mut ready = |bucket| {
        buckets.push(bucket);
        Ok(())
    };
    gradients.give(&mut ready).unwrap();
    buckets
}

/// A pass that hands out its buckets; they come back. Of each, its number and what it holds.
pub fn in_buckets(gradients: &mut Gradients, loss: &Value) -> Result<Vec<(usize, Vec<f32>)>> {
    let mut buckets = Vec::new();
    let result = backward_into(gradients, loss, &mut |bucket| {
        buckets.push(bucket);
        Ok(())
    });
    let mut seen = Vec::new();
    for bucket in buckets {
        seen.push((bucket.index, values_of(&bucket)));
        gradients.put_back(bucket)?;
    }
    result.map(|_| seen)
}

/// A pass that hands out its buckets to `ready`.
pub fn backward_into(gradients: &mut Gradients, loss: &Value, ready: Ready<'_>) -> Result<Tensor> {
    let how = BackwardOptions {
        ready: Some(ready),
        ..BackwardOptions::default()
    };
    gradients.backward_with(loss, how)
}

/// How to take a pass that also computes `outputs`, with batch norms that share their statistics over `norms`.
pub fn with<'a>(
    norms: Option<Arc<dyn Summation>>,
    outputs: &'a [&'a Value],
) -> BackwardOptions<'a> {
    BackwardOptions {
        norms,
        outputs,
        ..BackwardOptions::default()
    }
}

/// What each bucket holds; all are handed out, and put back.
pub fn given(gradients: &mut Gradients) -> Vec<Vec<f32>> {
    let buckets = taken(gradients).into_iter();
    let put_back = |bucket: Bucket| {
        let values = values_of(&bucket);
        gradients.put_back(bucket).unwrap();
        values
    };
    buckets.map(put_back).collect()
}

/// Variables of these numbers.
pub fn variables(inputs: &[Tensor]) -> Result<Vec<Var>> {
    inputs.iter().map(Var::from_tensor).collect()
}

/// The tensors of variables.
pub fn tensors(vars: &[Var]) -> Vec<Tensor> {
    vars.iter().map(|v| v.as_tensor().clone()).collect()
}

/// The gradient of the result of every test: random, so that no mistake cancels.
pub fn upstream(dims: &[usize]) -> Tensor {
    random(dims, 99)
}

/// What an operation gives back for a gradient.
pub type WayBack = fn(&Tensor) -> Result<Option<Tensor>>;

/// Gives its input, with a backward pass of its own.
pub struct Faulty(pub WayBack);

impl CustomOp1 for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((x.clone(), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        (self.0)(dy)
    }
}

/// `x`, and `f` is called when a pass comes by, with whether it is forward.
pub fn on_each_way(x: &Value, f: impl Fn(bool) + Clone + Send + Sync + 'static) -> Result<Value> {
    let hook = move |forward| {
        f(forward);
        Ok(())
    };
    candle(Hook(hook)).forward(x, true)
}

/// Σ y · up, of which `up` is y's gradient.
pub fn weighted(y: &Value, up: Tensor) -> Result<Value> {
    candle(move |y: &Tensor| y * &up).forward(y, true)?.sum()
}

/// y, and the gradients of Σ y · up: from one pass.
pub fn pass(vars: &[Var], y: &Value, up: Tensor) -> Result<Vec<Tensor>> {
    pass_over(None, vars, y, up)
}

/// As [`pass`], with batch norms that share their statistics.
pub fn pass_over(
    norms: Option<Arc<dyn Summation>>,
    vars: &[Var],
    y: &Value,
    up: Tensor,
) -> Result<Vec<Tensor>> {
    let mut gradients = Gradients::new(vars.iter().map(|v| ("an input", v)), usize::MAX)?;
    gradients.backward_with(&weighted(y, up)?, with(norms, &[y]))?;
    let of_vars = gradients.values()?.into_iter().zip(vars);
    let of_vars = of_vars.map(|(gradient, v)| gradient.reshape(v.shape()));
    std::iter::once(y.eval()).chain(of_vars).collect()
}

/// As [`pass`], of a tensor that candle has computed.
pub fn reference_pass(vars: &[Var], y: &Tensor, up: &Tensor) -> Result<Vec<Tensor>> {
    let grads = (y * up)?.sum_all()?.backward()?;
    let grad = |v: &Var| grads.get(v).expect("a gradient").clone();
    let grads = vars.iter().map(grad);
    Ok(std::iter::once(y.detach()).chain(grads).collect())
}

/// `f(inputs)`, and the gradient of each input.
pub fn run(inputs: &[Tensor], f: impl Fn(&[Tensor]) -> Result<Value>) -> Result<Vec<Tensor>> {
    let vars = variables(inputs)?;
    let y = f(&tensors(&vars))?;
    pass(&vars, &y, upstream(y.dims()))
}

/// Checks each element to within `tolerance` of the largest expected one (or of 1).
pub fn assert_close(what: &str, actual: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len(), "{what}: lengths");
    let largest = expected.iter().fold(1f64, |m, v| m.max(v.abs()));
    for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
        let error = (f64::from(*a) - e).abs() / largest;
        // written so that NaN fails
        assert!(error <= tolerance, "{what}[{i}]: {a}, expected {e}");
    }
}

/// As [`assert_close`], for what was computed in f32.
pub fn assert_near(what: &str, actual: &[f32], expected: &[f32], tolerance: f64) {
    let expected: Vec<f64> = expected.iter().map(|v| f64::from(*v)).collect();
    assert_close(what, actual, &expected, tolerance);
}

/// Checks a value and its gradients.
pub fn assert_results(ours: &[Tensor], theirs: &[Tensor], tolerance: f64) {
    assert_eq!(ours.len(), theirs.len());
    for (i, (a, e)) in ours.iter().zip(theirs).enumerate() {
        assert_eq!(a.dims(), e.dims(), "shapes of result {i}");
        let what = format!("result {i} (0 is the value, then the gradients)");
        assert_near(&what, &values(a), &values(e), tolerance);
    }
}

/// Checks that an error says something.
pub fn assert_refused<T, E: Display>(expected: &str, result: std::result::Result<T, E>) {
    let message = result.err().expect("an error").to_string();
    assert!(message.contains(expected), "{message:?}: no {expected:?}");
}
