//! Buckets of gradients: when they are handed out, that what is in them does not depend on it, and what
//! happens where a network changes from step to step.

use crate::both::Both;
use crate::support::*;
use candle_core::{Device, Result, Tensor, Var, bail};
use functional::{BackwardOptions, Bucket, BucketMemory, Gradients, Part, Value};
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

const LENS: [usize; 4] = [0, 9, 20, usize::MAX];

/// Matrices of 3 × 3, small enough that nothing overflows.
fn vars(n: u64) -> Vec<Var> {
    let var = |seed| Var::from_tensor(&coarse((3, 3), seed)).unwrap();
    (0..n).map(var).collect()
}

/// The gradients of the parameters in their order, by the reference; of one that is not used, zeros.
fn stored(loss: &Tensor, params: &[Var]) -> Vec<f32> {
    let grads = loss.backward().unwrap();
    let of = |p: &Var| grads.get(p).map_or(vec![0.; p.elem_count()], values);
    params.iter().flat_map(of).collect()
}

/// The elements of all buckets in the order of the parameters; checks that the buckets came in theirs.
fn in_order(buckets: Vec<(usize, Vec<f32>)>) -> Vec<f32> {
    assert!(buckets.iter().map(|b| b.0).eq(0..buckets.len()));
    let values = buckets.into_iter().rev().map(|b| b.1);
    values.collect::<Vec<_>>().concat()
}

/// As [`in_order`], of all buckets that are there.
fn all_given(gradients: &mut Gradients) -> Vec<f32> {
    in_order(given(gradients).into_iter().enumerate().collect())
}

fn layers(weights: &[&Var]) -> Result<Both> {
    let x = Both::new(&random((2, 3), 1))?;
    weights.iter().try_fold(x, |x, w| x.linear(w, None))
}

/// What happens in a pass over linear layers of these parameters, in order: backward comes to the layer of this
/// number, `l0` the lowest, or a bucket is handed out, `b0`.
fn events(gradients: &mut Gradients, layers: &[&Tensor]) -> Result<String> {
    let events: Arc<Mutex<Vec<String>>> = Arc::default();
    let mut x = Value::new(&random((2, 3), 1))?;
    for (number, weight) in layers.iter().enumerate() {
        let events = events.clone();
        x = on_each_way(&x.linear(weight, None)?, move |forward| {
            if !forward {
                events.lock().unwrap().push(format!("l{number}"));
            }
        })?;
    }
    let mut buckets = Vec::new();
    backward_into(gradients, &x.sum()?, &mut |bucket| {
        events.lock().unwrap().push(format!("b{}", bucket.index));
        buckets.push(bucket);
        Ok(())
    })?;
    let mut buckets = buckets.into_iter();
    buckets.try_for_each(|b| gradients.put_back(b))?;
    let events = events.lock().unwrap().join(" ");
    Ok(events)
}

/// From the first pass on. Bucket 0 has the last parameter.
#[test]
fn a_bucket_comes_as_soon_as_all_parts_of_it_and_those_before_it_are_complete() -> Result<()> {
    let params = vars(3);
    let [a, b, c] = [0, 1, 2].map(|i| params[i].as_tensor());
    let computed = &(b * 2.)?;
    let mut gradients = [0..3, 0..2, 1..2].map(|part| gradients_of(&params[part], 9));
    gradients[0].allow_unused(true);
    // of which gradients, the layers from below, and what happens
    let cases: [(usize, &[&Tensor], &str); 7] = [
        (0, &[a, b, c], "l2 b0 l1 b1 l0 b2"), // each bucket comes before the layer below
        (1, &[b, a], "l1 l0 b0 b1"),          // the last parameter is used first
        (1, &[computed, a], "l1 l0 b0 b1"),   // also where candle has computed with it
        (1, &[b, a, b], "l2 l1 l0 b0 b1"),    // it is used first and last
        (1, &[a, b], "l1 b0 l0 b1"),          // and once only, after that
        (0, &[a, b], "b0 l1 b1 l0 b2"),       // a bucket that waits for nothing comes at once
        (2, &[a, b], "l1 b0"),                // what lies below all parameters is not computed
    ];
    for (i, (which, layers, expected)) in cases.iter().chain(&cases).enumerate() {
        let found = events(&mut gradients[*which], layers)?;
        assert_eq!(found, *expected, "case {}", i % cases.len());
    }
    Ok(())
}

const KINDS: usize = 10;

/// The loss of networks that use their three parameters in all the ways there are.
fn network(kind: usize, params: &[Var]) -> Result<Both> {
    let [a, b, c] = [&params[0], &params[1], &params[2]];
    let tensor = |v: &Var| v.as_tensor().clone();
    let x = Both::new(&random((2, 3), 7))?;
    let step = |x: Both, w: &&Var| x.linear(w, None)?.relu();
    let relus = |weights: &[&Var]| weights.iter().try_fold(x.clone(), step);
    let plus_squares = |x: Both, v: &Var| {
        let v = tensor(v);
        x.candle(move |x| x.broadcast_add(&v.sqr()?.sum_all()?))
    };
    let y = match kind {
        0 => relus(&[a, b, c])?,
        1 => x.linear(a, None)?.matmul(b, None)?.linear(c, None)?,
        2 => relus(&[a, b, a, c])?, // one twice
        3 => {
            // one twice in a step, one as a value
            let y = Both::new(a)?.linear(a, None)?.linear(b, None)?;
            y.plus(&Both::new(c)?)?
        }
        4 => relus(&[a, b])?.matmul(&c.matmul(a)?, None)?, // in a weight that candle computes
        5 => {
            // in candle's operations alone, before ours and after
            let y = Both::new(&random((2, 3), 7).matmul(b)?)?.linear(a, None)?;
            plus_squares(y, c)?
        }
        6 => plus_squares(relus(&[a, b, c])?, b)?, // in both
        7 => relus(&[a, b, c])?.plus(&x.linear(&b.t()?, None)?)?, // through a view
        8 => {
            // in candle's operation that has it as its input as well; images of one channel are in order
            let image = a.as_tensor().reshape((1, 1, 3, 3))?;
            let (of_a, row) = (tensor(a), Both::new(&image)?.nhwc()?.flatten()?);
            let y = row.candle(move |x| x.reshape((3, 3))?.matmul(&of_a))?;
            y.linear(b, None)?.linear(c, None)?
        }
        _ => {
            let [b, c] = [tensor(b), tensor(c)]; // two in one of candle's operations
            relus(&[a])?.candle(move |x| x.matmul(&b)?.relu()?.matmul(&c))?
        }
    };
    y.candle(Tensor::sqr)?.sum()
}

#[test]
fn buckets_of_any_size_and_variables_have_the_gradients_of_the_reference() -> Result<()> {
    let params = vars(3);
    for kind in 0..KINDS {
        let loss = network(kind, &params)?;
        let actual = in_one_bucket(&loss.ours(), &params);
        let stored = stored(&loss.reference(), &params);
        let used = |g: &[f32]| g.iter().any(|v| *v != 0.);
        assert!(stored.chunks(9).all(used), "{kind}");
        assert_near(&format!("network {kind}"), &actual, &stored, 1e-5);
        let grads = vars(3);
        functional::backward(&loss.ours(), params.iter().zip(&grads))?;
        let grads: Vec<_> = grads.iter().map(|g| values(g)).collect();
        assert_eq!(grads.concat(), actual, "{kind}");
        for bucket_len in LENS {
            let mut gradients = gradients_of(&params, bucket_len);
            for _ in 0..2 {
                gradients.zero();
                let buckets = in_buckets(&mut gradients, &loss.ours())?;
                assert_eq!(in_order(buckets), actual, "{kind} {bucket_len}");
            }
        }
    }
    Ok(())
}

/// A network that is a chain of matrices: of each link, which, and how it is multiplied.
#[derive(Debug, Clone, Copy)]
enum Link {
    Ours(usize),
    /// By ours, through a view.
    Transposed(usize),
    /// By candle.
    Candles(usize),
}

fn chain(links: &[Link], params: &[Var]) -> Result<Both> {
    let mut x = Both::new(&random((2, 3), 3))?;
    for link in links {
        x = match *link {
            Link::Ours(i) => x.linear(&params[i], None)?,
            Link::Transposed(i) => x.linear(&params[i].t()?, None)?,
            Link::Candles(i) => {
                let w = params[i].as_tensor().clone();
                x.candle(move |x| x.matmul(&w))?
            }
        };
    }
    x.sum()
}

fn link(i: usize) -> impl Strategy<Value = Link> {
    (0..4).prop_map(move |kind| match kind {
        0 => Link::Candles(i),
        1 => Link::Transposed(i),
        _ => Link::Ours(i),
    })
}

proptest! {
    #![proptest_config(cases(200))]

    /// Also of parameters that it does not use in this pass, where that is allowed: zeros.
    #[test]
    fn a_network_that_changes_has_the_right_gradients_in_each_pass(
        networks in prop::collection::vec(prop::collection::vec((0usize..3).prop_flat_map(link), 0..7), 2..5),
        bucket_len in prop::sample::select(&LENS[..]),
    ) {
        let params = vars(3);
        let [mut gradients, mut all, mut at_the_end] = [bucket_len, bucket_len, usize::MAX].map(|len| {
            let mut gradients = gradients_of(&params, len);
            gradients.allow_unused(true);
            gradients
        });
        let mut sum = vec![0.; 27];
        for links in &networks {
            let loss = chain(links, &params).unwrap();
            gradients.zero();
            let buckets = in_order(in_buckets(&mut gradients, &loss.ours()).unwrap());
            assert_near("gradients", &buckets, &stored(&loss.reference(), &params), 1e-4);
            // gradients add up until they are forgotten
            sum.iter_mut().zip(&buckets).for_each(|(sum, gradient)| *sum += gradient);
            let handed_out = in_order(in_buckets(&mut all, &loss.ours()).unwrap());
            assert_near("sum", &handed_out, &sum, 1e-5);
            // and where they are handed out afterwards, in one bucket
            at_the_end.zero();
            at_the_end.backward(&loss.ours()).unwrap();
            prop_assert_eq!(&all_given(&mut at_the_end), &buckets);
            let of_each = at_the_end.values().unwrap();
            prop_assert_eq!(of_each.iter().flat_map(values).collect::<Vec<_>>(), buckets);
        }
    }
}

#[test]
fn a_loss_that_misses_a_parameter_names_it_and_spoils_nothing() -> Result<()> {
    let params = vars(3);
    let mut gradients = gradients_of(&params, 9);
    let loss = network(0, &params)?.ours();
    gradients.backward(&loss)?;
    let before = gradients.values()?;
    let without = chain(&[Link::Ours(0), Link::Candles(2)], &params)?.ours();
    let misses = "the loss does not depend on the parameter second";
    assert_refused(misses, gradients.backward(&without));
    let refused = backward_into(&mut gradients, &without, &mut |_| {
        panic!("no bucket is whole")
    });
    assert_refused(misses, refused);
    for (before, after) in before.iter().zip(gradients.values()?) {
        assert_eq!(values(before), values(&after));
    }
    // what was there goes on
    gradients.backward(&loss)?;
    let once = in_one_bucket(&loss, &params);
    let twice: Vec<f32> = once.iter().map(|v| v * 2.).collect();
    assert_eq!(all_given(&mut gradients), twice);
    Ok(())
}

#[test]
fn a_loss_of_numbers_alone_depends_on_nothing() -> Result<()> {
    let params = vars(2);
    let mut gradients = gradients_of(&params, 9);
    let loss = Value::new(&random((2, 3), 1))?.sum()?;
    let misses = "the loss does not depend on the parameter first";
    assert_refused(misses, gradients.backward(&loss));
    // not even where nothing at all is computed
    let loss = Value::new(&Tensor::new(&[2f32], &Device::Cpu)?)?;
    assert_refused(misses, gradients.backward(&loss));
    gradients.allow_unused(true);
    assert_eq!(values(&gradients.backward(&loss)?), [2.]);
    assert_eq!(all_given(&mut gradients), [0.; 18]);
    Ok(())
}

/// What is computed beside the loss has no gradient.
#[test]
fn an_output_that_uses_a_parameter_is_not_the_loss() -> Result<()> {
    let params = vars(2);
    let mut gradients = gradients_of(&params, 9);
    let y = layers(&[&params[0]])?.ours();
    let (loss, beside) = (y.sum()?, y.linear(&params[1], None)?);
    let mut pass = |allow: bool| {
        gradients.allow_unused(allow);
        gradients.backward_with(&loss, with(None, &[&beside]))?;
        Ok::<_, candle_core::Error>(all_given(&mut gradients))
    };
    let refused = pass(false);
    assert_refused("the loss does not depend on the parameter second", refused);
    let alone = in_one_bucket(&loss, &params[..1]);
    assert_eq!(pass(true)?, [alone, vec![0.; 9]].concat());
    assert_eq!(beside.eval()?.dims(), [2, 3]);
    Ok(())
}

/// One of no elements lies at the same place as the one after it.
#[test]
fn a_parameter_of_no_elements() -> Result<()> {
    let of = |rows: usize| Var::from_tensor(&random((rows, 3), 1));
    let (nothing, three) = (of(0)?, of(3)?);
    for (x, w) in [(&nothing, &three), (&three, &nothing)] {
        let loss = Value::new(x)?.linear(w, None)?.sum()?;
        for params in [[x.clone(), w.clone()], [w.clone(), x.clone()]] {
            let mut gradients = gradients_of(&params, usize::MAX);
            gradients.backward(&loss)?;
            assert_eq!(all_given(&mut gradients), [0.; 9]);
        }
    }
    Ok(())
}

/// A scalar parameter that is the loss itself has the gradient 1.
#[test]
fn a_loss_that_is_a_parameter() -> Result<()> {
    let w = Var::new(&[3f32], &Device::Cpu)?;
    let mut gradients = Gradients::new([("w", &w)], usize::MAX)?;
    let loss = gradients.backward(&Value::new(&w)?)?;
    assert_eq!((loss.dims(), values(&loss)), (&[1][..], vec![3.]));
    assert_eq!(values(&gradients.values()?[0]), [1.]);
    Ok(())
}

/// The loss is known between forward and backward. An error there leaves the gradients of the pass before as they are.
#[test]
fn an_error_behind_forward_writes_no_gradient() -> Result<()> {
    let w = Var::new(&[[3f32, 4.]], &Device::Cpu)?;
    let x = Tensor::new(&[[10f32, 20.]], &Device::Cpu)?;
    let loss = || Value::new(&x)?.linear(&w, None)?.sum();
    let mut gradients = Gradients::new([("w", &w)], usize::MAX)?;
    gradients.backward(&loss()?)?;
    let mut seen = None;
    let refused = gradients.backward_with(
        &loss()?,
        BackwardOptions {
            forward_done: Some(&mut |loss| {
                seen = loss;
                bail!("it is too large")
            }),
            ..BackwardOptions::default()
        },
    );
    assert_refused("it is too large", refused);
    assert_eq!(seen, Some(110.));
    assert_eq!(values(&gradients.values()?[0]), [10., 20.]);
    gradients.backward(&loss()?)?; // is added to the first
    assert_eq!(values(&gradients.values()?[0]), [20., 40.]);
    Ok(())
}

fn bucket(index: usize, len: usize) -> Bucket {
    Bucket {
        index,
        parts: [].into(),
        values: BucketMemory::Floats(vec![1.; len]),
    }
}

#[test]
fn a_bucket_is_in_or_out() -> Result<()> {
    let params = vars(2);
    let mut gradients = gradients_of(&params, 9);
    let loss = chain(&[Link::Ours(0), Link::Ours(1)], &params)?.ours();
    let not_out = "cannot put back bucket 0: it was not handed out";
    assert_refused(not_out, gradients.put_back(bucket(0, 9)));
    let no_such = "cannot put back bucket 2: there are 2 buckets";
    assert_refused(no_such, gradients.put_back(bucket(2, 9)));
    let mut out = taken(&mut gradients);
    let [first, second] = [0, 1].map(|i| format!("bucket {i} is handed out: put it back first"));
    assert_refused(&first, gradients.give(&mut |_| Ok(())));
    assert_refused(&second, gradients.values());
    let too_small = "cannot put back bucket 1 with 8 elements: it had 9";
    assert_refused(too_small, gradients.put_back(bucket(1, 8)));
    let elsewhere = Bucket {
        values: BucketMemory::Tensor(tensor(vec![1.; 8], 8)),
        ..bucket(1, 0)
    };
    assert_refused(too_small, gradients.put_back(elsewhere));
    gradients.put_back(out.swap_remove(0))?;
    assert_refused(&second, gradients.backward(&loss));
    gradients.put_back(bucket(1, 9))?; // another memory does as well
    gradients.zero();
    gradients.backward(&loss)?;
    assert_eq!(all_given(&mut gradients), in_one_bucket(&loss, &params));
    Ok(())
}

#[test]
fn a_bucket_that_is_not_wanted_ends_the_pass() -> Result<()> {
    let params = vars(3);
    let mut gradients = gradients_of(&params, 9);
    let loss = network(0, &params)?.ours();
    let mut out = Vec::new();
    let events = backward_into(&mut gradients, &loss, &mut |bucket| match bucket.index {
        1 => bail!("the network is down"),
        _ => {
            out.push(bucket);
            Ok(())
        }
    });
    assert_refused("the network is down", events);
    // it says so until the rest is forgotten
    let failed = "the last backward pass failed halfway: call zero() first";
    assert_refused(failed, gradients.backward(&loss));
    assert_refused(failed, gradients.give(&mut |_| Ok(())));
    gradients.zero();
    // two are out, of which one is lost
    assert_refused("bucket 0 is handed out", gradients.backward(&loss));
    gradients.put_back(out.remove(0))?;
    assert_refused("bucket 1 is handed out", gradients.backward(&loss));
    gradients.put_back(bucket(1, 9))?;
    let words = "cannot put back bucket 2: it was not handed out";
    assert_refused(words, gradients.put_back(bucket(2, 9)));
    gradients.backward(&loss)?;
    assert_eq!(all_given(&mut gradients), in_one_bucket(&loss, &params));
    // and where they are handed out without a pass
    let given = gradients.give(&mut |_| bail!("the network is down"));
    assert_refused("the network is down", given);
    gradients.put_back(bucket(0, 9))?;
    gradients.zero();
    gradients.backward(&loss)?;
    assert_eq!(all_given(&mut gradients), in_one_bucket(&loss, &params));
    Ok(())
}

/// Takes all buckets, and puts these values back in the place of the second.
fn exchange(gradients: &mut Gradients, values: Tensor) -> Result<()> {
    let mut out = taken(gradients);
    out[1].values = BucketMemory::Tensor(values);
    out.into_iter()
        .try_for_each(|bucket| gradients.put_back(bucket))?;
    gradients.zero();
    Ok(())
}

/// And one that cannot be written to takes no other bucket along.
#[test]
fn a_tensor_on_the_cpu_can_come_back_for_floats() -> Result<()> {
    let params = vars(3);
    let mut gradients = gradients_of(&params, 9);
    let loss = network(0, &params)?.ours();
    exchange(&mut gradients, tensor(vec![0.; 9], 9))?;
    let buckets = in_buckets(&mut gradients, &loss)?;
    assert_eq!(in_order(buckets), in_one_bucket(&loss, &params));
    exchange(&mut gradients, tensor(vec![0.; 18], 18).narrow(0, 9, 9)?)?;
    let words = "the memory of a gradient has 18 elements, expected 9";
    assert_refused(words, gradients.backward(&loss));
    for index in 0..3 {
        let there = "it was not handed out";
        assert_refused(there, gradients.put_back(bucket(index, 9)));
    }
    Ok(())
}

#[test]
fn a_bucket_that_is_a_tensor_on_the_cpu_is_looked_at() -> Result<()> {
    let params = vars(1);
    let mut gradients = gradients_of(&params, usize::MAX);
    let mut bucket = taken(&mut gradients).remove(0);
    let mut values = vec![0.; bucket.values.elem_count()];
    values[1] = f32::NAN;
    let len = values.len();
    bucket.values = BucketMemory::Tensor(tensor(values, len));
    gradients.put_back(bucket)?;
    let found = gradients.not_finite();
    assert_eq!(found.map(|(part, _)| part.parameter), Some(0));
    Ok(())
}

#[test]
fn the_layout_says_what_lies_where() -> Result<()> {
    let shapes: [&[usize]; 5] = [&[4, 2, 3, 3], &[4], &[2, 4], &[2], &[3]];
    let params = variables(&shapes.map(|shape| random(shape, 1)))?;
    let mut gradients = Gradients::new(params.iter().map(|p| ("", p)), 10)?;
    let last = vec![(3, 0..2), (4, 2..5)];
    let [second, third, first] = [(2, 0..8), (1, 0..4), (0, 0..72)].map(|part| vec![part]);
    let expected = [last, second, third, first];
    let lies = |parts: &Arc<[Part]>| -> Vec<_> {
        let parts = parts.iter();
        parts.map(|p| (p.parameter, p.range.clone())).collect()
    };
    assert_eq!(gradients.layout().map(lies).collect::<Vec<_>>(), expected);
    // as the buckets say themselves
    let handed_out = taken(&mut gradients);
    let of_each = handed_out.iter().map(|bucket| lies(&bucket.parts));
    assert_eq!(of_each.collect::<Vec<_>>(), expected);
    Ok(())
}

/// On the way back it computes gradients of its own, as recomputing a layer does.
#[test]
fn a_pass_inside_a_pass_leaves_the_outer_one_its_places() -> Result<()> {
    let params = vars(2);
    let loss = |inner: Option<Vec<Var>>| {
        let y = layers(&[&params[0]])?.ours();
        let y = match inner {
            Some(vars) => on_each_way(&y, move |forward| {
                if forward {
                    return;
                }
                let loss = chain(&[Link::Ours(0), Link::Candles(1)], &vars).unwrap();
                let theirs = stored(&loss.reference(), &vars);
                assert_near("inside", &in_one_bucket(&loss.ours(), &vars), &theirs, 1e-5);
            })?,
            None => y,
        };
        y.linear(&params[1], None)?.sum()
    };
    let without = in_one_bucket(&loss(None)?, &params);
    // of parameters of its own, and of the same
    for inner in [vars(2), params.clone()] {
        assert_eq!(in_one_bucket(&loss(Some(inner))?, &params), without);
    }
    Ok(())
}
