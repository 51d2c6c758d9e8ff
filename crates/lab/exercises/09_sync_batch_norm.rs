// 9. Synchronized batch norm: mean and variance over the shards of all devices
//
// Batch norm needs the mean and the variance of each channel over the
// minibatch. A device has only its shard. So without `sync_bn`, several devices
// take a different step from that of one device (13.6). In this exercise, each
// device sends its number of rows and the mean of each channel. It also sends
// the sum of the squared deviations from this mean. From these numbers, each
// device computes the mean and the variance of all rows.
//
// A shard has the shape (rows, channels), and at least one row. The shards may
// have different sizes. Mean and variance have the shape (channels,). The
// variance is the mean of the squared deviations: batch norm divides by the
// number of all rows.
//
// The values may be near 1000, with deviations near 1. A square is then near
// 1,000,000. An f32 has seven digits, so the difference of two sums of squares
// is mostly rounding. Subtract first, then square.
//
// Candle: `x.mean(0)` and `x.sum(0)` go over the rows, `sqr` squares, and
// `broadcast_sub` subtracts a vector from each row. An f64 times a tensor is
// `(tensor * 2.0)?`.

use candle_core::{Result, Tensor};

/// What a device sends of its shard.
pub struct Moments {
    pub rows: usize,
    /// Of each channel: the mean of the shard.
    pub mean: Tensor,
    /// Of each channel: the sum of the squared deviations from `mean`.
    pub squares: Tensor,
}

pub fn moments(shard: &Tensor) -> Result<Moments> {
    // gap: todo!("compute the number of rows, the means and the squared deviations of `shard`")
    let mean = shard.mean(0)?;
    let squares = shard.broadcast_sub(&mean)?.sqr()?.sum(0)?;
    Ok(Moments {
        rows: shard.dim(0)?,
        mean,
        squares,
    })
    // end of gap
}

/// The mean and the variance over all devices.
pub fn combine(devices: &[Moments]) -> Result<(Tensor, Tensor)> {
    // gap: todo!("combine what the devices sent into the mean and the variance of all rows")
    let rows = devices.iter().map(|device| device.rows).sum::<usize>() as f64;
    let mut mean = devices[0].mean.zeros_like()?;
    for device in devices {
        mean = (mean + (&device.mean * (device.rows as f64 / rows))?)?;
    }
    let mut squares = mean.zeros_like()?;
    for device in devices {
        let between = ((&device.mean - &mean)?.sqr()? * device.rows as f64)?;
        squares = ((squares + &device.squares)? + between)?;
    }
    Ok((mean, (squares / rows)?))
    // end of gap
}
