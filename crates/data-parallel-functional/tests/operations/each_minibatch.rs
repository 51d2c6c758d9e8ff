//! `GradientChecks` looks at each minibatch: at equal numbers, at other shapes than before, at functions that take another
//! branch, and at functions that take the place of others.

use crate::support::{assert_refused, gradients_of, random, tensor, variables};
use candle_core::{D, Device, Module, ModuleT, Result, Tensor, Var};
use candle_nn::Embedding;
use functional::{GradientChecks, Network, Value, Variables, candle, candle_fn};
use std::cell::Cell;
use std::rc::Rc;

/// A network of one parameter, and its checks.
struct Trained {
    w: Var,
    checks: GradientChecks,
}

impl Trained {
    fn new(w: &Tensor) -> Result<Self> {
        let w = variables(std::slice::from_ref(w))?.swap_remove(0);
        let checks = GradientChecks::new(Variables {
            trained: vec![("first".to_owned(), w.clone())],
            ..Variables::default()
        })?;
        Ok(Self { w, checks })
    }

    /// The gradient of the sum of what `f` gives.
    fn step(&mut self, examples: usize, f: impl Fn() -> Result<Value>) -> Result<Vec<f32>> {
        let loss = self.checks.run(examples, || f()?.sum())?;
        let mut gradients = gradients_of(std::slice::from_ref(&self.w), usize::MAX);
        gradients.backward(&loss)?;
        gradients.values()?[0].flatten_all()?.to_vec1()
    }
}

const WRONG: &str = "is wrong: ";

/// Four sets of five points; in the second, points repeat.
fn points() -> Result<[Tensor; 2]> {
    let different = random((4, 5, 3), 1);
    let last = different.narrow(1, 1, 1)?;
    let repeated = Tensor::cat(&[&different.narrow(1, 0, 2)?, &last, &last, &last], 1)?;
    Ok([different, repeated])
}

/// PointNet: a maximum over the points, which padding repeats.
#[test]
fn a_maximum_of_equal_numbers_behind_a_layer_is_found() -> Result<()> {
    let [different, repeated] = points()?;
    let max = candle(|h: &Tensor| h.max(1));
    let min = candle(|h: &Tensor| h.neg()?.min_keepdim(1));
    let scaled = candle(|h: &Tensor| h.broadcast_div(&(h.abs()?.max_keepdim(1)? + 0.1)?));
    for module in [&max, &min, &scaled] {
        let mut net = Trained::new(&random((4, 3), 2))?;
        let w = net.w.clone();
        let forward = |x: &Tensor| {
            let h = Value::new(x)?.linear(&w, None)?.relu()?;
            module.forward(&h, true)
        };
        let first = net.step(4, || forward(&different))?;
        assert_eq!(net.step(4, || forward(&different))?, first);
        assert_refused(WRONG, net.step(4, || forward(&repeated)));
        net.step(4, || forward(&different))?;
        // in the first minibatch too
        let mut net = Trained::new(&random((4, 3), 2))?;
        let w = net.w.clone();
        let forward = |x: &Tensor| module.forward(&Value::new(x)?.linear(&w, None)?, true);
        assert_refused(WRONG, net.step(4, || forward(&repeated)));
    }
    Ok(())
}

/// Of many clouds, those are refused of which a maximum is at the point that repeats.
#[test]
fn padded_clouds_are_refused_where_it_matters() -> Result<()> {
    let max = candle(|h: &Tensor| h.max(1));
    let mut refused = 0;
    for seed in 0..40 {
        let two = random((2, 2, 3), seed);
        let last = two.narrow(1, 1, 1)?;
        let padded = Tensor::cat(&[&two, &last, &last, &last], 1)?;
        let gradient = |x: &Tensor, checked: bool| {
            let mut net = Trained::new(&random((4, 3), 100 + seed))?;
            let w = net.w.clone();
            let forward = || max.forward(&Value::new(x)?.linear(&w, None)?.relu()?, true);
            if checked {
                return net.step(2, forward);
            }
            let mut gradients = gradients_of(std::slice::from_ref(&w), usize::MAX);
            gradients.backward(&forward()?.sum()?)?;
            gradients.values()?[0].flatten_all()?.to_vec1()
        };
        let (right, found) = (gradient(&two, true)?, gradient(&padded, false)?);
        let apart = right.iter().zip(&found).any(|(a, b)| (a - b).abs() > 1e-3);
        let result = gradient(&padded, true);
        assert_eq!(result.is_err(), apart, "{seed}: {right:?} {found:?}");
        refused += usize::from(apart);
    }
    assert!(refused > 20, "{refused}");
    Ok(())
}

/// Equal numbers in a plane, of two signs, on a diagonal, and in two inputs.
#[test]
fn equal_numbers_are_found_wherever_they_are() -> Result<()> {
    let block = |places: [(usize, usize); 4]| {
        let mut x = crate::support::numbers(6 * 6 * 3, 1);
        for (row, column) in places {
            x[3 * (6 * row + column)..][..3].copy_from_slice(&[3., 2., 1.]);
        }
        tensor(x, (1, 6, 6, 3))
    };
    let plane = block([(1, 1), (1, 2), (2, 1), (2, 2)]);
    let diagonal = block([(0, 1), (1, 0), (2, 3), (4, 5)]);
    let max = candle(|h: &Tensor| h.flatten(1, 2)?.max(1));
    let of_size = candle(|h: &Tensor| h.abs()?.max(1));
    let of_two = candle_fn(|x: &[Tensor]| Tensor::stack(x, 0)?.max(0));
    for seed in 0..20 {
        let w = random((1, 3), 10 + seed);
        for x in [&plane, &diagonal] {
            let mut net = Trained::new(&w.abs()?)?;
            let w = net.w.clone();
            let step = net.step(1, || max.forward(&Value::new(x)?.linear(&w, None)?, true));
            assert_refused("is wrong", step);
        }
        let points = random((2, 1, 3), 30 + seed);
        let points = Tensor::cat(&[&points, &points.neg()?], 1)?;
        let mut net = Trained::new(&w)?;
        let w = net.w.clone();
        let step = net.step(2, || {
            of_size.forward(&Value::new(&points)?.linear(&w, None)?, true)
        });
        assert_refused("is wrong", step);
        let mut net = Trained::new(&random((4, 3), seed))?;
        let w = net.w.clone();
        let h = || Value::new(&random((2, 3), seed))?.linear(&w, None);
        let step = net.step(2, || of_two.forward_all(&[h()?, h()?], true));
        assert_refused("is wrong", step);
    }
    Ok(())
}

/// What a weight of zero hides at first, and a branch of the same ranks.
#[test]
fn a_module_is_compared_again_later() -> Result<()> {
    let mut net = Trained::new(&Tensor::zeros((), candle_core::DType::F32, &Device::Cpu)?)?;
    let gate = net.w.as_tensor().clone();
    let pool = |x: &Tensor| x.max_pool2d(2)?.upsample_nearest2d(4, 4);
    let module = candle(move |x: &Tensor| x + pool(&x.broadcast_mul(&gate)?)?);
    let x = Value::new(&random((2, 1, 4, 4), 1))?;
    let steps: Vec<_> = (0..20)
        .map(|step| {
            if step == 2 {
                net.w.set(&tensor(vec![0.5], ()))?;
            }
            net.step(2, || module.forward(&x, true))
        })
        .collect();
    assert!(steps[1].is_ok() && steps.iter().any(|step| step.is_err()));

    let mut net = Trained::new(&random((4, 4), 1))?;
    let w = net.w.clone();
    let pool = candle(|h: &Tensor| {
        let size = h.abs()?.max_all()?.to_scalar::<f32>()?;
        let y = if size > 9. {
            h.max_pool2d(2)?
        } else {
            h.avg_pool2d(2)?
        };
        y.sqr()?.mean((1, 2, 3))
    });
    let mut step = |scale: f64| {
        let x = (random((2, 1, 4, 4), 1) * scale)?;
        net.step(2, || pool.forward(&Value::new(&x)?.linear(&w, None)?, true))
    };
    step(1.)?;
    assert!((0..20).map(|_| step(20.)).any(|step| step.is_err()));
    Ok(())
}

/// Along one direction a gradient of which half is lost can look right.
#[test]
fn a_later_branch_is_compared_along_several_directions() -> Result<()> {
    for seed in 0..100 {
        let mut net = Trained::new(&random((4, 3), 100 + seed))?;
        let w = net.w.clone();
        let is_late = Rc::new(Cell::new(false));
        let branch = is_late.clone();
        let scaled = candle(move |h: &Tensor| {
            let scale = h.tanh()?;
            if branch.get() {
                scale.detach() * h
            } else {
                &scale * h
            }
        });
        let x = random((4, 3), seed);
        let mut step = || {
            net.step(4, || {
                scaled.forward(&Value::new(&x)?.linear(&w, None)?, true)
            })
        };
        step()?;
        is_late.set(true);
        assert!(step().is_err(), "{seed}");
    }
    Ok(())
}

/// A buffer that moves on a minibatch's numbers and not on made-up ones.
#[test]
fn a_check_leaves_all_buffers_as_they_were() -> Result<()> {
    struct Counts(Var);
    impl ModuleT for Counts {
        fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
            if train && x.abs()?.max_all()?.to_scalar::<f32>()? > 2. {
                self.0.set(&(self.0.as_detached_tensor() + 1.)?)?;
            }
            x.sqr()
        }
    }
    let count = Var::new(0f32, &Device::Cpu)?;
    let module = candle(Counts(count.clone()));
    let w = variables(&[random((4, 3), 2)])?.swap_remove(0);
    let mut net = Trained {
        checks: GradientChecks::new(Variables {
            trained: vec![("first".to_owned(), w.clone())],
            buffers: vec![count.clone()],
            ..Variables::default()
        })?,
        w: w.clone(),
    };
    let x = (random((2, 3), 3) * 100.)?;
    for step in 1..=5 {
        net.step(2, || {
            module.forward(&Value::new(&x)?.linear(&w, None)?, true)
        })?;
        assert_eq!(count.to_scalar::<f32>()?, step as f32);
    }
    Ok(())
}

/// Large logits, where most directions are rounding.
#[test]
fn saturated_losses_are_right() -> Result<()> {
    for seed in 0..100 {
        let x = (random((8, 5), seed) * [15., 30., 60.][seed as usize % 3])?;
        let own = crate::support::labels(8, 4, seed).unsqueeze(1)?;
        let mut net = Trained::new(&random((4, 5), 200 + seed))?;
        let w = net.w.clone();
        let own = &own;
        net.step(8, || {
            let own = own.clone();
            let loss = candle(move |x: &Tensor| {
                let all = x.log_sum_exp(1)?;
                all - x
                    .gather(&own.broadcast_as((8, 4))?.contiguous()?, 1)?
                    .narrow(1, 0, 1)?
                    .squeeze(1)?
            });
            loss.forward(&Value::new(&x)?.linear(&w, None)?, true)
        })?;
    }
    Ok(())
}

/// Equal numbers of which one alone has a gradient, zeros of a ReLU, and maxima along another axis.
#[test]
fn equal_numbers_that_do_no_harm_are_allowed() -> Result<()> {
    let [different, repeated] = points()?;
    let relu = candle(|h: &Tensor| h.max(1));
    let mut net = Trained::new(&random((4, 3), 2))?;
    let w = net.w.clone();
    let all_negative = (&different.abs()? * -1.)?;
    net.w.set(&net.w.abs()?)?;
    let forward = |x: &Tensor| {
        let h = Value::new(x)?.linear(&w, None)?.relu()?;
        relu.forward(&h, true)
    };
    assert_eq!(net.step(4, || forward(&all_negative))?, [0.; 12]);
    // the maximum over the channels of one point
    let channels = candle(|h: &Tensor| h.max(2));
    let mut net = Trained::new(&random((4, 3), 2))?;
    let w = net.w.clone();
    net.step(4, || {
        channels.forward(&Value::new(&repeated)?.linear(&w, None)?, true)
    })?;
    // a maximum that gives equal numbers their share
    let shared = candle(|h: &Tensor| {
        let max = h.max_keepdim(1)?;
        let is_max = h.broadcast_eq(&max)?;
        let sum = is_max.where_cond(h, &h.zeros_like()?)?.sum(1)?;
        sum / is_max.to_dtype(h.dtype())?.sum(1)?
    });
    let mut net = Trained::new(&random((4, 3), 2))?;
    let w = net.w.clone();
    let gradient = net.step(4, || {
        shared.forward(&Value::new(&repeated)?.linear(&w, None)?, true)
    })?;
    let mut net = Trained::new(&random((4, 3), 2))?;
    let w = net.w.clone();
    let two = repeated.narrow(1, 0, 2)?;
    let of_two = net.step(4, || {
        candle(|h: &Tensor| h.max(1)).forward(&Value::new(&two)?.linear(&w, None)?, true)
    })?;
    for (a, b) in gradient.iter().zip(of_two) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
    Ok(())
}

/// Texts that are padded in a later minibatch, and an index that comes twice.
#[test]
fn tokens_that_repeat_later_are_found() -> Result<()> {
    let text = |tokens: [[u32; 4]; 2]| Tensor::new(&tokens, &Device::Cpu);
    let full = [
        text([[1, 2, 3, 4], [5, 4, 3, 1]])?,
        text([[3, 1, 2, 5], [1, 5, 4, 2]])?,
    ];
    let padded = text([[1, 0, 0, 0], [5, 4, 0, 0]])?;
    let mut net = Trained::new(&random((6, 3), 1))?;
    let embedding = Embedding::new(net.w.as_tensor().clone(), 3);
    let max = candle(move |x: &Tensor| embedding.forward(x)?.max(1));
    for text in &full {
        net.step(2, || max.forward(&Value::new(text)?, true))?;
    }
    assert_refused(
        WRONG,
        net.step(2, || max.forward(&Value::new(&padded)?, true)),
    );
    net.step(2, || max.forward(&Value::new(&full[0])?, true))?;

    // two points that are equal in the columns which the module uses
    let mut net = Trained::new(&random((2, 3), 1))?;
    let w = net.w.as_tensor().clone();
    let max = candle(move |x: &Tensor| {
        let first = x.narrow(2, 0, 2)?.contiguous()?;
        first.broadcast_matmul(&w)?.max(1)
    });
    let different = random((2, 4, 3), 5);
    let third = random((2, 4, 1), 6);
    let equal = different.narrow(1, 0, 1)?.repeat((1, 4, 1))?;
    let equal = Tensor::cat(&[&equal.narrow(2, 0, 2)?, &third], 2)?;
    for _ in 0..2 {
        net.step(2, || max.forward(&Value::new(&different)?, true))?;
    }
    assert_refused(
        WRONG,
        net.step(2, || max.forward(&Value::new(&equal)?, true)),
    );

    let scatter = candle_fn(|x: &[Tensor]| x[0].zeros_like()?.scatter(&x[1], &x[0], 1));
    let mut net = Trained::new(&random((4, 3), 2))?;
    let w = net.w.clone();
    let x = random((2, 3), 3);
    let forward = |tokens: &Tensor| {
        let h = Value::new(&x)?.linear(&w, None)?;
        scatter.forward_all(&[h, Value::new(tokens)?], true)
    };
    let once = text([[1, 2, 3, 0], [0, 2, 3, 1]])?;
    let twice = text([[1, 2, 3, 3], [0, 2, 3, 1]])?;
    net.step(2, || forward(&once))?;
    assert_refused(WRONG, net.step(2, || forward(&twice)));
    Ok(())
}

/// Eight minibatches of different length, and then another image; also the ninth size of images.
#[test]
fn every_shape_is_compared() -> Result<()> {
    let pool = candle(|x: &Tensor| x.avg_pool2d(2)?.mean((1, 2, 3)));
    let image = |examples: usize, size: usize| Value::new(&random((examples, 1, size, size), 1));
    let mut net = Trained::new(&random(1, 1))?;
    let w = net.w.clone();
    let scale = candle(move |x: &Tensor| x.broadcast_mul(&w));
    let forward =
        |examples, size| pool.forward(&scale.forward(&image(examples, size)?, true)?, true);
    for examples in 1..=8 {
        net.step(examples, || forward(examples, 4))?;
    }
    assert_refused(WRONG, net.step(8, || forward(8, 5)));
    for size in 2..=10 {
        net.step(8, || forward(8, 2 * size))?;
    }
    assert_refused(WRONG, net.step(8, || forward(8, 23)));
    assert_refused(WRONG, net.step(8, || forward(8, 25)));
    Ok(())
}

/// A loss through a function that many losses share.
#[test]
fn a_function_in_the_place_of_another_is_compared() -> Result<()> {
    fn by(y_hat: &Value, f: impl Fn(&Tensor) -> Result<Tensor> + 'static) -> Result<Value> {
        candle(f).forward(y_hat, true)
    }
    type Loss = fn(&Tensor) -> Result<Tensor>;
    let right: Loss = |x| candle_nn::ops::softmax(x, D::Minus1)?.sqr()?.sum(1);
    let wrong: Loss = |x| candle_nn::ops::softmax_last_dim(x)?.sqr()?.sum(1);
    let new = || -> Result<_> {
        let net = Trained::new(&random((4, 3), 2))?;
        let w = net.w.clone();
        Ok((net, move || {
            Value::new(&random((2, 3), 3))?.linear(&w, None)
        }))
    };
    let (mut net, y_hat) = new()?;
    net.step(2, || by(&y_hat()?, |x| x.sqr()?.sum(1)))?;
    net.step(2, || by(&y_hat()?, |x| x.sqr()?.sum(1)))?;
    assert_refused(
        "missing",
        net.step(2, || {
            by(&y_hat()?, |x| {
                (candle_nn::ops::softmax_last_dim(x)? * 2.)?.sqr()?.sum(1)
            })
        }),
    );
    // of one type
    let (mut net, y_hat) = new()?;
    net.step(2, || by(&y_hat()?, right))?;
    net.step(2, || by(&y_hat()?, right))?;
    assert_refused("missing", net.step(2, || by(&y_hat()?, wrong)));
    // of one type, by the same operations of other numbers
    let pool = |size: usize| {
        move |x: &Tensor| {
            let x = x.reshape((1, 1, 2, 4))?;
            let y = if size == 0 {
                x.avg_pool2d(2)?
            } else {
                x.max_pool2d(2)?
            };
            y.sqr()?.flatten_all()
        }
    };
    let (mut net, y_hat) = new()?;
    for _ in 0..2 {
        net.step(2, || by(&y_hat()?, pool(0)))?;
    }
    let steps = [3, 4].map(|_| net.step(2, || by(&y_hat()?, pool(1))));
    assert!(steps.iter().any(|step| step.is_err()), "none is refused");
    Ok(())
}

/// A loss whose targets choose the branch.
#[test]
fn a_branch_that_the_numbers_choose_is_compared() -> Result<()> {
    let mut net = Trained::new(&random((4, 3), 2))?;
    let w = net.w.clone();
    let loss = candle_fn(|x: &[Tensor]| {
        let p = match x[1].mean_all()?.to_scalar::<f32>()? {
            mean if mean > 2. => candle_nn::ops::softmax_last_dim(&x[0])?,
            _ => candle_nn::ops::softmax(&x[0], D::Minus1)?,
        };
        p.sqr()?.sum(1)
    });
    let forward = |y: f32| {
        let y_hat = Value::new(&random((2, 3), 3))?.linear(&w, None)?;
        loss.forward_all(&[y_hat, Value::new(&tensor(vec![y; 2], 2))?], true)
    };
    net.step(2, || forward(1.))?;
    assert_refused("missing", net.step(2, || forward(3.)));
    net.step(2, || forward(1.))?;
    let mut net = Trained::new(&w.as_tensor().copy()?)?;
    let w = net.w.clone();
    let forward = |y: f32| {
        let y_hat = Value::new(&random((2, 3), 3))?.linear(&w, None)?;
        loss.forward_all(&[y_hat, Value::new(&tensor(vec![y; 2], 2))?], true)
    };
    assert_refused("missing", net.step(2, || forward(3.)));
    Ok(())
}
