//! Numbers, gradients and comparisons that the tests share.

use candle_core::{Device, Result, Shape, Tensor, Var};
use functional::{Bucket, Gradients, Values};
use proptest::test_runner::Config as ProptestConfig;

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

/// As [`random`], multiples of 1/8: sums of some hundred products are exact, so that whether one is
/// above 0 does not depend on their order.
pub fn coarse(shape: impl Into<Shape>, seed: u64) -> Tensor {
    let shape = shape.into();
    let numbers = numbers(shape.elem_count(), seed);
    tensor(
        numbers.iter().map(|v| (v * 8.).round() / 8.).collect(),
        shape,
    )
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

pub fn values_of(bucket: &Bucket) -> Vec<f32> {
    match &bucket.values {
        Values::Floats(floats) => floats.clone(),
        Values::Tensor(tensor) => values(tensor),
    }
}

/// What each bucket holds; all are handed out, and put back.
pub fn given(gradients: &mut Gradients) -> Vec<Vec<f32>> {
    let (ready, buckets) = std::sync::mpsc::channel();
    gradients.give(&ready).unwrap();
    let take = |bucket: Bucket| {
        let values = values_of(&bucket);
        gradients.put_back(bucket).unwrap();
        values
    };
    buckets.try_iter().map(take).collect()
}

/// The upstream gradient of every test: random, so that no mistake cancels.
pub fn upstream(shape: &Shape) -> Tensor {
    random(shape.clone(), 99)
}

/// `f(inputs)`, and the gradient of each input under [`upstream`].
pub fn run(inputs: &[Tensor], f: impl Fn(&[Tensor]) -> Result<Tensor>) -> Result<Vec<Tensor>> {
    let vars = inputs.iter().map(Var::from_tensor);
    let vars: Vec<Tensor> = vars.map(|v| Ok(v?.into_inner())).collect::<Result<_>>()?;
    let y = f(&vars)?;
    let grads = (&y * upstream(y.shape()))?.sum_all()?.backward()?;
    let grad = |v: &Tensor| grads.get(v).expect("each input has a gradient").clone();
    let mut results = vec![y.detach()];
    results.extend(vars.iter().map(grad));
    Ok(results)
}

/// Checks each element to within `tolerance` of the largest expected one (or of 1).
pub fn assert_close(what: &str, actual: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len(), "{what}: lengths");
    let largest = expected.iter().fold(1f64, |m, v| m.max(v.abs()));
    for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
        let error = (f64::from(*a) - e).abs() / largest;
        // written so that NaN fails
        assert!(
            error <= tolerance,
            "{what}[{i}]: {a}, expected {e} (error {error:e})"
        );
    }
}

/// Checks that two ways to compute the same agree, in the value and in all gradients.
pub fn assert_same(
    inputs: &[Tensor],
    tolerance: f64,
    ours: impl Fn(&[Tensor]) -> Result<Tensor>,
    theirs: impl Fn(&[Tensor]) -> Result<Tensor>,
) {
    let (ours, theirs) = (run(inputs, ours).unwrap(), run(inputs, theirs).unwrap());
    for (i, (a, e)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(a.dims(), e.dims(), "shapes of result {i}");
        let expected: Vec<f64> = values(e).iter().map(|v| f64::from(*v)).collect();
        let what = format!("result {i} (0 is the value, then the gradients)");
        assert_close(&what, &values(a), &expected, tolerance);
    }
}
