//! Networks of candle's operations among ours: gradients go through them, and into their variables.

use crate::support::{Faulty, assert_near, assert_refused, gradients_of};
use crate::support::{random, tensor, values, variables};
use candle_core::{Device, ModuleT, Result, Tensor, Var, bail};
use functional::{Network, Value, candle, candle_fn};
use std::cell::Cell;
use std::rc::Rc;

const TOLERANCE: f64 = 1e-5;

/// One module at several places, for inputs of several shapes.
#[test]
fn one_module_at_several_places() -> Result<()> {
    let runs = Rc::new(Cell::new(0));
    let params = variables(&[random((3, 3), 1), random((3, 3), 2)])?;
    let (counter, weight) = (runs.clone(), params[0].as_tensor().clone());
    let module = candle(move |x: &Tensor| {
        counter.set(counter.get() + 1);
        x.matmul(&weight)
    });
    let mut gradients = gradients_of(&params, usize::MAX);
    for (rows, runs_for_shapes) in [(4, 1), (4, 0), (2, 1), (4, 0)] {
        runs.set(0);
        let x = random((rows, 3), 3);
        let y = module.forward(&Value::new(&x)?.linear(&params[1], None)?, true)?;
        let y = module.forward(&y.relu()?, true)?;
        assert_eq!((y.dims(), runs.get()), (&[rows, 3][..], runs_for_shapes));
        gradients.zero();
        let loss = gradients.backward(&y.sum()?)?;
        assert_eq!(runs.get(), runs_for_shapes + 2);
        let y = x.matmul(&params[1].t()?)?.matmul(&params[0])?;
        let y = crate::reference::relu(&y)?.matmul(&params[0])?.sum_all()?;
        assert_near("loss", &values(&loss), &values(&y), TOLERANCE);
        let grads = y.backward()?;
        for (ours, w) in gradients.values()?.iter().zip(&params) {
            let theirs = values(grads.get(w).expect("a gradient"));
            assert_near("gradient", &values(ours), &theirs, TOLERANCE);
        }
    }
    Ok(())
}

/// Doubles in training, and leaves one example out then if it is told to.
struct Training {
    leaves_out: bool,
}

impl ModuleT for Training {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        match (train, self.leaves_out) {
            (false, _) => Ok(x.clone()),
            (true, false) => x * 2.,
            (true, true) => x.narrow(0, 1, x.dim(0)? - 1),
        }
    }
}

#[test]
fn a_module_is_told_whether_it_is_training() -> Result<()> {
    let module = candle(Training { leaves_out: false });
    let x = random((4, 3), 1);
    let given = Value::new(&x)?;
    let computed = given.relu()?;
    for (x, expected) in [(&given, values(&x)), (&computed, values(&x.relu()?))] {
        assert_eq!(values(&module.forward(x, false)?.eval()?), expected);
        let doubled: Vec<f32> = expected.iter().map(|v| v * 2.).collect();
        assert_eq!(values(&module.forward(x, true)?.eval()?), doubled);
    }
    Ok(())
}

#[test]
fn a_shape_that_does_not_follow_from_that_of_x_is_an_error() -> Result<()> {
    let params = variables(&[random((3, 3), 1)])?;
    let y = Value::new(&random((4, 3), 2))?.linear(&params[0], None)?;
    let y = candle(Training { leaves_out: true }).forward(&y, true)?;
    assert_eq!(y.dims(), [4, 3]);
    let expected = "candle: the module gave shape [3, 3], and [4, 3] for zeros of the same shape: \
                    the shape must follow from that of x";
    assert_refused(expected, y.eval());
    let mut gradients = gradients_of(&params, usize::MAX);
    assert_refused(expected, gradients.backward(&y.sum()?));
    // nothing was written
    gradients.backward(&Value::new(&params[0])?.sum()?)?;
    assert_eq!(values(&gradients.values()?[0]), [1.; 9]);
    // as with an input that is a tensor
    let x = Value::new(&random((4, 3), 2))?;
    let y = candle(Training { leaves_out: true }).forward(&x, true)?;
    assert_refused(expected, y.eval());
    Ok(())
}

/// Before that it runs on zeros, without `train`.
#[test]
fn a_module_trains_when_its_result_is_computed() -> Result<()> {
    struct Counts(Rc<Cell<usize>>);
    impl ModuleT for Counts {
        fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
            self.0.set(self.0.get() + usize::from(train));
            x.sqr()
        }
    }
    let count = Rc::new(Cell::new(0));
    let module = candle(Counts(count.clone()));
    let x = Value::new(&tensor(vec![1., -2.], (1, 2)))?;
    let y = module.forward(&x, true)?;
    assert_eq!(count.get(), 0);
    assert_eq!(values(&y.eval()?), [1., 4.]);
    assert_eq!(count.get(), 1);
    Ok(())
}

#[test]
fn a_modules_error_is_the_passs() -> Result<()> {
    let params = variables(&[random((3, 3), 1)])?;
    let x = Value::new(&random((4, 3), 2))?;
    let failing = || candle(|_: &Tensor| bail!("out of order"));
    assert_refused("out of order", failing().forward(&x, true));
    assert_refused("out of order", failing().forward(&x.relu()?, true));
    // one that has its shape, and fails later
    let works = Rc::new(Cell::new(true));
    let still_works = works.clone();
    let y = candle(move |x: &Tensor| match still_works.get() {
        true => Ok(x.clone()),
        false => bail!("out of order"),
    });
    let y = y.forward(&x.linear(&params[0], None)?, true)?;
    works.set(false);
    assert_refused("out of order", y.eval());
    assert!(y.to_string().ends_with("): out of order"), "{y}");
    let mut gradients = gradients_of(&params, usize::MAX);
    assert_refused("out of order", gradients.backward(&y.sum()?));
    works.set(true);
    gradients.backward(&y.sum()?)?;
    Ok(())
}

/// An operation without a way back.
const ONE_WAY: Faulty = Faulty(|_| Ok(None));

/// (x · first) · second, where candle multiplies with `second` and computes no gradient of it.
fn without_gradient(params: &[Var]) -> Result<Value> {
    let weight = params[1].as_tensor().clone();
    let y = Value::new(&random((4, 3), 3))?.linear(&params[0], None)?;
    let product = candle(move |x: &Tensor| x.matmul(&weight.apply_op1(ONE_WAY)?));
    product.forward(&y, true)?.sum()
}

const NO_GRADIENT: &str = "no gradient comes to the parameter second, although the network uses it";

#[test]
fn a_variable_of_which_candle_computes_no_gradient_is_named() -> Result<()> {
    let params = variables(&[random((3, 3), 1), random((3, 3), 2)])?;
    let mut gradients = gradients_of(&params, usize::MAX);
    let without = without_gradient(&params)?;
    let y = Value::new(&random((4, 3), 3))?.linear(&params[0], None)?;
    // also in the weight of an operation of ours
    let weight = params[1].apply_op1(ONE_WAY)?;
    for without in [&without, &y.linear(&weight, None)?.sum()?] {
        assert_refused(NO_GRADIENT, gradients.backward(without));
        gradients.zero();
    }
    // also where there is a gradient of it already, of another minibatch
    gradients.backward(&y.linear(&params[1], None)?.sum()?)?;
    assert_refused(NO_GRADIENT, gradients.backward(&without));
    // it may be allowed
    gradients.zero();
    gradients.allow_unused(true);
    gradients.backward(&without)?;
    assert_eq!(values(&gradients.values()?[1]), [0.; 9]);
    Ok(())
}

/// Gradients end at a module that does not hand them on. What lies below has none, and that is no gradient of zeros
/// that goes unnoticed.
#[test]
fn a_parameter_below_a_module_without_a_way_back_is_named() -> Result<()> {
    let params = variables(&[random((3, 3), 1), random((3, 3), 2)])?;
    let detaching = |x: &Tensor| Ok(x.detach());
    let one_way = |x: &Tensor| x.apply_op1(ONE_WAY);
    let modules: [Box<dyn Network>; 2] = [Box::new(candle(detaching)), Box::new(candle(one_way))];
    for module in modules {
        let y = Value::new(&random((4, 3), 3))?.linear(&params[0], None)?;
        let y = module.forward(&y, true)?.linear(&params[1], None)?;
        let mut gradients = gradients_of(&params, usize::MAX);
        // which is allowed where it is meant
        gradients.allow_unused(true);
        gradients.backward(&y.sum()?)?;
        assert_eq!(values(&gradients.values()?[0]), [0.; 9]);
        gradients.allow_unused(false);
        gradients.zero();
        let refused = gradients.backward(&y.sum()?);
        assert_refused("no gradient comes to the parameter first", refused);
    }
    Ok(())
}

/// Numbers of another type are an error of the module, not garbage.
#[test]
fn a_module_gives_floats() -> Result<()> {
    let x = Value::new(&tensor(vec![1., -2.], (1, 2)))?;
    let bytes = candle(|x: &Tensor| x.ge(0.));
    let expected = "the module gives U8, expected f32";
    assert_refused(expected, bytes.forward(&x, true));
    assert_refused(expected, bytes.forward(&x.relu()?, true));
    let elsewhere = Tensor::new(&[[true as u8]], &Device::Cpu)?;
    assert_refused("expected f32", Value::new(&elsewhere)?.relu());
    Ok(())
}

/// Several inputs, products, concatenations and a layer over the last of three dimensions: with candle's gradients.
#[test]
fn functions_of_several_values_have_candles_gradients() -> Result<()> {
    let params = variables(&[
        random((2, 3, 4), 1),
        random((2, 3, 4), 2),
        random((5, 8), 3),
    ])?;
    let [a, b] = [Value::new(&params[0])?, Value::new(&params[1])?];
    let attention = candle_fn(|x: &[Tensor]| x[0].matmul(&x[1].t()?)?.matmul(&x[1]));
    let tokens = Value::new(&Tensor::new(&[[0u32, 2], [1, 1]], &Device::Cpu)?)?;
    let gather = candle_fn(|x: &[Tensor]| x[1].flatten_to(1)?.embedding(&x[0].flatten_all()?));
    // one is computed already, one is a tensor, and one of another type
    let attended = attention.forward_all(&[a.relu()?, b.clone()], true)?;
    let y = Value::cat(&[&attended, &(&a * &b)?], 2)?;
    let y = y.linear(&params[2], None)?;
    assert_eq!(y.dims(), [2, 3, 5]);
    let gathered = gather.forward_all(&[tokens, (&a * &a)?], true)?;
    let mut gradients = gradients_of(&params, usize::MAX);
    let loss = (y.sum()? + gathered.sum()?)?;
    let loss = gradients.backward(&loss)?;

    let [a, b, weight] = [0, 1, 2].map(|i| params[i].as_tensor());
    let attention = a.relu()?.matmul(&b.t()?)?.matmul(b)?;
    let y = Tensor::cat(&[attention, (a * b)?], 2)?.flatten_to(1)?;
    let y = y.matmul(&weight.t()?)?;
    let tokens = Tensor::new(&[[0u32, 2], [1, 1]], &Device::Cpu)?;
    let gathered = (a * a)?.flatten_to(1)?.embedding(&tokens.flatten_all()?)?;
    let expected = (y.sum_all()? + gathered.sum_all()?)?;
    assert_near("loss", &values(&loss), &values(&expected), TOLERANCE);
    let grads = expected.backward()?;
    for (ours, param) in gradients.values()?.iter().zip(&params) {
        let theirs = grads.get(param).expect("a gradient");
        assert_near("gradient", &values(ours), &values(theirs), TOLERANCE);
    }
    let [long, wide] = [(2, 3), (3, 3)].map(|shape| Value::new(&random(shape, 1)));
    let (long, wide) = (long?, wide?);
    assert_refused("mul: x has shape [2, 3], other [3, 3]", &long * &wide);
    let words = "shapes [[2, 3], [3, 3]] do not match, except in dimension 1";
    assert_refused(words, Value::cat(&[&long, &wide], 1));
    assert_refused("in dimension 2", Value::cat(&[&long], 2));
    Ok(())
}
