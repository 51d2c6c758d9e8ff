//! A minibatch in parts, each on a thread of its own and with synchronized batch norms, gives what the
//! whole gives on one thread.

use crate::support::{
    assert_close, assert_near, assert_refused, random, tensors, upstream, values, variables,
    weighted,
};
use candle_core::{DType, Device, Result, Tensor, Var, bail};
use functional::{Backward, Gradients, Network as _, Summation, Value, candle};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

const TOLERANCE: f64 = 1e-6;
/// Examples of the parts: two, three and four of them, uneven, and with one that has nothing.
const SHARES: [&[usize]; 4] = [&[6, 3], &[1, 5, 3], &[2, 4, 1, 2], &[0, 2, 7]];

/// The vectors that members have brought, and how many members have the sums.
struct Round {
    brought: Vec<Option<Vec<f64>>>,
    served: usize,
}

/// Where the members of a group meet to sum.
struct Meeting {
    round: Mutex<Round>,
    changed: Condvar,
}

impl Meeting {
    fn of(size: usize) -> Arc<Self> {
        let round = Round {
            brought: vec![None; size],
            served: 0,
        };
        Arc::new(Self {
            round: Mutex::new(round),
            changed: Condvar::new(),
        })
    }

    /// Waits as long as `blocked`; a test that has gone wrong fails instead of waiting forever.
    fn wait<'a>(
        &self,
        round: MutexGuard<'a, Round>,
        blocked: impl Fn(&Round) -> bool,
    ) -> Result<MutexGuard<'a, Round>> {
        let limit = Duration::from_secs(20);
        let waited = self
            .changed
            .wait_timeout_while(round, limit, |r| blocked(r));
        match waited.unwrap() {
            (_, late) if late.timed_out() => bail!("a member did not come to the meeting"),
            (round, _) => Ok(round),
        }
    }
}

/// One member of a meeting. All members add in the order of their numbers.
struct Member(usize, Arc<Meeting>);

impl Summation for Member {
    fn sum(&self, values: &mut [f64]) -> Result<()> {
        let Self(number, meeting) = self;
        let round = meeting.round.lock().unwrap();
        let mut round = meeting.wait(round, |r| r.brought[*number].is_some())?;
        round.brought[*number] = Some(values.to_vec());
        meeting.changed.notify_all();
        let mut round = meeting.wait(round, |r| r.brought.iter().any(Option::is_none))?;
        let brought = || round.brought.iter().flatten();
        if brought().any(|v| v.len() != values.len()) {
            bail!("vectors of different lengths")
        }
        for (i, value) in values.iter_mut().enumerate() {
            *value = brought().map(|v| v[i]).sum();
        }
        round.served += 1;
        if round.served == round.brought.len() {
            round.brought.fill(None);
            round.served = 0;
            meeting.changed.notify_all();
        }
        Ok(())
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
        let how = Backward {
            norms,
            outputs: &[&y],
            ..Backward::default()
        };
        gradients.backward_with(&weighted(&y, part(&self.batch[2])?)?, how)?;
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
        let meeting = Meeting::of(shares.len());
        let part = |i: usize| {
            let over: Arc<dyn Summation> = Arc::new(Member(i, meeting.clone()));
            self.step(Some(over), shares[..i].iter().sum(), shares[i])
        };
        thread::scope(|scope| {
            let parts = (0..shares.len()).map(|i| scope.spawn(move || part(i)));
            let parts: Vec<_> = parts.collect();
            let joined = parts.into_iter().map(|part| part.join().unwrap().unwrap());
            joined.collect()
        })
    }

    fn assert_parts(&self, shares: &[usize], tolerance: f64) {
        let whole = self.step(None, 0, shares.iter().sum()).unwrap();
        let parts = self.in_parts(shares);
        let close = |what: &str, part: &[f32], whole: &[f32]| {
            assert_near(&format!("{shares:?}: {what}"), part, whole, tolerance);
        };
        for (i, what) in ["y", "dx", "other"].into_iter().enumerate() {
            let joined = parts.iter().flat_map(|p| p.of_examples[i].clone());
            close(what, &joined.collect::<Vec<_>>(), &whole.of_examples[i]);
        }
        for (i, whole) in whole.d_params.iter().enumerate() {
            let sum = |k| parts.iter().map(|p| p.d_params[i][k]).sum();
            let sums: Vec<f32> = (0..whole.len()).map(sum).collect();
            close(&format!("gradient of parameter {i}"), &sums, whole);
        }
        for (i, whole) in whole.running.iter().enumerate() {
            close("running statistics", &parts[0].running[i], whole);
            let bits =
                |p: &Outcome| -> Vec<u32> { p.running[i].iter().map(|v| v.to_bits()).collect() };
            let first = bits(&parts[0]);
            assert!(
                parts.iter().all(|p| bits(p) == first),
                "the same statistics everywhere"
            );
        }
    }
}

fn statistics(c: usize) -> [Var; 2] {
    let ones = Var::ones(c, DType::F32, &Device::Cpu).unwrap();
    [Var::from_tensor(&random(c, 9)).unwrap(), ones]
}

fn norm(x: &Value, params: &[Tensor], [mean, var]: &[Var; 2]) -> Result<Value> {
    x.batch_norm2d(&params[0], &params[1], mean, var, true)
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
    for network in LAYERS {
        for shares in SHARES {
            layer(network, random((9, 7, 6, 67), 1)).assert_parts(shares, TOLERANCE);
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

/// With a bias, which only moves the running mean, and without.
#[test]
fn a_convolution_before_it() {
    let with_bias: Network = |[x, _], p, running| {
        let y = x.conv2d(&p[2], Some(&p[3]), 1, 1)?;
        norm(&y, p, &running[0])?.relu()
    };
    let without: Network = |[x, other], p, running| {
        let y = x.conv2d(&p[2], None, 1, 1)?;
        (&norm(&y, p, &running[0])? + other)?.relu()
    };
    for (network, bias) in [(with_bias, true), (without, false)] {
        let params = [random(12, 2), random(12, 3), random((12, 5, 3, 3), 4)];
        let mut params = params.to_vec();
        if bias {
            params.push(random(12, 5));
        }
        let x = random((9, 8, 7, 5), 1);
        let case = Case::new(network, x, &[9, 8, 7, 12], params, &[12]);
        SHARES
            .iter()
            .for_each(|shares| case.assert_parts(shares, TOLERANCE));
    }
}

/// A residual block and a classifier, with operations that become one and with some of candle's between them; x is
/// read twice.
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
        let inner = norm(&stem.conv2d(&p[4], None, 2, 1)?, &p[5..], &running[1])?;
        let beside = norm(&stem.conv2d(&p[7], None, 2, 0)?, &p[8..], &running[2])?;
        let (inner, beside) = (cut(inner.relu()?)?, cut(beside)?);
        let block = norm(&inner.conv2d(&p[10], None, 1, 1)?, &p[11..], &running[3])?;
        let block = (block + beside)?.relu()?;
        block.global_avg_pool2d()?.linear(&p[13], Some(&p[14]))
    }
    let ours: Network = |[x, _], p, running| network(x, p, running, Ok);
    let with_candles: Network = |[x, _], p, running| {
        let cut = |x: Value| candle(|x: &Tensor| x * 1.).forward(&x, true);
        network(x, p, running, cut)
    };
    // the stem: a convolution with its bias, a norm
    let mut shapes: Vec<&[usize]> = vec![&[6, 3, 3, 3], &[6], &[6], &[6]];
    // the block: its first half, what is beside it, its second half
    for conv in [&[8, 6, 3, 3], &[8, 6, 1, 1], &[8, 8, 3, 3]] {
        shapes.extend([&conv[..], &[8], &[8]]);
    }
    shapes.extend([&[4, 8][..], &[4]]);
    let params = shapes
        .iter()
        .zip(60..)
        .map(|(shape, seed)| random(*shape, seed));
    let params: Vec<Tensor> = params.collect();
    for network in [ours, with_candles] {
        let x = random((9, 8, 8, 3), 1);
        let case = Case::new(network, x, &[9, 4], params.clone(), &[6, 8, 8, 8]);
        SHARES
            .iter()
            .for_each(|shares| case.assert_parts(shares, 1e-5));
    }
}

/// f32 numbers around 1000 are multiples of 2⁻¹⁴: a mean is no better, and the sums of
/// dy · (x − mean) with it. The variance is: sums of squares in f32 would leave nothing of it.
#[test]
fn a_mean_that_is_large_against_the_deviation() {
    let x = random((9, 7, 6, 5), 1).affine(3f64.sqrt(), 1000.).unwrap();
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
fn normalize(over: &Arc<Alone>, gradients: &mut Gradients, x: &Tensor, weight: &Var) -> Result<()> {
    let [mean, var] = statistics(3);
    let y = Value::new(x)?.batch_norm2d(weight, weight, &mean, &var, true)?;
    let how = Backward {
        norms: Some(over.clone()),
        ..Backward::default()
    };
    gradients.backward_with(&y.relu()?.sum()?, how).map(|_| ())
}

#[test]
fn a_sum_that_fails_is_an_error_in_both_directions() -> Result<()> {
    let vars = variables(&[random((2, 3, 3, 3), 1), random(3, 2)])?;
    let [x, weight] = [&vars[0], &vars[1]];
    let mut gradients = Gradients::new([("x", x), ("weight", weight)], usize::MAX)?;
    let mut pass = |fails_at| normalize(&Alone::failing_at(fails_at), &mut gradients, x, weight);
    pass(9)?;
    // in forward nothing is written
    assert_refused("a peer has left", pass(0));
    pass(9)?;
    assert_refused("a peer has left", pass(1));
    assert_refused("call zero() first", pass(9));
    // after which they are as good as new
    gradients.zero();
    gradients.backward(&(Value::new(x)?.sum()? + Value::new(weight)?.sum()?)?)?;
    for gradient in gradients.values()? {
        assert!(values(&gradient).iter().all(|g| *g == 1.));
    }
    Ok(())
}

#[test]
fn one_sum_in_each_direction() -> Result<()> {
    let vars = variables(&[random((2, 3, 3, 3), 1), random(3, 2)])?;
    let [x, weight] = [&vars[0], &vars[1]];
    let over = Alone::failing_at(9);
    let of_weight = &mut Gradients::new([("weight", weight)], usize::MAX)?;
    normalize(&over, of_weight, x, weight)?;
    assert_eq!(over.calls(), 1, "nothing goes back into x");
    let of_both = &mut Gradients::new([("x", x), ("weight", weight)], usize::MAX)?;
    normalize(&over, of_both, x, weight)?;
    assert_eq!(over.calls(), 3);
    // evaluation has its statistics
    let [mean, var] = statistics(3);
    let y = Value::new(x)?.batch_norm2d(weight, weight, &mean, &var, false)?;
    let how = Backward {
        norms: Some(over.clone()),
        ..Backward::default()
    };
    of_both.backward_with(&y.sum()?, how)?;
    assert_eq!(over.calls(), 3);
    // and so has a pass that is not told of others
    let y = Value::new(x)?.batch_norm2d(weight, weight, &mean, &var, true)?;
    of_both.backward(&y.sum()?)?;
    y.eval()?;
    assert_eq!(over.calls(), 3);
    Ok(())
}

/// A pass inside a pass has statistics of its own.
#[test]
fn the_norms_of_a_module_are_its_own() -> Result<()> {
    let vars = variables(&[random((2, 3, 3, 3), 1), random(3, 2)])?;
    let [x, weight] = [&vars[0], &vars[1]];
    let of_weight = &mut Gradients::new([("weight", weight)], usize::MAX)?;
    let inside = weight.clone();
    let module = candle(move |x: &Tensor| {
        let [mean, var] = statistics(3);
        let y = Value::new(&x.detach())?.batch_norm2d(&inside, &inside, &mean, &var, true)?;
        let mut gradients = Gradients::new([("inside", &inside)], usize::MAX)?;
        gradients.backward(&y.sum()?)?;
        Ok(x.clone())
    });
    let over = Alone::failing_at(9);
    let how = Backward {
        norms: Some(over.clone()),
        ..Backward::default()
    };
    let y = module.forward(&Value::new(x)?.relu()?, true)?;
    let [mean, var] = statistics(3);
    let y = y.batch_norm2d(weight, weight, &mean, &var, true)?;
    of_weight.backward_with(&y.sum()?, how)?;
    assert_eq!(over.calls(), 1);
    Ok(())
}

#[test]
fn parts_that_are_too_small_together() -> Result<()> {
    let weight = Var::from_tensor(&random(3, 2))?;
    for (examples, expected) in [(1, "x has 1 values"), (0, "x has 0 values")] {
        let of_weight = &mut Gradients::new([("weight", &weight)], usize::MAX)?;
        let x = random((examples, 1, 1, 3), 1);
        let refused = normalize(&Alone::failing_at(9), of_weight, &x, &weight);
        assert_refused(expected, refused);
    }
    Ok(())
}

/// What is rounded is an example's alone, so no value of a part comes to lie on another side of ReLU's
/// edge than in the whole: there the gradients would differ by more than rounding.
#[test]
fn parts_have_the_bits_of_the_whole_forward() {
    for (network, size) in LAYERS.into_iter().flat_map(|n| [(n, 3), (n, 16), (n, 20)]) {
        let case = layer(network, random((9, size, size, 67), 1));
        let whole = case.step(None, 0, 9).unwrap();
        for shares in SHARES {
            let parts = case.in_parts(shares);
            let y: Vec<f32> = parts
                .iter()
                .flat_map(|p| p.of_examples[0].clone())
                .collect();
            assert!(y == whole.of_examples[0], "{shares:?}, {size}: y");
            assert!(
                parts[0].running == whole.running,
                "{shares:?}, {size}: statistics"
            );
        }
    }
}
