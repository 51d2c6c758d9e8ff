//! Views give what their contiguous copies give: narrowed, permuted and transposed tensors, of variables and of
//! tensors that are none. To rounding: a matrix product may sum another layout in another order.

use crate::support::{assert_near, assert_results, labels, random, run, values};
use candle_core::{Result, Tensor, Var};
use functional::{Value, cross_entropy, squared_error};

const TOLERANCE: f64 = 1e-6;

/// Compares `f` of a view of the first input with `f` of a copy of that view.
fn assert_view(
    inputs: &[Tensor],
    view: impl Fn(&Tensor) -> Result<Tensor>,
    f: impl Fn(&Tensor, &[Tensor]) -> Result<Value>,
) {
    // contiguous and from the beginning, as a variable is
    let copied = |t: &Tensor| -> Result<Tensor> { Ok(Var::from_tensor(&view(t)?)?.into_inner()) };
    let copy = copied(&inputs[0]).unwrap();
    let copies = [&[copy], &inputs[1..]].concat();
    let of_copies = run(&copies, |t| f(&t[0], &t[1..])).unwrap();
    // a view of a variable, whose gradient arrives at the variable
    let ours = run(inputs, |t| f(&view(&t[0])?, &t[1..])).unwrap();
    let whole = Var::from_tensor(&inputs[0]).unwrap();
    let seen = (view(&whole).unwrap() * &of_copies[1]).unwrap();
    let grads = seen.sum_all().unwrap().backward().unwrap();
    let mut expected = of_copies.clone();
    expected[1] = grads.get(&whole).expect("a gradient").clone();
    assert_results(&ours, &expected, TOLERANCE);
    // a view of what is no variable
    let y = f(&view(&inputs[0]).unwrap(), &inputs[1..]).unwrap();
    let (y, of_copy) = (values(&y.eval().unwrap()), values(&of_copies[0]));
    assert_near("without variables", &y, &of_copy, TOLERANCE);
    // a view beside variables
    let beside = run(&inputs[1..], |t| f(&view(&inputs[0])?, t)).unwrap();
    expected.remove(1);
    assert_results(&beside, &expected, TOLERANCE);
}

#[test]
fn images() {
    let x = [random((5, 6, 7, 4), 1)];
    let relu = |x: &Tensor, _: &[Tensor]| Value::new(x)?.relu();
    assert_view(&x, |x| x.narrow(0, 2, 2), relu);
    assert_view(&x, |x| x.narrow(2, 1, 5), relu);
    assert_view(&x, |x| x.permute((0, 2, 3, 1)), relu);
    assert_view(&x, |x| x.narrow(0, 0, 1)?.broadcast_as((3, 6, 7, 4)), relu);
    // an image of one channel, of which only the shape changes
    let nhwc = |x: &Tensor, _: &[Tensor]| Value::new(x)?.nhwc();
    assert_view(&[random((5, 1, 6, 7), 1)], |x| x.transpose(2, 3), nhwc);
}

/// The book's W3 is (800, 128), in rows of outputs: it is passed as a transposed view.
#[test]
fn weights_and_biases() {
    let inputs = [random((9, 5), 1), random((6, 4), 2), random(5, 3)];
    let linear = |w: &Tensor, t: &[Tensor]| Value::new(&t[0])?.linear(w, Some(&t[1]));
    assert_view(&inputs, |w| w.narrow(0, 3, 4)?.t(), linear);
    let inputs = [random(9, 1), random((6, 3), 2), random((5, 3), 3)];
    let bias = |b: &Tensor, t: &[Tensor]| Value::new(&t[0])?.linear(&t[1], Some(b));
    assert_view(&inputs, |b| b.narrow(0, 2, 5), bias);
}

#[test]
fn logits_labels_and_targets() {
    let (x, y) = ([random((10, 9), 1)], labels(9, 10, 1));
    let loss = |x: &Tensor, _: &[Tensor]| cross_entropy(&Value::new(x)?, &y);
    assert_view(&x, Tensor::t, loss);
    let loss = |x: &Tensor, _: &[Tensor]| cross_entropy(&Value::new(x)?, &y.narrow(0, 3, 4)?);
    assert_view(&[random((9, 10), 1)], |x| x.narrow(0, 3, 4), loss);
    let y = random((10, 9), 2);
    let loss = |x: &Tensor, _: &[Tensor]| squared_error(&Value::new(x)?, &y.t()?);
    assert_view(&x, Tensor::t, loss);
}
