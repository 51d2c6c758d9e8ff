// 1. get_params: a copy of the parameters on each device
//
// Data parallelism begins with a replica on each device: a copy of all
// parameters, each with a gradient beside it (book: 13.5.4). `get_params` makes
// the replica of one device. It returns the parameters in the same order.
//
// `Param::new(&tensor)` makes a parameter: a copy of the tensor on the same
// device, with a gradient of zeros.
//
// `p.to_device(device)` copies the tensor p to a device. If p is on that device
// already, it returns the same memory. The check runs on the CPU, so it cannot
// see a missing `to_device`.

use candle_core::{Device, Result, Tensor};
use d2l::Param;

pub fn get_params(params: &[Tensor], device: &Device) -> Result<Vec<Param>> {
    // gap: todo!("copy each of `params` to `device`")
    let params = params.iter();
    params.map(|p| Param::new(&p.to_device(device)?)).collect()
    // end of gap
}
