// 5. evaluate_accuracy_on_all: the test accuracy on several devices
//
// In the book device 0 alone computes the test accuracy. Here all devices do it
// together (book: 13.5.8, exercise 4). Each test minibatch is split into
// shards, as in training. Each device predicts the classes of its shard with
// its own replica.
//
// Return the accuracy over all minibatches, a number from 0 to 1: the fraction
// of examples whose class is predicted correctly. Shards may have different
// sizes, and so may minibatches. Which numbers can you add, and which not?
//
// `split_batch(x, y, devices)` returns the shards of x and of y.
// `on_each(devices, (x_shards, y_shards, device_params), f)` calls `f` on all
// devices. Let `f` be a closure, `|(x_shard, y_shard, w)| …`, that calls the
// function `correct` below. `on_each` returns a list with one count for each
// device.

use candle_core::{Device, Result, Tensor};
use d2l::{Param, accuracy, on_each};
use scratch::{lenet, split_batch};

/// How many examples of a shard the replica w predicts correctly.
fn correct(x_shard: &Tensor, y_shard: &Tensor, w: &[Param]) -> Result<usize> {
    accuracy(&lenet(x_shard, w)?.eval()?, y_shard)
}

pub fn evaluate_accuracy_on_all(
    device_params: &[Vec<Param>],
    devices: &[Device],
    minibatches: &[(Tensor, Tensor)],
) -> Result<f64> {
    // gap: todo!("count the correct predictions of all devices, and divide by the number of examples")
    let (mut right, mut all) = (0, 0);
    for (x, y) in minibatches {
        let (x_shards, y_shards) = split_batch(x, y, devices)?;
        let shards = (x_shards, y_shards, device_params);
        let counts = on_each(devices, shards, |(x_shard, y_shard, w)| {
            correct(&x_shard, &y_shard, w)
        })?;
        right += counts.iter().sum::<usize>();
        all += y.dim(0)?;
    }
    Ok(right as f64 / all as f64)
    // end of gap
}
