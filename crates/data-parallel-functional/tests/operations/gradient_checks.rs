//! `GradientChecks` finds what does not train: in networks and losses, at each new shape, in training, beside frozen
//! parts. What is right passes, and what is known is not compared again.

use crate::support::{assert_refused, random, variables};
use candle_core::{D, DType, Device, Module, ModuleT, Result, Tensor, Var};
use functional::{GradientChecks, Network, Value, Variables, candle};
use std::cell::Cell;
use std::rc::Rc;

/// Of a network with these parameters, all of which are trained.
fn checks(params: &[Var]) -> GradientChecks {
    let named = ["first", "second", "third", "fourth"]
        .into_iter()
        .zip(params);
    let trained = named.map(|(name, var)| (name.to_owned(), var.clone()));
    GradientChecks::new(Variables {
        trained: trained.collect(),
        ..Variables::default()
    })
    .unwrap()
}

/// The same, of which only the first is trained.
fn checks_with_frozen(params: &[Var]) -> GradientChecks {
    GradientChecks::new(Variables {
        trained: vec![("first".to_owned(), params[0].clone())],
        frozen: params[1..].to_vec(),
        ..Variables::default()
    })
    .unwrap()
}

/// x · w, for a trained w of so many rows and columns, and w.
fn trained(x: &Tensor, columns: usize) -> (Vec<Var>, impl Fn() -> Result<Value> + use<>) {
    let params = variables(&[random((columns, x.dim(D::Minus1).unwrap()), 9)]).unwrap();
    let (x, w) = (x.clone(), params[0].clone());
    (params, move || Value::new(&x)?.linear(&w, None))
}

/// How often a function of candle's runs.
fn counted(
    f: impl Fn(&Tensor) -> Result<Tensor> + 'static,
) -> (
    Rc<Cell<usize>>,
    impl Fn(&Tensor) -> Result<Tensor> + Clone + 'static,
) {
    let count = Rc::new(Cell::new(0));
    let (counter, f) = (count.clone(), Rc::new(f));
    let counted = move |x: &Tensor| {
        counter.set(counter.get() + 1);
        f(x)
    };
    (count, counted)
}

#[test]
fn a_new_shape_is_compared_and_a_known_one_is_not() -> Result<()> {
    // the mean of windows of 2 × 2: candle is right for even sizes alone
    let (runs, pool) = counted(|x: &Tensor| x.avg_pool2d(2)?.sqr()?.mean((1, 2, 3)));
    let lives = candle(pool.clone());
    let in_network = |x: &Value| lives.forward(x, true);
    let in_loss = |x: &Value| candle(pool.clone()).forward(x, true); // made anew
    let image = |size: usize| Value::new(&random((2, 1, size, size), 1));
    type Forward<'a> = &'a dyn Fn(&Value) -> Result<Value>;
    for forward in [&in_network as Forward<'_>, &in_loss] {
        let mut checks = checks(&[]);
        let ran = |checks: &mut GradientChecks, size: usize| {
            runs.set(0);
            let result = checks.run(2, || forward(&image(size)?));
            result.map(|_| runs.get())
        };
        assert!(ran(&mut checks, 8)? > 10);
        assert!(ran(&mut checks, 8)? <= 1, "it is compared again");
        assert_refused("is wrong", ran(&mut checks, 7));
        assert_refused("is wrong", ran(&mut checks, 7)); // until it is mended
        assert!(ran(&mut checks, 8)? <= 1);
        assert!(ran(&mut checks, 6)? > 10);
        assert!(ran(&mut checks, 6)? <= 1);
    }
    Ok(())
}

#[test]
fn two_shapes_in_one_pass_are_both_compared() -> Result<()> {
    let pool = candle(|x: &Tensor| x.avg_pool2d(2)?.sqr()?.mean((1, 2, 3)));
    let pyramid = |sizes: [usize; 2]| {
        let level = |size: usize| pool.forward(&Value::new(&random((2, 1, size, size), 1))?, true);
        &level(sizes[0])? + &level(sizes[1])?
    };
    let words = "input 0 of shape [2, 1, 5, 5] is wrong";
    assert_refused(words, checks(&[]).run(2, || pyramid([8, 5])));
    assert_refused(words, checks(&[]).run(2, || pyramid([5, 8])));
    checks(&[]).run(2, || pyramid([8, 4]))?;
    Ok(())
}

/// Modules that one line makes, of which a later one is wrong.
#[test]
fn modules_of_one_place_are_all_compared() -> Result<()> {
    let x = Value::new(&random((2, 1, 4, 4), 1))?;
    let power = |wrong: bool| {
        candle(move |x: &Tensor| {
            let y = if wrong {
                x.max_pool2d(2)
            } else {
                x.avg_pool2d(2)
            };
            y?.upsample_nearest2d(4, 4)
        })
    };
    let network: Vec<_> = [false, false, true].map(power).into();
    let words = "candle (crates/data-parallel-functional/tests/operations/gradient_checks.rs:";
    let through = |network: &[functional::Candle]| {
        let mut layers = network.iter();
        layers.try_fold(x.clone(), |x, layer| layer.forward(&x, true))
    };
    let refused = checks(&[]).run(2, || through(&network));
    assert_refused(words, refused);
    checks(&[]).run(2, || through(&network[..2]))?;
    // also where they are made anew
    let anew = |wrong: [bool; 3]| through(&wrong.map(power));
    let mut checks = checks(&[]);
    checks.run(2, || anew([false; 3]))?;
    let words = "is wrong";
    assert_refused(
        words,
        self::checks(&[]).run(2, || anew([false, false, true])),
    );
    Ok(())
}

/// A text of many lengths is not compared for ever.
#[test]
fn so_many_shapes_are_compared_of_each_module() -> Result<()> {
    let (runs, f) = counted(|x: &Tensor| x.sqr()?.sum(1));
    let (lives, mut checks) = (candle(f.clone()), checks(&[]));
    let mut compared = 0;
    for (step, length) in (1..=30).chain(1..=30).enumerate() {
        let x = Value::new(&random((2, length), 1))?;
        for made_anew in [false, true] {
            runs.set(0);
            checks.run(2, || match made_anew {
                true => candle(f.clone()).forward(&x, true),
                false => lives.forward(&x, true),
            })?;
            compared += usize::from(runs.get() > 10);
        }
        let expected = 2 * GradientChecks::SHAPES.min(step + 1);
        assert_eq!(compared, expected, "{length}");
    }
    Ok(())
}

/// Doubles in inference; in training it does something else.
struct InTraining(fn(&Tensor) -> Result<Tensor>);

impl ModuleT for InTraining {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        if train { (self.0)(x) } else { x * 2. }
    }
}

#[test]
fn what_runs_in_training_alone_is_compared_in_training() -> Result<()> {
    let x = Value::new(&random((2, 1, 4, 4), 1))?;
    let wrong = candle(InTraining(|x| x.max_pool2d(2)?.upsample_nearest2d(4, 4)));
    let mut checks = checks(&[]);
    checks.run(2, || wrong.forward(&x, false))?;
    assert_refused("(0.25 times)", checks.run(2, || wrong.forward(&x, true)));
    // with masks that differ each time it is compared as in inference
    let dropout = candle(InTraining(|x| candle_nn::ops::dropout(x, 0.5)));
    checks.run(2, || dropout.forward(&x, true))?;
    Ok(())
}

#[test]
fn batch_norm_is_compared_in_training_and_keeps_its_statistics() -> Result<()> {
    struct Normed {
        norm: candle_nn::BatchNorm,
        wrong: bool,
    }
    impl ModuleT for Normed {
        fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
            let y = self.norm.forward_t(x, train)?.sqr()?;
            if self.wrong && train {
                y.max_pool2d(2)
            } else {
                y.avg_pool2d(2)
            }
        }
    }
    let params = variables(&[random(3, 1), random(3, 2)])?;
    let buffers = variables(&[random(3, 3), (random(3, 4) + 2.)?])?;
    let before = buffers.iter().map(|var| var.to_vec1::<f32>());
    let before = before.collect::<Result<Vec<_>>>()?;
    let module = |wrong| {
        let [mean, var] = [0, 1].map(|i| buffers[i].as_tensor().clone());
        let [weight, bias] = [0, 1].map(|i| params[i].as_tensor().clone());
        let norm = candle_nn::BatchNorm::new(3, mean, var, weight, bias, 1e-5)?;
        Ok::<_, candle_core::Error>(candle(Normed { norm, wrong }))
    };
    let x = Value::new(&random((4, 3, 4, 4), 5))?;
    let trained = ["weight", "bias"]
        .map(str::to_owned)
        .into_iter()
        .zip(params.clone());
    let with_buffers = |buffers: &[Var]| {
        GradientChecks::new(Variables {
            trained: trained.clone().collect(),
            buffers: buffers.to_vec(),
            ..Variables::default()
        })
    };
    let unmoved = || {
        let after = buffers.iter().map(|var| var.to_vec1::<f32>());
        after
            .collect::<Result<Vec<_>>>()
            .map(|after| after == before)
    };
    let right = module(false)?;
    with_buffers(&buffers)?.run(2, || right.forward(&x, true))?;
    assert!(unmoved()?);
    let wrong = module(true)?;
    let refused = with_buffers(&buffers)?.run(2, || wrong.forward(&x, true));
    assert_refused("is wrong", refused);
    assert!(unmoved()?);
    // what is no buffer of the network would be another one on each replica
    let refused = with_buffers(&[])?.run(2, || right.forward(&x, true));
    assert_refused("numbers that are no buffer of the network", refused);
    Ok(())
}

/// A pretrained part, and a table: cut off on purpose, or with a wrong gradient.
#[test]
fn a_frozen_variable_needs_no_gradient() -> Result<()> {
    let params = variables(&[random((3, 4), 1), random((4, 5), 2), random(5, 3)])?;
    let x = Value::new(&random((6, 5), 4))?;
    type Part = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let network = |backbone: Part| {
        let [head, below, table] = [0, 1, 2].map(|i| params[i].as_tensor().clone());
        candle(move |x: &Tensor| {
            let h = x.broadcast_mul(&table.detach())?.matmul(&below.t()?)?;
            backbone(&h, &below)?.tanh()?.matmul(&head.t()?)
        })
    };
    let cut = network(|h, _| Ok(h.detach()));
    checks_with_frozen(&params).run(2, || cut.forward(&x, true))?;
    let words =
        "the gradients of second and third are missing, although the result depends on them";
    let refused = checks(&params).run(2, || cut.forward(&x, true));
    assert_refused("frozen: Trainer::rate with each of these names", refused);
    assert_refused(words, checks(&params).run(2, || cut.forward(&x, true)));

    let wrong = network(|h, _| candle_nn::ops::softmax_last_dim(h)? + h);
    checks_with_frozen(&params).run(2, || wrong.forward(&x, true))?;
    assert_refused(
        "is wrong",
        checks(&params).run(2, || wrong.forward(&x, true)),
    );

    // the trained part has to be right all the same
    let [head, below] = [0, 1].map(|i| params[i].as_tensor().clone());
    let lost = candle(move |x: &Tensor| {
        let weight = (&head * candle_nn::ops::softmax_last_dim(&head)?)?;
        x.matmul(&below.t()?)?.matmul(&weight.t()?)
    });
    let refused = checks_with_frozen(&params).run(2, || lost.forward(&x, true));
    assert_refused("the gradient of the variables is wrong", refused);
    Ok(())
}

/// What is computed from frozen parts alone is data; what is computed from trained ones is not.
#[test]
fn an_input_behind_frozen_parts_needs_no_gradient() -> Result<()> {
    let params = variables(&[random((4, 4), 1), random((4, 4), 2)])?;
    let [first, second] = [0, 1].map(|i| params[i].as_tensor().clone());
    let x = Value::new(&random((6, 4), 3))?;
    let of_ours = |weight: &Tensor| x.linear(weight, None)?.relu();
    let of_candles = |weight: &Tensor| {
        let weight = weight.clone();
        candle(move |x: &Tensor| x.matmul(&weight)?.tanh())
    };
    let (trained, frozen) = (of_candles(&first), of_candles(&second));
    let cuts = || candle(|x: &Tensor| x.detach().sqr());
    let softmax = || candle(|x: &Tensor| candle_nn::ops::softmax_last_dim(x));
    for module in [cuts(), softmax()] {
        let module = &module;
        let words = "the gradient of input 0 of shape [6, 4] is missing";
        let mut checks = checks_with_frozen(&params);
        checks.run(2, || module.forward(&of_ours(&second)?, true))?;
        assert_refused(
            words,
            checks.run(2, || module.forward(&of_ours(&first)?, true)),
        );
        checks.run(2, || module.forward(&frozen.forward(&x, true)?, true))?;
        assert_refused(
            words,
            checks.run(2, || module.forward(&trained.forward(&x, true)?, true)),
        );
        let computed = |weight: &Tensor| Value::new(&weight.sqr()?.narrow(0, 0, 4)?);
        let mut checks = checks_with_frozen(&params);
        checks.run(2, || module.forward(&computed(&second)?, true))?;
        let words = "the gradient of input 0 of shape [4, 4] is missing";
        assert_refused(
            words,
            checks.run(2, || module.forward(&computed(&first)?, true)),
        );
    }
    Ok(())
}

/// A gradient counts as missing where no call of the same run has it, known calls among them.
#[test]
fn a_missing_gradient_is_found_at_a_later_shape() -> Result<()> {
    let params = variables(&[random(4, 1), random(4, 2)])?;
    let [weight, bias] = [0, 1].map(|i| params[i].as_tensor().clone());
    // candle's layer norm: fused where x is contiguous, and without a gradient then
    let norm = candle_nn::LayerNorm::new(weight, bias, 1e-5);
    let norm = candle(move |x: &Tensor| match x.dim(0)? {
        4 => norm.forward(&x.t()?)?.t(),
        _ => norm.forward(x),
    });
    let run = |checks: &mut GradientChecks, rows: usize| {
        checks
            .run(2, || {
                norm.forward(&Value::new(&random((rows, 4), 3))?, true)
            })
            .map(drop)
    };
    let mut checks = checks(&params);
    run(&mut checks, 4)?;
    let words = "the gradients of first and second are missing";
    assert_refused(words, run(&mut checks, 2));
    run(&mut checks, 4)?;
    assert_refused(words, run(&mut checks, 2));
    // a second use that is cut off is allowed
    let scale = params[0].as_tensor().clone();
    let cut = candle(move |x: &Tensor| x.broadcast_mul(&scale.detach()));
    let x = Value::new(&random((4, 4), 3))?;
    checks.run(2, || cut.forward(&norm.forward(&x, true)?, true))?;
    Ok(())
}

/// The logarithm of 1 - p has no number above 1.
#[test]
fn a_loss_may_want_probabilities_or_their_logarithms() -> Result<()> {
    let (params, net) = trained(&random((6, 3), 1), 4);
    let of_probabilities = |p: &Tensor| p.affine(-1., 1.)?.log()?.neg()?.sum(1);
    let of_logarithms = |l: &Tensor| l.neg()?.log()?.sum(1);
    let losses: [fn(&Tensor) -> Result<Tensor>; 2] = [of_probabilities, of_logarithms];
    for loss in losses {
        checks(&params).run(2, || candle(loss).forward(&net()?, true))?;
        let wrong = move |x: &Tensor| {
            loss(x)?
                + (candle_nn::ops::softmax_last_dim(x)? * 50.)?
                    .narrow(1, 0, 1)?
                    .squeeze(1)?
        };
        let refused = checks(&params).run(2, || candle(wrong).forward(&net()?, true));
        assert_refused("is wrong", refused);
    }
    let never = |x: &Tensor| (x.sqr()?.neg()? - 1.)?.log();
    let words = "gives NaN or infinity on numbers between 0.1 and 1.1, between 0.1 and 0.9, and between -1.1 and -0.1";
    assert_refused(
        words,
        checks(&params).run(2, || candle(never).forward(&net()?, true)),
    );
    Ok(())
}

/// After a panic in the middle nothing counts as compared, and the thread checks nothing.
#[test]
fn a_panic_ends_the_checks() -> Result<()> {
    let mut checks = checks(&[]);
    let pool = candle(|x: &Tensor| x.max_pool2d(2));
    let x = Value::new(&random((2, 1, 4, 4), 1))?;
    let panics =
        std::panic::AssertUnwindSafe(|| checks.run(2, || -> Result<()> { panic!("on purpose") }));
    assert!(std::panic::catch_unwind(panics).is_err());
    pool.forward(&x, true)?;
    assert_refused("(0.25 times)", checks.run(2, || pool.forward(&x, true)));
    Ok(())
}

type Boxed = Box<dyn Fn(&Tensor) -> Result<Tensor>>;

/// A step is about as much as three runs; with the comparisons on the minibatch's own numbers, a first step takes as long
/// as up to 30.
#[test]
fn the_runs_of_a_comparison_have_a_bound() -> Result<()> {
    let x = random((6, 5), 1);
    let is_compared = |f: &dyn Fn(Vec<Tensor>) -> Boxed, params: &[Var]| {
        let values = params.iter().map(|var| var.as_tensor().clone()).collect();
        let (runs, module) = counted(f(values));
        let module = candle(module);
        let net = || module.forward(&Value::new(&x)?, true);
        let result = checks_of(params).run(6, || net().map(drop));
        (runs.get(), result)
    };
    // a right one
    let params = variables(&[random((5, 5), 2)])?;
    let right = |w: Vec<Tensor>| -> Boxed { Box::new(move |x| x.matmul(&w[0])?.tanh()?.sqr()) };
    let (runs, result) = is_compared(&right, &params);
    result?;
    assert!(runs <= 30, "{runs}");
    // one that is so steep that no difference says anything: a norm of zeros
    let zeros = variables(&[Tensor::zeros((5, 5), DType::F32, x.device())?])?;
    let steep = |w: Vec<Tensor>| -> Boxed {
        Box::new(move |x| {
            let h = w[0].broadcast_div(&(w[0].sqr()?.mean_keepdim(1)? + 1e-12)?.sqrt()?)?;
            x.matmul(&h)
        })
    };
    let (runs, result) = is_compared(&steep, &zeros);
    result?;
    assert!(runs <= 60, "{runs}");
    // a hundred variables without a gradient
    let many: Vec<Tensor> = (0..100).map(|i| random((1, 5), 100 + i)).collect();
    let many = variables(&many)?;
    let cut = |w: Vec<Tensor>| -> Boxed {
        Box::new(move |x| x.broadcast_mul(&Tensor::cat(&w, 0)?.sum_keepdim(0)?.detach()))
    };
    let (runs, refused) = is_compared(&cut, &many);
    assert!(runs <= 50, "{runs}");
    assert_refused(
        "the gradients of var 0, var 1, var 2 and perhaps others are missing",
        refused,
    );
    Ok(())
}

/// Of a network with any number of parameters, all of which are trained.
fn checks_of(params: &[Var]) -> GradientChecks {
    let named = params.iter().enumerate();
    GradientChecks::new(Variables {
        trained: named
            .map(|(i, var)| (format!("var {i}"), var.clone()))
            .collect(),
        ..Variables::default()
    })
    .unwrap()
}

/// Behind a weight of zero, as in a residual branch that begins with none.
#[test]
fn a_missing_gradient_behind_a_zero_is_found() -> Result<()> {
    let params = variables(&[
        random((5, 5), 2),
        Tensor::zeros(1, DType::F32, &Device::Cpu)?,
    ])?;
    let [w, gate] = [0, 1].map(|i| params[i].as_tensor().clone());
    let branch = candle(move |x: &Tensor| {
        let h = candle_nn::ops::softmax_last_dim(&x.matmul(&w)?)?;
        x + h.broadcast_mul(&gate)?
    });
    let x = random((6, 5), 1);
    let net = || branch.forward(&Value::new(&x)?, true);
    let refused = checks_of(&params).run(6, || net().map(drop));
    assert_refused("the gradient of var 0 is missing", refused);
    assert_eq!(params[1].to_vec1::<f32>()?, [0.]); // as it was
    Ok(())
}

/// Where the result depends on the difference of two equal variables, or on their product: they are moved apart, and
/// looked at together.
#[test]
fn variables_that_are_missing_together_are_found() -> Result<()> {
    let x = random((6, 5), 1);
    let zeros = || Tensor::zeros(5, DType::F32, x.device());
    type Both = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let both: [Both; 2] = [|a, b| a - b, |a, b| a * b];
    for both in both {
        let params = variables(&[zeros()?, zeros()?])?;
        let [a, b] = [0, 1].map(|i| params[i].as_tensor().clone());
        let module = candle(move |x: &Tensor| x.broadcast_add(&both(&a, &b)?.detach()));
        let net = || module.forward(&Value::new(&x)?, true);
        let refused = checks_of(&params).run(6, || net().map(drop));
        assert_refused("the gradients of var 0 and var 1 are missing", refused);
    }
    Ok(())
}
