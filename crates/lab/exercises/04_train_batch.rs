// 4. train_batch: one step of all devices
//
// A step has four parts (book: 13.5.6), and two of them are here already.
// `split_batch` splits the minibatch. `backward` computes the loss and the
// gradients of each shard. The loss of a shard is the *sum* over its examples.
// `device_params` has one replica for each device. The gradient of parameter i
// of a replica w is now in `w[i].grad()`.
//
// Write the other two parts. For each parameter, sum the gradients of all
// devices. `allreduce` sums a list of `Var`, with one `Var` for each device. A
// clone of a `Var` has the same memory. So `allreduce` changes the gradient too
// if you give it a clone.
//
// Then update each replica. `on_each(devices, device_params, |w| …)` calls a
// function for each replica w, on all devices at once. `sgd(w, lr, batch_size)`
// makes the update, and divides the gradients by `batch_size`. Which number is
// that?
//
// Return the mean loss of the whole minibatch. `losses` has the loss of each
// shard. Shards may have different sizes.

use candle_core::{Device, Result, Tensor, Var};
use d2l::{Param, backward, on_each, sgd};
use scratch::{allreduce, lenet, loss, split_batch};

pub fn train_batch(
    x: &Tensor,
    y: &Tensor,
    device_params: &[Vec<Param>],
    devices: &[Device],
    lr: f64,
) -> Result<f32> {
    let (x_shards, y_shards) = split_batch(x, y, devices)?;
    let inputs = (x_shards, y_shards, device_params);
    let losses: Vec<f32> = on_each(devices, inputs, |(x_shard, y_shard, w)| {
        let l = loss(&lenet(&x_shard, w)?, &y_shard)?.sum()?;
        backward(&l, w)?.to_scalar()
    })?;
    // gap: todo!("sum the gradients, update each replica, and return the mean loss")
    for i in 0..device_params[0].len() {
        let grads: Vec<Var> = device_params.iter().map(|w| w[i].grad().clone()).collect();
        allreduce(&grads)?;
    }
    let batch_size = x.dim(0)?;
    on_each(devices, device_params, |w| sgd(w, lr, batch_size))?;
    Ok(losses.iter().sum::<f32>() / batch_size as f32)
    // end of gap
}
