// 3. split_batch: a shard of the minibatch for each device
//
// Each device gets a shard: some consecutive examples of x, and their labels
// from y (book: 13.5.5). The shards stand in the order of the devices. Together
// they have each example once.
//
// Let n be the number of examples and k the number of devices. Often k does not
// divide n. Then each of the first n % k shards has one more example than the
// others. So 5 examples on 3 devices make shards of 2, 2 and 1. With fewer
// examples than devices, the last shards are empty, but each device still gets
// one.
//
// `num_examples(x, y)` returns n, or an error if x and y have different numbers
// of examples. `x.narrow(0, start, len)` returns `len` examples from number
// `start` on. `view_to_device(&tensor, device)` brings them to a device.

use candle_core::{Device, Result, Tensor};
use d2l::{num_examples, view_to_device};

pub fn split_batch(
    x: &Tensor,
    y: &Tensor,
    devices: &[Device],
) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    let (mut x_shards, mut y_shards) = (vec![], vec![]);
    // gap: todo!("push a shard of x and a shard of y for each device");
    let (n, k) = (num_examples(x, y)?, devices.len());
    let mut start = 0;
    for (i, device) in devices.iter().enumerate() {
        let len = if i < n % k { n / k + 1 } else { n / k };
        x_shards.push(view_to_device(&x.narrow(0, start, len)?, device)?);
        y_shards.push(view_to_device(&y.narrow(0, start, len)?, device)?);
        start += len;
    }
    // end of gap
    Ok((x_shards, y_shards))
}
