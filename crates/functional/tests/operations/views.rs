//! Views give what their contiguous copies give: narrowed, permuted and transposed tensors.
//! To rounding: a matrix product may sum another layout in another order.

use crate::support::{assert_same, labels, random};
use candle_core::{Result, Tensor, Var};

/// Compares `f` of a view of the first input with `f` of a copy of that view.
fn assert_view(
    inputs: &[Tensor],
    view: impl Fn(&Tensor) -> Result<Tensor>,
    f: impl Fn(&Tensor, &[Tensor]) -> Result<Tensor>,
) {
    let copied = |t: &Tensor| -> Result<Tensor> {
        // an affine operation makes a fresh, contiguous tensor of any view
        let copy = (view(t)? + 0.)?;
        assert!(copy.is_contiguous() && copy.layout().start_offset() == 0);
        Ok(copy)
    };
    let ours = |t: &[Tensor]| f(&view(&t[0])?, &t[1..]);
    let theirs = |t: &[Tensor]| f(&copied(&t[0])?, &t[1..]);
    assert_same(inputs, 1e-6, ours, theirs);
}

fn assert_image_views(f: impl Fn(&Tensor) -> Result<Tensor>) {
    let x = [random((5, 6, 7, 4), 1)];
    assert_view(&x, |x| x.narrow(0, 2, 2), |x, _| f(x));
    assert_view(&x, |x| x.narrow(2, 1, 5), |x, _| f(x));
    assert_view(&x, |x| x.permute((0, 2, 3, 1)), |x, _| f(x));
    assert_view(
        &x,
        |x| x.narrow(0, 0, 1)?.broadcast_as((3, 6, 7, 4)),
        |x, _| f(x),
    );
}

#[test]
fn images() {
    assert_image_views(functional::nhwc);
    assert_image_views(functional::flatten);
    assert_image_views(functional::relu);
    assert_image_views(functional::global_avg_pool2d);
    assert_image_views(|x| functional::avg_pool2d(x, 2, 2));
    assert_image_views(|x| functional::max_pool2d(x, 2, 2));
    assert_image_views(|x| {
        let c = x.dim(3)?;
        functional::conv2d(x, &random((3, c, 2, 2), 2), Some(&random(3, 3)), 1, 1)
    });
    assert_image_views(|x| {
        let c = x.dim(3)?;
        let [mean, var] = [
            Var::from_tensor(&random(c, 2))?,
            Var::from_tensor(&random(c, 3))?,
        ];
        functional::batch_norm2d(x, &random(c, 4), &random(c, 5), &mean, &var, true)
    });
    let one_channel = [random((5, 1, 6, 7), 1)];
    assert_view(
        &one_channel,
        |x| x.transpose(2, 3),
        |x, _| functional::nhwc(x),
    );
}

#[test]
fn convolution_weights() {
    let inputs = [random((2, 3, 4, 5), 1), random((2, 6, 6, 3), 2)];
    let conv2d = |w: &Tensor, t: &[Tensor]| functional::conv2d(&t[0], w, None, 1, 0);
    assert_view(&inputs, |w| w.permute((3, 1, 0, 2)), conv2d);
    assert_view(&inputs, |w| w.narrow(0, 1, 1), conv2d);
}

/// The book's W3 is (800, 128), in rows of outputs: it is passed as a transposed view.
#[test]
fn linear_weights() {
    let inputs = [random((8, 5), 1), random((6, 8), 2), random(5, 3)];
    let linear = |w: &Tensor, t: &[Tensor]| functional::linear(&t[0], w, Some(&t[1]));
    assert_view(&inputs, Tensor::t, linear);
    let inputs = [random((9, 5), 1), random((6, 4), 2), random(5, 3)];
    assert_view(&inputs, |w| w.narrow(0, 3, 4)?.t(), linear);
    let inputs = [random((9, 5), 1), random((6, 3), 2), random(9, 3)];
    assert_view(&inputs, |w| w.narrow(1, 2, 3), linear);
    let inputs = [random((8, 6), 1), random((5, 8), 2)];
    assert_view(&inputs, Tensor::t, |x, t| {
        functional::linear(x, &t[0], None)
    });
}

#[test]
fn logits_and_labels() {
    let y = labels(9, 10, 1);
    let cross_entropy = |y_hat: &Tensor, y: &Tensor| functional::cross_entropy(y_hat, y);
    assert_view(&[random((10, 9), 1)], Tensor::t, |x, _| {
        cross_entropy(x, &y)
    });
    let part = y.narrow(0, 3, 4).unwrap();
    assert_view(
        &[random((9, 10), 1)],
        |x| x.narrow(0, 3, 4),
        |x, _| cross_entropy(x, &part),
    );
}
