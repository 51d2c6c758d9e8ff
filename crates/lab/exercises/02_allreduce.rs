// 2. allreduce: the sum of all devices, on each device
//
// Each device computes the gradient of its own shard. Then each device needs
// the sum of these gradients (book: 13.5.4). `data` has one tensor for each
// device, all of the same shape.
//
// First add all other tensors to `data[0]`. Then write the sum into all other
// tensors.
//
// `a.set(&b)` writes the tensor b into the memory of the `Var` a, and replaces
// the old values. `a.add(&b)` returns the sum as a new tensor. It needs both
// tensors on one device, and `to_device(&b, a.device())` brings b to a. The check
// runs on the CPU, so it cannot see a missing `to_device`.

use candle_core::{Result, Var};
use d2l::to_device;

pub fn allreduce(data: &[Var]) -> Result<()> {
    // gap: todo!("add all tensors to data[0], and write the sum into the others");
    for i in 1..data.len() {
        let other = to_device(&data[i], data[0].device())?;
        data[0].set(&data[0].add(&other)?)?;
    }
    for i in 1..data.len() {
        data[i].set(&to_device(&data[0], data[i].device())?)?;
    }
    // end of gap
    Ok(())
}
