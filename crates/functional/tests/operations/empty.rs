//! A batch of no examples: empty results, and gradients of zeros for the parameters.

use crate::reference;
use crate::support::{assert_refused, labels, random, run, run_reference, values};
use candle_core::{Result, Tensor};
use functional::{Gradients, Value};

fn assert_empty(
    dims: &[usize],
    inputs: &[Tensor],
    ours: impl Fn(&[Tensor]) -> Result<Value>,
    theirs: impl Fn(&[Tensor]) -> Result<Tensor>,
) {
    for results in [run(inputs, ours), run_reference(inputs, theirs)] {
        let results = results.unwrap();
        assert_eq!(results[0].dims(), dims);
        for (gradient, input) in results[1..].iter().zip(inputs) {
            assert_eq!(gradient.dims(), input.dims());
            assert!(values(gradient).iter().all(|g| *g == 0.));
        }
    }
}

#[test]
fn conv2d() {
    let inputs = [
        random((0, 28, 28, 1), 1),
        random((20, 1, 3, 3), 2),
        random(20, 3),
    ];
    assert_empty(
        &[0, 26, 26, 20],
        &inputs,
        |t| Value::new(&t[0])?.conv2d(&t[1], Some(&t[2]), 1, 0),
        |t| reference::conv2d(&t[0], &t[1], Some(&t[2]), 1, 0),
    );
    let pointwise = [random((0, 14, 14, 8), 1), random((4, 8, 1, 1), 2)];
    assert_empty(
        &[0, 14, 14, 4],
        &pointwise,
        |t| Value::new(&t[0])?.conv2d(&t[1], None, 1, 0),
        |t| reference::conv2d(&t[0], &t[1], None, 1, 0),
    );
}

#[test]
fn relu_pooling_and_orders() {
    let x = [random((0, 9, 9, 5), 1)];
    assert_empty(
        &[0, 9, 9, 5],
        &x,
        |t| Value::new(&t[0])?.relu(),
        |t| reference::relu(&t[0]),
    );
    assert_empty(
        &[0, 4, 4, 5],
        &x,
        |t| Value::new(&t[0])?.avg_pool2d(2, 2),
        |t| reference::avg_pool2d(&t[0], 2, 2),
    );
    assert_empty(
        &[0, 4, 4, 5],
        &x,
        |t| Value::new(&t[0])?.max_pool2d(2, 2),
        |t| reference::max_pool2d(&t[0], 2, 2),
    );
    assert_empty(
        &[0, 5],
        &x,
        |t| Value::new(&t[0])?.global_avg_pool2d(),
        |t| reference::global_avg_pool2d(&t[0]),
    );
    assert_empty(
        &[0, 405],
        &x,
        |t| Value::new(&t[0])?.flatten(),
        |t| reference::flatten(&t[0]),
    );
    assert_empty(
        &[0, 9, 5, 9],
        &x,
        |t| Value::new(&t[0])?.nhwc(),
        |t| reference::nhwc(&t[0]),
    );
    let images = [random((0, 1, 28, 28), 1)];
    assert_empty(
        &[0, 28, 28, 1],
        &images,
        |t| Value::new(&t[0])?.nhwc(),
        |t| reference::nhwc(&t[0]),
    );
}

#[test]
fn linear_and_losses() {
    let inputs = [random((0, 8), 1), random((3, 8), 2), random(3, 3)];
    assert_empty(
        &[0, 3],
        &inputs,
        |t| Value::new(&t[0])?.linear(&t[1], Some(&t[2])),
        |t| reference::linear(&t[0], &t[1], Some(&t[2])),
    );
    let (y_hat, y) = (random((0, 10), 1), labels(0, 10, 1));
    assert_empty(
        &[0],
        std::slice::from_ref(&y_hat),
        |t| functional::cross_entropy(&Value::new(&t[0])?, &y),
        |t| reference::cross_entropy(&t[0], &y),
    );
    let y = random((0, 10), 2);
    assert_empty(
        &[0],
        &[y_hat],
        |t| functional::squared_error(&Value::new(&t[0])?, &y),
        |t| reference::squared_error(&t[0], &y),
    );
}

/// A whole step: the loss is 0, and so are the gradients.
#[test]
fn a_network_and_its_loss() -> Result<()> {
    let shapes: [&[usize]; 4] = [&[4, 1, 3, 3], &[4], &[5, 16], &[5]];
    let params = shapes.map(|shape| random(shape, 1));
    let w = crate::support::variables(&params)?;
    let x = Value::new(&random((0, 1, 6, 6), 2))?.nhwc()?;
    let h = x
        .conv2d(&w[0], Some(&w[1]), 1, 0)?
        .relu()?
        .avg_pool2d(2, 2)?;
    let y_hat = h.flatten()?.linear(&w[2], Some(&w[3]))?;
    let loss = functional::cross_entropy(&y_hat, &labels(0, 5, 1))?;
    let mut gradients = Gradients::new(w.iter().map(|w| ("", w)), usize::MAX)?;
    assert_eq!(gradients.backward(&loss.sum()?)?.to_scalar::<f32>()?, 0.);
    for gradient in gradients.values()? {
        assert!(values(&gradient).iter().all(|g| *g == 0.));
    }
    assert_refused(
        "mean: x has shape [0], expected at least one element",
        loss.mean(),
    );
    Ok(())
}
