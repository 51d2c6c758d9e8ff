//! A minibatch in parts, each on a thread of its own and with synchronized batch norms, gives what the
//! whole gives on one thread.

use crate::support::*;
use candle_core::{DType, Device, Result, Tensor, Var, bail};
use functional::{Gradients, Network as _, Summation, Value, candle};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const TOLERANCE: f64 = 1e-6;
/// Examples of the parts: two, three and four of them, uneven, and with one that has nothing.
const SHARES: [&[usize]; 4] = [&[6, 3], &[1, 5, 3], &[2, 4, 1, 2], &[0, 2, 7]];

/// A part of the minibatch among the others.
struct Member(Mutex<collective::Member>);

impl Summation for Member {
    fn sum(&self, values: &mut [f64]) -> Result<()> {
        let mut member = self.0.lock().expect("a part sums once at a time");
        member.sum(values).map_err(candle_core::Error::wrap)
    }
}

/// A network of a minibatch (x, other), parameters, and running statistics.
type Network = fn([&Value; 2], &[Tensor], &[[Var; 2]]) -> Result<Value>;

struct Case {
    network: Network,
    /// x, another input, and the gradient of the result; batch first.
    batch: [Tensor; 3],
    params: Vec<Tensor>,
    /// The channels of each batch norm.
    norms: Vec<usize>,
}

/// What comes out of a step.
struct Outcome {
    /// y, dx, and the gradient of the other input.
    of_examples: [Vec<f32>; 3],
    d_params: Vec<Vec<f32>>,
    running: Vec<Vec<f32>>,
}

impl Case {
    fn new(network: Network, x: Tensor, y: &[usize], params: Vec<Tensor>, norms: &[usize]) -> Self {
        Self {
            network,
            batch: [x, random(y, 51), upstream(y)],
            params,
            norms: norms.to_vec(),
        }
    }

    /// A step with `len` examples from `first` on.
    fn step(&self, norms: Option<Arc<dyn Summation>>, first: usize, len: usize) -> Result<Outcome> {
        let part = |t: &Tensor| t.narrow(0, first, len);
        let inputs = variables(&[part(&self.batch[0])?, part(&self.batch[1])?])?;
        let (x, other) = (Value::new(&inputs[0])?, Value::new(&inputs[1])?);
        let params = variables(&self.params)?;
        let running = self.norms.iter().map(|c| statistics(*c));
        let running: Vec<[Var; 2]> = running.collect();
        let y = (self.network)([&x, &other], &tensors(&params), &running)?;
        let named = inputs.iter().chain(&params).map(|v| ("", v));
        let mut gradients = Gradients::new(named, usize::MAX)?;
        gradients.allow_unused(true); // not every network reads the other input
        let loss = weighted(&y, part(&self.batch[2])?)?;
        gradients.backward_with(&loss, with(norms, &[&y]))?;
        let mut grads = gradients.values()?.into_iter().map(|g| values(&g));
        let mut next = || grads.next().expect("one for each variable");
        Ok(Outcome {
            of_examples: [values(&y.eval()?), next(), next()],
            d_params: grads.collect(),
            running: running.iter().flatten().map(|v| values(v)).collect(),
        })
    }

    /// The outcome of each part on a thread of its own.
    fn in_parts(&self, shares: &[usize]) -> Vec<Outcome> {
        let options = collective::GroupOptions {
            timeout: Some(Duration::from_secs(20)),
            ..collective::GroupOptions::default()
        };
        let part = |member: collective::Member| {
            let i = member.rank();
            let over: Arc<dyn Summation> = Arc::new(Member(Mutex::new(member)));
            self.step(Some(over), shares[..i].iter().sum(), shares[i])
        };
        thread::scope(|scope| {
            let members = collective::group(shares.len(), options).into_iter();
            let parts: Vec<_> = members.map(|m| scope.spawn(|| part(m))).collect();
            let joined = parts.into_iter().map(|part| part.join().unwrap().unwrap());
            joined.collect()
        })
    }

    /// Checks that parts and the whole have the same results and statistics to the bit, and the same gradients to
    /// within `tolerance`. What is rounded forward is an example's alone, so no value of a part comes to lie on
    /// another side of ReLU's edge: there the gradients would differ by more than rounding.
    fn assert_parts(&self, shares: &[usize], tolerance: f64) {
        let whole = self.step(None, 0, shares.iter().sum()).unwrap();
        let parts = self.in_parts(shares);
        for (i, what) in ["y", "dx", "other"].into_iter().enumerate() {
            let joined = parts.iter().flat_map(|p| p.of_examples[i].clone());
            let (joined, whole) = (joined.collect::<Vec<_>>(), &whole.of_examples[i]);
            assert!(i > 0 || joined == *whole, "{shares:?}: other bits in y");
            assert_near(&format!("{shares:?}: {what}"), &joined, whole, tolerance);
        }
        for (i, whole) in whole.d_params.iter().enumerate() {
            let sum = |k| parts.iter().map(|p| p.d_params[i][k]).sum();
            let sums: Vec<f32> = (0..whole.len()).map(sum).collect();
            let what = format!("{shares:?}: gradient of parameter {i}");
            assert_near(&what, &sums, whole, tolerance);
        }
        for part in &parts {
            assert!(part.running == whole.running, "{shares:?}: statistics");
        }
    }
}

fn statistics(c: usize) -> [Var; 2] {
    let ones = Var::ones(c, DType::F32, &Device::Cpu).unwrap();
    [Var::from_tensor(&random(c, 9)).unwrap(), ones]
}

fn norm(x: &Value, params: &[Tensor], [mean, var]: &[Var; 2]) -> Result<Value> {
    x.batch_norm2d([&params[0], &params[1]], [mean, var], None, true)
}

/// Batch norm alone, with ReLU, with a shortcut, and with both.
const LAYERS: [Network; 4] = [
    |[x, _], p, running| norm(x, p, &running[0]),
    |[x, _], p, running| norm(x, p, &running[0])?.relu(),
    |[x, other], p, running| &norm(x, p, &running[0])? + other,
    |[x, other], p, running| (&norm(x, p, &running[0])? + other)?.relu(),
];

fn layer(network: Network, x: Tensor) -> Case {
    let (y, c) = (x.dims().to_vec(), x.dim(3).unwrap());
    Case::new(network, x, &y, vec![random(c, 2), random(c, 3)], &[c])
}

#[test]
fn a_batch_norm_and_what_follows_it() {
    for (height, width) in [(3, 3), (7, 6), (16, 16), (20, 20)] {
        let layers = LAYERS.map(|network| layer(network, random((9, height, width, 67), 1)));
        for (layer, shares) in layers.iter().flat_map(|l| SHARES.map(|shares| (l, shares))) {
            layer.assert_parts(shares, TOLERANCE);
        }
    }
}

#[test]
fn a_part_of_one_value_a_channel() {
    for network in LAYERS {
        for shares in [&[1, 1][..], &[1, 3], &[1, 1, 1], &[2, 1, 1, 1], &[0, 2]] {
            let examples = shares.iter().sum::<usize>();
            layer(network, random((examples, 1, 1, 5), 1)).assert_parts(shares, TOLERANCE);
        }
    }
}

/// A residual block and a classifier, without and with an operation of candle's between them; a value is read twice.
#[test]
fn a_network_of_ours_and_with_operations_of_candles() {
    fn network(
        x: &Value,
        p: &[Tensor],
        running: &[[Var; 2]],
        cut: fn(Value) -> Result<Value>,
    ) -> Result<Value> {
        let stem = norm(&x.conv2d(&p[0], Some(&p[1]), 1, 1)?, &p[2..], &running[0])?;
        let stem = cut(stem.relu()?)?;
        let block = norm(&stem.conv2d(&p[4], None, 1, 1)?, &p[5..], &running[1])?;
        let block = (block + stem)?.relu()?;
        block.global_avg_pool2d()?.linear(&p[7], Some(&p[8]))
    }
    let ours: Network = |[x, _], p, running| network(x, p, running, Ok);
    let with_candles: Network = |[x, _], p, running| {
        let cut = |x: Value| candle(|x: &Tensor| x * 1.).forward(&x, true);
        network(x, p, running, cut)
    };
    let stem: [&[usize]; 4] = [&[6, 3, 3, 3], &[6], &[6], &[6]];
    let rest: [&[usize]; 5] = [&[6, 6, 3, 3], &[6], &[6], &[4, 6], &[4]];
    let shapes = stem.into_iter().chain(rest).zip(60..);
    let params: Vec<Tensor> = shapes.map(|(shape, seed)| random(shape, seed)).collect();
    for network in [ours, with_candles] {
        let x = random((9, 8, 8, 3), 1);
        let case = Case::new(network, x, &[9, 4], params.clone(), &[6, 6]);
        for shares in SHARES {
            case.assert_parts(shares, 1e-5);
        }
    }
}

/// f32 numbers around 1000 are multiples of 2⁻¹⁴: a mean is no better, and the sums of
/// dy · (x − mean) with it. The variance is: sums of squares in f32 would leave nothing of it. There are more
/// values than f32 can add one by one.
#[test]
fn a_mean_that_is_large_against_the_deviation() {
    let x = random((9, 48, 47, 5), 1);
    let x = x.affine(3f64.sqrt(), 1000.).unwrap();
    let all = values(&x);
    let case = layer(LAYERS[0], x);
    for shares in SHARES {
        case.assert_parts(shares, 5e-4);
        let parts = case.in_parts(shares);
        let [mean, var] = [0, 1].map(|i| &parts[0].running[i]);
        for (k, before) in values(&statistics(5)[0]).into_iter().enumerate() {
            let x = || all.iter().skip(k).step_by(5).map(|x| f64::from(*x));
            let n = x().count() as f64;
            let exact = x().sum::<f64>() / n;
            let squares: f64 = x().map(|x| (x - exact).powi(2)).sum();
            let moved = 0.9 * f64::from(before) + 0.1 * exact;
            assert_close("running mean", &mean[k..=k], &[moved], 1e-6);
            let moved = 0.9 + 0.1 * squares / (n - 1.);
            assert_close("running variance", &var[k..=k], &[moved], 1e-5);
        }
    }
}

/// Takes part alone; from its call of number `.0` on it fails. Counts its calls.
struct Alone(usize, AtomicUsize);

impl Alone {
    fn failing_at(call: usize) -> Arc<Self> {
        Arc::new(Self(call, AtomicUsize::new(0)))
    }

    fn calls(&self) -> usize {
        self.1.load(Ordering::Relaxed)
    }
}

impl Summation for Alone {
    fn sum(&self, _: &mut [f64]) -> Result<()> {
        match self.1.fetch_add(1, Ordering::Relaxed) {
            call if call >= self.0 => bail!("a peer has left"),
            _ => Ok(()),
        }
    }
}

/// A pass to the given parameters, over Σ of what is a batch norm of x and its ReLU.
fn normalize(
    over: &Arc<Alone>,
    gradients: &mut Gradients,
    x: &Value,
    weight: &Var,
    train: bool,
) -> Result<()> {
    let [mean, var] = statistics(3);
    let y = x.batch_norm2d([weight, weight], [&mean, &var], None, train)?;
    let how = with(Some(over.clone()), &[]);
    gradients.backward_with(&y.relu()?.sum()?, how).map(|_| ())
}

#[test]
fn a_sum_that_fails_is_an_error_in_both_directions() -> Result<()> {
    let vars = variables(&[random((2, 3, 3, 3), 1), random(3, 2)])?;
    let (x, weight) = (Value::new(&vars[0])?, &vars[1]);
    let mut gradients = Gradients::new([("x", &vars[0]), ("weight", weight)], usize::MAX)?;
    let mut pass = |fails_at| {
        let over = Alone::failing_at(fails_at);
        normalize(&over, &mut gradients, &x, weight, true)
    };
    pass(9)?;
    // in forward nothing is written
    assert_refused("a peer has left", pass(0));
    pass(9)?;
    assert_refused("a peer has left", pass(1));
    assert_refused("call zero() first", pass(9));
    // after which they are as good as new
    gradients.zero();
    gradients.backward(&(x.sum()? + Value::new(weight)?.sum()?)?)?;
    for gradient in gradients.values()? {
        assert!(values(&gradient).iter().all(|g| *g == 1.));
    }
    Ok(())
}

#[test]
fn one_sum_in_each_direction() -> Result<()> {
    let vars = variables(&[random((2, 3, 3, 3), 1), random(3, 2)])?;
    let (x, weight) = (Value::new(&vars[0])?, &vars[1]);
    let over = Alone::failing_at(9);
    let of_weight = &mut Gradients::new([("weight", weight)], usize::MAX)?;
    normalize(&over, of_weight, &x, weight, true)?;
    assert_eq!(over.calls(), 1, "nothing goes back into x");
    let of_both = &mut Gradients::new([("x", &vars[0]), ("weight", weight)], usize::MAX)?;
    normalize(&over, of_both, &x, weight, true)?;
    assert_eq!(over.calls(), 3);
    // evaluation has its statistics
    normalize(&over, of_both, &x, weight, false)?;
    // and so has a pass that is not told of others
    let [mean, var] = statistics(3);
    let y = x.batch_norm2d([weight, weight], [&mean, &var], None, true)?;
    of_both.backward(&y.sum()?)?;
    y.eval()?;
    assert_eq!(over.calls(), 3);
    Ok(())
}

/// A pass inside a pass has statistics of its own.
#[test]
fn the_norms_of_a_module_are_its_own() -> Result<()> {
    let vars = variables(&[random((2, 3, 3, 3), 1), random(3, 2)])?;
    let (x, weight) = (Value::new(&vars[0])?, &vars[1]);
    let inside = weight.clone();
    let module = candle(move |x: &Tensor| {
        let [mean, var] = statistics(3);
        let y =
            Value::new(&x.detach())?.batch_norm2d([&inside, &inside], [&mean, &var], None, true)?;
        let mut gradients = Gradients::new([("inside", &inside)], usize::MAX)?;
        gradients.backward(&y.sum()?)?;
        Ok(x.clone())
    });
    let over = Alone::failing_at(9);
    let of_weight = &mut Gradients::new([("weight", weight)], usize::MAX)?;
    let y = module.forward(&x.relu()?, true)?;
    normalize(&over, of_weight, &y, weight, true)?;
    assert_eq!(over.calls(), 1);
    Ok(())
}

#[test]
fn parts_that_are_too_small_together() -> Result<()> {
    let weight = Var::from_tensor(&random(3, 2))?;
    for (examples, expected) in [(1, "x has 1 values"), (0, "x has 0 values")] {
        let of_weight = &mut Gradients::new([("weight", &weight)], usize::MAX)?;
        let x = Value::new(&random((examples, 1, 1, 3), 1))?;
        let over = Alone::failing_at(9);
        assert_refused(expected, normalize(&over, of_weight, &x, &weight, true));
    }
    Ok(())
}
