//! The training step of one device, which `train_batch` is changed from. It has no devices, no shards and no all-reduce.

use candle_core::{Result, Tensor};
use d2l::{Param, backward, sgd};

use crate::{lenet, loss};

/// One step on one minibatch. Returns the loss before it, summed over the examples.
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// let params = scratch::init_params(0)?;
/// let (x, y) = (Tensor::zeros((2, 1, 28, 28), DType::F32, &Device::Cpu)?, Tensor::new(&[3u32, 7], &Device::Cpu)?);
/// let w = scratch::get_params(&params, &Device::Cpu)?;
/// let l = scratch::one_device::train_batch(&x, &y, &w, 0.2)?;
/// let replicas = scratch::replicas(&params, &[Device::Cpu])?;
/// let ls = scratch::train_batch(&x, &y, &replicas, &[Device::Cpu], 0.2)?;
/// assert_eq!(l.to_scalar::<f32>()?, ls[0].to_scalar::<f32>()?);
/// assert_eq!(w[7].to_vec1::<f32>()?, replicas[0][7].to_vec1::<f32>()?);
/// # candle_core::Result::Ok(())
/// ```
pub fn train_batch(x: &Tensor, y: &Tensor, w: &[Param], lr: f64) -> Result<Tensor> {
    let y_hat = lenet(x, w)?;
    let l = loss(&y_hat, y)?.sum()?;
    let l = backward(&l, w)?; // computes l and its gradients, and returns l
    let batch_size = x.dim(0)?; // Here, we use a full-size batch
    sgd(w, lr, batch_size)?;
    Ok(l)
}
