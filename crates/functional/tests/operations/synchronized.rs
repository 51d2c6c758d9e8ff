//! A minibatch in parts, each on a thread of its own and with synchronized batch norms, gives what the
//! whole gives on one thread.

use crate::support::{assert_close, given, random, upstream, values};
use candle_core::{DType, Device, Result, Tensor, Var, bail};
use functional::{Expr, Gradients, Summation, no_grad, plain, with_synchronized_norms};
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
type Network = fn([&Tensor; 2], &[Tensor], &[[Var; 2]]) -> Result<Tensor>;

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

fn var(t: &Tensor) -> Result<Var> {
    Var::from_tensor(&t.copy()?)
}

impl Case {
    fn new(network: Network, x: Tensor, y: &[usize], params: Vec<Tensor>, norms: &[usize]) -> Self {
        Self {
            network,
            batch: [x, random(y, 51), upstream(&y.into())],
            params,
            norms: norms.to_vec(),
        }
    }

    /// A step with `len` examples from `first` on.
    fn step(&self, over: Option<Arc<dyn Summation>>, first: usize, len: usize) -> Result<Outcome> {
        let part = |t: &Tensor| t.narrow(0, first, len)?.contiguous();
        let (x, other) = (var(&part(&self.batch[0])?)?, var(&part(&self.batch[1])?)?);
        let params: Vec<Var> = self.params.iter().map(var).collect::<Result<_>>()?;
        let tensors: Vec<Tensor> = params.iter().map(|p| p.as_tensor().clone()).collect();
        let running = self.norms.iter().map(|c| statistics(*c));
        let running: Vec<[Var; 2]> = running.collect();
        let forward = || (self.network)([&x, &other], &tensors, &running);
        let y = match &over {
            None => forward()?,
            Some(over) => with_synchronized_norms(over, forward)?,
        };
        let grads = (&y * part(&self.batch[2])?)?.sum_all()?.backward()?;
        let of = |v: &Var| grads.get(v).map_or_else(Vec::new, values);
        Ok(Outcome {
            of_examples: [values(&y), of(&x), of(&other)],
            d_params: params.iter().map(of).collect(),
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
            let whole: Vec<f64> = whole.iter().map(|v| f64::from(*v)).collect();
            assert_close(&format!("{shares:?}: {what}"), part, &whole, tolerance);
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
    [var(&random(c, 9)).unwrap(), ones]
}

fn norm(x: Expr, params: &[Tensor], [mean, var]: &[Var; 2]) -> Expr {
    x.batch_norm2d(&params[0], &params[1], mean, var, true)
}

/// Batch norm alone, with ReLU, with a shortcut, and with both.
const LAYERS: [Network; 4] = [
    |[x, _], p, running| norm(Expr::new(x), p, &running[0]).eval(),
    |[x, _], p, running| norm(Expr::new(x), p, &running[0]).relu().eval(),
    |[x, other], p, running| (norm(Expr::new(x), p, &running[0]) + Expr::new(other)).eval(),
    |[x, other], p, running| {
        let sum = norm(Expr::new(x), p, &running[0]) + Expr::new(other);
        sum.relu().eval()
    },
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
        let y = Expr::new(x).conv2d(&p[2], Some(&p[3]), 1, 1);
        norm(y, p, &running[0]).relu().eval()
    };
    let without: Network = |[x, other], p, running| {
        let y = Expr::new(x).conv2d(&p[2], None, 1, 1);
        (norm(y, p, &running[0]) + Expr::new(other)).relu().eval()
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

/// A residual block and a classifier, as one expression and as four; x is read twice.
#[test]
fn a_network_of_one_expression_and_of_several() {
    fn network(
        [x, _]: [&Tensor; 2],
        p: &[Tensor],
        running: &[[Var; 2]],
        cut: fn(Expr) -> Result<Expr>,
    ) -> Result<Tensor> {
        let x = Expr::new(x);
        let stem = norm(x.conv2d(&p[0], Some(&p[1]), 1, 1), &p[2..], &running[0]);
        let stem = cut(stem.relu())?;
        let inner = norm(stem.clone().conv2d(&p[4], None, 2, 1), &p[5..], &running[1]);
        let beside = norm(stem.conv2d(&p[7], None, 2, 0), &p[8..], &running[2]);
        let (inner, beside) = (cut(inner.relu())?, cut(beside)?);
        let block = norm(inner.conv2d(&p[10], None, 1, 1), &p[11..], &running[3]) + beside;
        block
            .relu()
            .global_avg_pool2d()
            .linear(&p[13], Some(&p[14]))
            .eval()
    }
    let one: Network = |x, p, running| network(x, p, running, Ok);
    let several: Network =
        |x, p, running| network(x, p, running, |part| Ok(Expr::new(&part.eval()?)));
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
    for network in [one, several] {
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

/// Batch norm of x in the scope of `over`, and its weight, which is tracked.
fn normalize(over: &Arc<Alone>, x: &Tensor, train: bool) -> Result<(Tensor, Var)> {
    let over: Arc<dyn Summation> = over.clone();
    let (weight, [mean, running_var]) = (var(&random(3, 2))?, statistics(3));
    let y = with_synchronized_norms(&over, || {
        functional::batch_norm2d(x, &weight, &weight, &mean, &running_var, train)
    });
    Ok((y?, weight))
}

fn assert_left<T>(result: Result<T>) {
    let error = result.err().expect("an error").to_string();
    assert!(error.contains("a peer has left"), "{error}");
}

#[test]
fn a_sum_that_fails_is_an_error_in_both_directions() -> Result<()> {
    let x = var(&random((2, 3, 3, 3), 1))?;
    assert_left(normalize(&Alone::failing_at(0), &x, true));
    let (y, weight) = normalize(&Alone::failing_at(1), &x, true)?;
    let loss = y.sqr()?.sum_all()?;
    assert_left(loss.backward());
    let mut gradients = Gradients::new([("weight", &weight)], usize::MAX)?;
    assert_left(gradients.backward(&loss));
    // which are as good as new afterwards
    gradients.zero();
    gradients.backward(&weight.sum_all()?)?;
    assert_eq!(given(&mut gradients), [[1.; 3]]);
    Ok(())
}

#[test]
fn one_sum_in_each_direction() -> Result<()> {
    let x = random((2, 3, 3, 3), 1);
    let over = Alone::failing_at(9);
    no_grad(|| normalize(&over, &x, true))?;
    assert_eq!(over.calls(), 1);
    let (y, _) = normalize(&over, &x, true)?;
    y.sum_all()?.backward()?;
    assert_eq!(over.calls(), 2, "nothing goes back into x");
    let (y, _) = normalize(&over, var(&x)?.as_tensor(), true)?;
    let loss = y.sum_all()?;
    let elsewhere = || loss.backward().map(|_| ());
    thread::scope(|scope| scope.spawn(elsewhere).join().unwrap())?;
    assert_eq!(over.calls(), 4, "also on a thread without a scope");
    let (y, _) = normalize(&over, var(&x)?.as_tensor(), false)?;
    y.sum_all()?.backward()?;
    assert_eq!(over.calls(), 4, "evaluation has its statistics");
    Ok(())
}

#[test]
fn the_scope_nests_and_ends_and_is_of_one_thread() {
    let calls = |f: &dyn Fn()| {
        let over = Alone::failing_at(9);
        let scope: Arc<dyn Summation> = over.clone();
        with_synchronized_norms(&scope, f);
        over.calls()
    };
    let train = || {
        drop(
            layer(LAYERS[0], random((2, 3, 3, 3), 1))
                .step(None, 0, 2)
                .unwrap(),
        )
    };
    assert_eq!(calls(&train), 2);
    let inner = || assert_eq!(calls(&train), 2);
    assert_eq!(calls(&inner), 0);
    let both = || {
        inner();
        train();
    };
    assert_eq!(calls(&both), 2, "the inner one ended the outer one");
    assert_eq!(
        calls(&|| thread::scope(|s| s.spawn(train).join().unwrap())),
        0
    );
    let outer = Alone::failing_at(9);
    let scope: Arc<dyn Summation> = outer.clone();
    let panicking = || with_synchronized_norms(&scope, || panic!("on purpose"));
    let panicking = std::panic::AssertUnwindSafe(panicking);
    std::panic::catch_unwind(panicking).expect_err("a panic");
    train();
    assert_eq!(outer.calls(), 0);
}

#[test]
fn too_few_values_and_the_plain_twin_are_refused() {
    let refused = |result: Result<Tensor>, expected: &str| {
        let error = result.expect_err("an error").to_string();
        assert!(error.contains(expected), "{error}");
    };
    for (examples, expected) in [(1, "together have 1 values"), (0, "together have 0 values")] {
        let x = random((examples, 1, 1, 3), 1);
        let y = normalize(&Alone::failing_at(9), &x, true);
        refused(y.map(|(y, _)| y), expected);
    }
    let over: Arc<dyn Summation> = Alone::failing_at(9);
    let (x, w, [mean, running_var]) = (random((2, 3, 3, 3), 1), random(3, 2), statistics(3));
    let twin = |train| plain::batch_norm2d(&x, &w, &w, &mean, &running_var, train);
    with_synchronized_norms(&over, || {
        refused(twin(true), "share no statistics");
        twin(false).unwrap();
    });
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
