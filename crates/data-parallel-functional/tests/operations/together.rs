//! Operations that are computed together, of which some become one, equal the reference's one by one: where random
//! networks do not come by.

use crate::both::{Both, Running, assert_both};
use crate::support::{coarse, pass, random, tensors, upstream, values, variables};
use candle_core::{Result, Tensor};

const TOLERANCE: f64 = 1e-4;

type Network = fn(&[Tensor]) -> Result<Both>;

fn norm(x: &Both, t: &[Tensor]) -> Result<Both> {
    x.batch_norm2d(&t[0], &t[1], &Running::of(&t[0])?, true)
}

/// The running mean sees a convolution's bias, which the batch's own mean takes out again: its gradient is zero.
#[test]
fn a_bias_before_batch_norm() -> Result<()> {
    let inputs = [random((3, 7, 6, 5), 1), random((8, 5, 3, 3), 1)];
    let inputs = [&inputs[..], &[2, 3, 4].map(|seed| random(8, seed))].concat();
    let network = |t: &[Tensor]| {
        let y = Both::new(&t[0])?.conv2d(&t[1], Some(&t[2]), 1, 1)?;
        norm(&y, &t[3..])?.relu()
    };
    assert_both(&inputs, TOLERANCE, network);
    let vars = variables(&inputs)?;
    let y = network(&tensors(&vars))?.ours();
    let gradients = pass(&vars, &y, upstream(y.dims()))?;
    assert_eq!(values(&gradients[3]), [0.; 8]);
    Ok(())
}

#[test]
fn a_value_that_is_read_often_gets_all_its_gradient() {
    let inputs = [random((2, 3, 4, 5), 1), random(5, 2), random(5, 3)];
    let networks: [Network; 4] = [
        |t| Both::new(&t[0])?.plus(&Both::new(&t[0])?),
        |t| Both::new(&t[0])?.plus(&Both::new(&t[0])?)?.relu(),
        |t| {
            let y = Both::new(&t[0])?.relu()?;
            y.plus(&y)?.relu()?.plus(&y.max_pool2d(1, 1)?)?.plus(&y)
        },
        |t| {
            let y = norm(&Both::new(&t[0])?, &t[1..])?;
            y.plus(&Both::new(&t[0])?)?.relu()?.plus(&y)
        },
    ];
    for (network, used) in networks.iter().zip([1, 1, 1, 3]) {
        assert_both(&inputs[..used], TOLERANCE, network);
    }
}

/// An operation is part of another only where nothing else reads what lies between them.
#[test]
fn what_lies_between_may_be_read_elsewhere() {
    let x = || coarse((3, 9, 8, 4), 1);
    let inputs = [x(), coarse((6, 4, 3, 3), 2), coarse(6, 3)];
    // the convolution before its ReLU, and the ReLU before its pooling
    assert_both(&inputs, TOLERANCE, |t| {
        let y = Both::new(&t[0])?.conv2d(&t[1], Some(&t[2]), 1, 0)?;
        y.relu()?.avg_pool2d(2, 2)?.plus(&y.max_pool2d(2, 2)?)
    });
    assert_both(&inputs, TOLERANCE, |t| {
        let y = Both::new(&t[0])?.conv2d(&t[1], Some(&t[2]), 1, 0)?.relu()?;
        y.avg_pool2d(2, 2)?.plus(&y.max_pool2d(2, 2)?)
    });
    // the convolution before its batch norm, whose bias is not left out then
    let inputs = [&inputs[..], &[random(6, 4), random(6, 5)]].concat();
    assert_both(&inputs, TOLERANCE, |t| {
        let y = Both::new(&t[0])?.conv2d(&t[1], Some(&t[2]), 1, 0)?;
        norm(&y, &t[3..])?.plus(&y)
    });
    let inputs = [coarse((5, 7), 1), coarse((4, 7), 2)];
    assert_both(&inputs, TOLERANCE, |t| {
        let y = Both::new(&t[0])?.linear(&t[1], None)?;
        y.relu()?.plus(&y)
    });
}

/// Two batch norms that share running statistics move them in their order.
#[test]
fn statistics_that_two_layers_share() {
    let [x, other] = [1, 2].map(|seed| random((2, 3, 3, 2), seed));
    let inputs = [x, other, random(2, 3)];
    assert_both(&inputs, TOLERANCE, |t| {
        let running = Running::of(&t[2])?;
        let norm = |x: &Tensor| Both::new(x)?.batch_norm2d(&t[2], &t[2], &running, true);
        norm(&t[0])?.plus(&norm(&t[1])?)
    });
}
