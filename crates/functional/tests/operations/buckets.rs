//! Buckets of gradients: when they are handed out, that what is in them does not depend on it, and what
//! happens where a network changes under way.

use crate::support::{cases, coarse, given, random, tensor, values, values_of};
use candle_core::{CpuStorage, CustomOp1, Device, Layout, Result, Shape, Tensor, Var};
use functional::{Bucket, Expr, Gradients, Values};
use proptest::prelude::*;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

const LENS: [usize; 4] = [0, 9, 20, usize::MAX];

/// Matrices of 3 × 3, small enough that nothing overflows.
fn vars(n: u64) -> Vec<Var> {
    let var = |seed| Var::from_tensor(&coarse((3, 3), seed)).unwrap();
    (0..n).map(var).collect()
}

fn new(params: &[Var], bucket_len: usize) -> Gradients {
    let names = ["first", "second", "third", "fourth"];
    Gradients::new(names.into_iter().zip(params), bucket_len).unwrap()
}

/// The gradients of the parameters in their order, by a pass into one bucket.
fn expected(loss: &Tensor, params: &[Var]) -> Vec<f32> {
    let mut gradients = new(params, usize::MAX);
    gradients.backward(loss).unwrap();
    given(&mut gradients).concat()
}

/// A pass that hands out its buckets; they come back.
fn pass(gradients: &mut Gradients, loss: &Tensor) -> Result<Vec<(usize, Vec<f32>)>> {
    let (ready, buckets) = channel();
    let result = gradients.backward_giving(loss, &ready);
    let mut seen = Vec::new();
    for bucket in buckets.try_iter() {
        seen.push((bucket.index, values_of(&bucket)));
        gradients.put_back(bucket)?;
    }
    result.map(|()| seen)
}

/// The elements of all buckets in the order of the parameters; checks that the buckets came in theirs.
fn in_order(buckets: Vec<(usize, Vec<f32>)>) -> Vec<f32> {
    assert!(buckets.iter().map(|b| b.0).eq(0..buckets.len()));
    let values = buckets.into_iter().rev().map(|b| b.1);
    values.collect::<Vec<_>>().concat()
}

fn linear(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    functional::linear(x, w, None)
}

/// What happened in a pass, in order.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Event {
    /// Backward is through with the layers from this number on, and comes to the one below.
    Below(usize),
    Bucket(usize),
}
use Event::Below;

/// Looks which buckets have come, and keeps them.
struct Watch {
    buckets: Mutex<Receiver<Bucket>>,
    seen: Mutex<(Vec<Event>, Vec<Bucket>)>,
}

impl Watch {
    fn new() -> (Sender<Bucket>, Arc<Self>) {
        let (ready, buckets) = channel();
        let watch = Self {
            buckets: Mutex::new(buckets),
            seen: Mutex::default(),
        };
        (ready, Arc::new(watch))
    }

    fn look(&self) {
        let mut seen = self.seen.lock().unwrap();
        for bucket in self.buckets.lock().unwrap().try_iter() {
            seen.0.push(Event::Bucket(bucket.index));
            seen.1.push(bucket);
        }
    }

    /// All events; the buckets go back.
    fn events(&self, gradients: &mut Gradients) -> Vec<Event> {
        self.look();
        let (events, buckets) = std::mem::take(&mut *self.seen.lock().unwrap());
        let mut buckets = buckets.into_iter();
        buckets.try_for_each(|b| gradients.put_back(b)).unwrap();
        events
    }
}

/// Stands below a layer and looks when backward comes by.
struct Probe(usize, Arc<Watch>);

impl CustomOp1 for Probe {
    fn name(&self) -> &'static str {
        "probe"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((x.clone(), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        self.1.look();
        self.1.seen.lock().unwrap().0.push(Below(self.0));
        Ok(Some(dy.clone()))
    }
}

#[test]
fn each_bucket_comes_before_the_gradients_of_the_layer_below() -> Result<()> {
    use Event::Bucket;
    let params = vars(3);
    let mut gradients = new(&params, 9);
    let at_the_end = [Below(2), Below(1), Bucket(0), Bucket(1), Bucket(2)];
    let meanwhile = [Bucket(0), Below(2), Bucket(1), Below(1), Bucket(2)];
    for expected in [at_the_end, meanwhile, meanwhile] {
        let (ready, watch) = Watch::new();
        let probe = |layer| Probe(layer, watch.clone());
        let x = linear(&random((2, 3), 1), &params[0])?.apply_op1(probe(1))?;
        let x = linear(&x, &params[1])?.apply_op1(probe(2))?;
        let loss = linear(&x, &params[2])?.sum_all()?;
        gradients.backward_giving(&loss, &ready)?;
        assert_eq!(watch.events(&mut gradients), expected);
    }
    Ok(())
}

#[test]
fn a_bucket_waits_for_those_before_it() -> Result<()> {
    use Event::Bucket;
    let params = vars(2);
    let mut gradients = new(&params, 9);
    let at_the_end = [Below(1), Bucket(0), Bucket(1)];
    for _ in 0..3 {
        // candle's own operation uses the last parameter: its gradient is complete only at the end
        let (ready, watch) = Watch::new();
        let x = random((2, 3), 1).matmul(&params[1])?;
        let loss = linear(&x.apply_op1(Probe(1, watch.clone()))?, &params[0])?.sum_all()?;
        gradients.backward_giving(&loss, &ready)?;
        assert_eq!(watch.events(&mut gradients), at_the_end);
    }
    Ok(())
}

#[test]
fn another_thread_takes_buckets_while_backward_goes_on() -> Result<()> {
    let params = vars(3);
    let mut gradients = new(&params, 9);
    let loss = || network(0, &params).unwrap();
    pass(&mut gradients, &loss())?;
    gradients.zero();
    let (ready, buckets) = channel();
    let doubled = std::thread::spawn(move || {
        let double = |mut bucket: Bucket| {
            let Values::Floats(floats) = &mut bucket.values else {
                panic!("the parameters are on the CPU")
            };
            floats.iter_mut().for_each(|v| *v *= 2.);
            bucket
        };
        buckets.iter().map(double).collect::<Vec<_>>()
    });
    gradients.backward_giving(&loss(), &ready)?;
    drop(ready);
    for bucket in doubled.join().unwrap() {
        gradients.put_back(bucket)?;
    }
    let mut actual = given(&mut gradients);
    actual.reverse();
    let expected: Vec<f32> = expected(&loss(), &params).iter().map(|v| v * 2.).collect();
    assert_eq!(actual.concat(), expected);
    Ok(())
}

/// Networks that use their three parameters in all the ways there are.
fn network(kind: usize, params: &[Var]) -> Result<Tensor> {
    let [a, b, c] = [&params[0], &params[1], &params[2]];
    let x = random((2, 3), 7);
    let in_one = |weights: &[&Var]| {
        let layer = |x: Expr, w: &&Var| x.linear(w, None).relu();
        weights.iter().fold(Expr::new(&x), layer).eval()
    };
    let squares = |w: &Var| w.sqr()?.sum_all();
    let loss = match kind {
        0 => in_one(&[a, b, c])?,                      // one expression
        1 => linear(&linear(&linear(&x, a)?, b)?, c)?, // several
        2 => in_one(&[a, b, a, c])?,                   // one twice in it
        3 => (Expr::new(a).linear(a, None).linear(b, None) + Expr::new(c)).eval()?, // twice in a step
        4 => linear(&in_one(&[a, b])?, b)?.matmul(&linear(c, a)?)?, // in two expressions
        5 => linear(&x.matmul(b)?, a)?.broadcast_add(&squares(c)?)?, // candle's alone, ours alone
        6 => in_one(&[a, b, c])?.broadcast_add(&squares(b)?)?,      // both
        _ => in_one(&[a, b, c])?.broadcast_add(&linear(&x, &b.t()?)?.sum_all()?)?, // through a view
    };
    loss.sqr()?.sum_all()
}

#[test]
fn buckets_have_the_bits_of_one_bucket() -> Result<()> {
    let params = vars(3);
    for (kind, bucket_len) in (0..8).flat_map(|kind| LENS.map(|len| (kind, len))) {
        let expected = expected(&network(kind, &params)?, &params);
        let mut gradients = new(&params, bucket_len);
        for _ in 0..3 {
            gradients.zero();
            let buckets = pass(&mut gradients, &network(kind, &params)?)?;
            assert_eq!(in_order(buckets), expected, "{kind} {bucket_len}");
        }
    }
    Ok(())
}

#[test]
fn buckets_have_the_gradients_of_candles_store_and_of_variables() -> Result<()> {
    let params = vars(3);
    for kind in 0..8 {
        let actual = expected(&network(kind, &params)?, &params);
        let stored = network(kind, &params)?.backward()?;
        let stored = params.iter().map(|p| values(stored.get(p).unwrap()));
        assert!(stored.clone().all(|g| g.iter().any(|v| *v != 0.)), "{kind}");
        for (a, e) in actual.iter().zip(stored.collect::<Vec<_>>().concat()) {
            assert!((a - e).abs() <= 1e-4 * e.abs().max(1.), "{kind}: {a} {e}");
        }
        let grads = vars(3);
        functional::backward(&network(kind, &params)?, params.iter().zip(&grads))?;
        let grads: Vec<_> = grads.iter().map(|g| values(g)).collect();
        assert_eq!(grads.concat(), actual, "{kind}");
    }
    Ok(())
}

#[test]
fn gradients_add_up_until_they_are_forgotten() -> Result<()> {
    let params = vars(3);
    for (bucket_len, kind) in LENS
        .into_iter()
        .flat_map(|len| [0, 1, 2, 4, 5, 6, 7].map(|k| (len, k)))
    {
        let (first, second) = (network(kind, &params)?, network(1, &params)?);
        let sums = |a: Vec<f32>, b: Vec<f32>| a.into_iter().zip(b).map(|(a, b)| a + b).collect();
        let sum: Vec<f32> = sums(expected(&first, &params), expected(&second, &params));
        let mut gradients = new(&params, bucket_len);
        for _ in 0..3 {
            gradients.zero();
            gradients.backward(&network(1, &params)?)?;
            gradients.backward(&network(kind, &params)?)?;
            let actual = in_order(given(&mut gradients).into_iter().enumerate().collect());
            assert_near(&actual, &sum);
            // and where the last pass hands out what the first began
            gradients.zero();
            gradients.backward(&network(kind, &params)?)?;
            gradients.backward(&network(1, &params)?)?;
            assert_near(
                &in_order(pass(&mut gradients, &network(1, &params)?)?),
                &sums(sum.clone(), expected(&second, &params)),
            );
        }
    }
    Ok(())
}

fn assert_near(actual: &[f32], expected: &[f32]) {
    let expected: Vec<f64> = expected.iter().map(|v| f64::from(*v)).collect();
    crate::support::assert_close("sum", actual, &expected, 1e-5);
}

/// A network that is a chain of matrices: of each link, which, and how it is multiplied.
#[derive(Debug, Clone, Copy)]
enum Link {
    /// In an expression of its own.
    Alone(usize),
    /// Together with the next link.
    Joined(usize),
    /// By candle.
    Candles(usize),
}

fn chain(links: &[Link], params: &[Var]) -> Result<Tensor> {
    let mut x = Expr::new(&random((2, 3), 3));
    for link in links {
        x = match *link {
            Link::Alone(i) => Expr::new(&x.linear(&params[i], None).eval()?),
            Link::Joined(i) => x.linear(&params[i], None),
            Link::Candles(i) => Expr::new(&x.eval()?.matmul(&params[i])?),
        };
    }
    x.eval()?.sum_all()
}

/// Each parameter somewhere, and some of them again.
fn links() -> impl Strategy<Value = Vec<Link>> {
    let link = |i: usize| {
        let link = (0..5).prop_map(move |kind| match kind {
            0 => Link::Candles(i),
            1 | 2 => Link::Joined(i),
            _ => Link::Alone(i),
        });
        link.boxed()
    };
    let again = prop::collection::vec((0usize..3).prop_flat_map(link), 0..3);
    let links =
        ([link(0), link(1), link(2)], again).prop_map(|(each, again)| [&each[..], &again].concat());
    links.prop_shuffle()
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn a_network_that_changes_gives_the_right_gradients_or_an_error(
        networks in prop::collection::vec(links(), 2..5),
        bucket_len in prop::sample::select(&LENS[..]),
    ) {
        let params = vars(3);
        let mut gradients = new(&params, bucket_len);
        for links in &networks {
            let right = expected(&chain(links, &params).unwrap(), &params);
            gradients.zero();
            match pass(&mut gradients, &chain(links, &params).unwrap()) {
                Ok(buckets) => prop_assert_eq!(in_order(buckets), right),
                Err(error) => {
                    let error = error.to_string();
                    prop_assert!(error.contains("train it without overlap"), "{}", error);
                    gradients.zero(); // what was learned is forgotten as well
                    let buckets = pass(&mut gradients, &chain(links, &params).unwrap());
                    prop_assert_eq!(in_order(buckets.unwrap()), right);
                }
            }
        }
    }
}

/// A pass over `before`, and the error of the one over `after`.
fn changed(before: &[Link], after: &[Link], bucket_len: usize) -> String {
    let params = vars(2);
    let mut gradients = new(&params, bucket_len);
    pass(&mut gradients, &chain(before, &params).unwrap()).unwrap();
    gradients.zero();
    let error = pass(&mut gradients, &chain(after, &params).unwrap()).unwrap_err();
    // it says so until the rest is forgotten
    let again = gradients.backward(&chain(before, &params).unwrap());
    assert!(again.unwrap_err().to_string().contains("zero()"));
    let (ready, _buckets) = channel();
    assert!(gradients.give(&ready).is_err());
    error.to_string()
}

#[test]
fn what_comes_after_its_bucket_names_the_parameter() {
    use Link::{Alone, Candles, Joined};
    let before = [Alone(0), Alone(1)];
    let cases = [
        (&[Alone(1), Alone(0), Alone(1)][..], 9, "second"), // in another expression
        (&[Alone(0), Candles(1), Alone(1)], 9, "second"),   // in an operation of candle's
        (&[Joined(1), Alone(0), Alone(1)], usize::MAX, "second"), // below what completes the bucket
    ];
    for (after, bucket_len, name) in cases {
        let error = changed(&before, after, bucket_len);
        assert!(
            error.contains(&format!(
                "parameter {name} got another gradient after its bucket"
            )),
            "{error}"
        );
        assert!(error.contains("train it without overlap"), "{error}");
    }
}

#[test]
fn less_than_before_comes_at_the_end() -> Result<()> {
    let params = vars(2);
    let mut gradients = new(&params, 9);
    let twice = [Link::Alone(0), Link::Alone(1), Link::Alone(1)];
    for links in [&twice[..], &twice[..2], &twice[..2]] {
        gradients.zero();
        let right = expected(&chain(links, &params)?, &params);
        let buckets = pass(&mut gradients, &chain(links, &params)?)?;
        assert_eq!(in_order(buckets), right);
    }
    Ok(())
}

#[test]
fn without_an_example_all_buckets_are_zeros() -> Result<()> {
    let params = vars(3);
    let mut gradients = new(&params, 9);
    gradients.backward(&network(0, &params)?)?;
    assert!(given(&mut gradients).concat().iter().any(|v| *v != 0.));
    gradients.zero();
    assert_eq!(given(&mut gradients), vec![vec![0.; 9]; 3]);
    // what is put back counts, and a later pass knows what the one before learned
    let (ready, watch) = Watch::new();
    gradients.zero();
    gradients.backward_giving(&network(0, &params)?, &ready)?;
    assert_eq!(watch.events(&mut gradients), [0, 1, 2].map(Event::Bucket));
    let mut actual = given(&mut gradients);
    actual.reverse();
    assert_eq!(actual.concat(), expected(&network(0, &params)?, &params));
    Ok(())
}

#[test]
fn a_loss_that_misses_a_parameter_names_it_and_spoils_nothing_else() -> Result<()> {
    let params = vars(3);
    let mut gradients = new(&params, 9);
    for _ in 0..2 {
        let loss = chain(&[Link::Alone(0), Link::Joined(2)], &params)?;
        let error = pass(&mut gradients, &loss).unwrap_err().to_string();
        assert!(
            error.contains("does not depend on the parameter second"),
            "{error}"
        );
        gradients.zero();
        let buckets = pass(&mut gradients, &network(0, &params)?)?;
        assert_eq!(in_order(buckets), expected(&network(0, &params)?, &params));
        gradients.zero();
    }
    Ok(())
}

#[test]
fn a_bucket_is_in_or_out() -> Result<()> {
    let params = vars(2);
    let mut gradients = new(&params, 9);
    let loss = chain(&[Link::Alone(0), Link::Alone(1)], &params)?;
    let bucket = |index, len| Bucket {
        index,
        parts: [].into(),
        values: Values::Floats(vec![1.; len]),
    };
    let refused = |result: Result<()>, because: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(because), "{error}");
    };
    refused(
        gradients.put_back(bucket(0, 9)),
        "cannot put back bucket 0: it was not handed out",
    );
    refused(
        gradients.put_back(bucket(2, 9)),
        "cannot put back bucket 2: there are 2 buckets",
    );
    let (ready, buckets) = channel();
    gradients.give(&ready)?;
    refused(gradients.give(&ready), "bucket 0 is handed out");
    refused(
        gradients.put_back(bucket(1, 8)),
        "with 8 elements: it had 9",
    );
    let elsewhere = Bucket {
        values: Values::Tensor(tensor(vec![1.; 8], 8)),
        ..bucket(1, 0)
    };
    refused(gradients.put_back(elsewhere), "with 8 elements: it had 9");
    gradients.put_back(buckets.recv().unwrap())?;
    refused(gradients.backward(&loss), "bucket 1 is handed out");
    gradients.put_back(bucket(1, 9))?; // another memory does as well
    gradients.backward(&loss)?;
    drop(buckets);
    refused(
        gradients.give(&ready),
        "cannot hand out bucket 0: its receiver was dropped",
    );
    refused(
        gradients.backward_giving(&loss, &ready),
        "its receiver was dropped",
    );
    gradients.zero();
    gradients.backward(&loss)?; // nothing was lost
    assert_eq!(given(&mut gradients).len(), 2);
    Ok(())
}

#[test]
fn a_tensor_on_the_cpu_can_come_back_for_floats() -> Result<()> {
    let params = vars(2);
    let mut gradients = new(&params, usize::MAX);
    let (ready, buckets) = channel();
    gradients.give(&ready)?;
    let mut bucket = buckets.recv().unwrap();
    bucket.values = Values::Tensor(Tensor::zeros(18, candle_core::DType::F32, &Device::Cpu)?);
    gradients.put_back(bucket)?;
    gradients.zero();
    let loss = chain(&[Link::Alone(0), Link::Alone(1)], &params)?;
    assert_eq!(
        in_order(pass(&mut gradients, &loss)?),
        expected(&loss, &params)
    );
    Ok(())
}

#[test]
fn the_layout_says_what_lies_where() -> Result<()> {
    let shapes: [&[usize]; 5] = [&[4, 2, 3, 3], &[4], &[2, 4], &[2], &[3]];
    let params: Vec<Var> = shapes
        .iter()
        .map(|shape| Var::zeros(*shape, candle_core::DType::F32, &Device::Cpu))
        .collect::<Result<_>>()?;
    let gradients = Gradients::new(params.iter().map(|p| ("", p)), 10)?;
    let layout: Vec<Vec<_>> = gradients
        .layout()
        .map(|parts| {
            parts
                .iter()
                .map(|p| (p.parameter, p.range.clone()))
                .collect()
        })
        .collect();
    let expected = [
        vec![(3, 0..2), (4, 2..5)],
        vec![(2, 0..8)],
        vec![(1, 0..4)],
        vec![(0, 0..72)],
    ];
    assert_eq!(layout, expected);
    Ok(())
}

/// On the way back it computes gradients of its own, as recomputing a layer does.
struct Inner;

impl CustomOp1 for Inner {
    fn name(&self) -> &'static str {
        "inner"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((x.clone(), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        let params = vars(2);
        let loss = chain(&[Link::Alone(0), Link::Alone(1)], &params)?;
        assert_eq!(expected(&loss, &params).len(), 18);
        Ok(Some(dy.clone()))
    }
}

#[test]
fn a_pass_inside_a_pass_leaves_the_outer_one_its_places() -> Result<()> {
    let params = vars(2);
    let loss = |inner: bool| {
        let x = linear(&random((2, 3), 1), &params[0])?;
        let x = if inner { x.apply_op1(Inner)? } else { x };
        linear(&x, &params[1])?.sum_all()
    };
    assert_eq!(
        expected(&loss(true)?, &params),
        expected(&loss(false)?, &params)
    );
    Ok(())
}
