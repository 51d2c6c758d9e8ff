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

fn assert_image_views(f: impl Fn(&Value) -> Result<Value>) {
    let x = [random((5, 6, 7, 4), 1)];
    let f = |x: &Tensor, _: &[Tensor]| f(&Value::new(x)?);
    assert_view(&x, |x| x.narrow(0, 2, 2), f);
    assert_view(&x, |x| x.narrow(2, 1, 5), f);
    assert_view(&x, |x| x.permute((0, 2, 3, 1)), f);
    assert_view(&x, |x| x.narrow(0, 0, 1)?.broadcast_as((3, 6, 7, 4)), f);
}

#[test]
fn images() {
    assert_image_views(Value::nhwc);
    assert_image_views(Value::flatten);
    assert_image_views(Value::relu);
    assert_image_views(Value::global_avg_pool2d);
    assert_image_views(|x| x.avg_pool2d(2, 2));
    assert_image_views(|x| x.max_pool2d(2, 2));
    assert_image_views(|x| {
        let c = x.dims()[3];
        x.conv2d(&random((3, c, 2, 2), 2), Some(&random(3, 3)), 1, 1)
    });
    assert_image_views(|x| {
        let c = x.dims()[3];
        let [mean, var] = [2, 3].map(|seed| Var::from_tensor(&random(c, seed)).unwrap());
        x.batch_norm2d([&random(c, 4), &random(c, 5)], [&mean, &var], None, true)
    });
    assert_image_views(|x| x + &x.relu()?);
    assert_image_views(Value::sum);
    assert_image_views(Value::mean);
    let nhwc = |x: &Tensor, _: &[Tensor]| Value::new(x)?.nhwc();
    assert_view(&[random((5, 1, 6, 7), 1)], |x| x.transpose(2, 3), nhwc);
}

/// The book's W3 is (800, 128), in rows of outputs: it is passed as a transposed view.
#[test]
fn weights_and_biases() {
    let inputs = [random((2, 3, 4, 5), 1), random((2, 6, 6, 3), 2)];
    let conv2d = |w: &Tensor, t: &[Tensor]| Value::new(&t[0])?.conv2d(w, None, 1, 0);
    assert_view(&inputs, |w| w.permute((3, 1, 0, 2)), conv2d);
    let inputs = [random((9, 5), 1), random((6, 4), 2), random(5, 3)];
    let linear = |w: &Tensor, t: &[Tensor]| Value::new(&t[0])?.linear(w, Some(&t[1]));
    assert_view(&inputs, |w| w.narrow(0, 3, 4)?.t(), linear);
    let inputs = [random((5, 8), 1), random((6, 8), 2)];
    let matmul = |w: &Tensor, t: &[Tensor]| Value::new(&t[0])?.matmul(w, None);
    assert_view(&inputs, Tensor::t, matmul);
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
