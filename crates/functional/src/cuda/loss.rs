//! Cross-entropy on a GPU. To look at the labels on the host would mean to wait for the GPU: a label that
//! is no class makes the loss of its example NaN, and its gradient too.

use super::memory::Floats;
use super::stream::{Address, Stream, launch};
use super::tape::{storage, stream_of, with_floats};
use candle_core::cuda_backend::CudaStorage;
use candle_core::cuda_backend::cudarc::driver::{DevicePtr, DevicePtrMut};
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Storage, Tensor, bail};

/// As [`crate::cross_entropy`], of arguments that fit.
pub(crate) fn cross_entropy(y_hat: &Tensor, y: &Tensor) -> Result<Tensor> {
    let labels = y.contiguous()?;
    y_hat.contiguous()?.apply_op1(CrossEntropy { labels })
}

struct CrossEntropy {
    labels: Tensor,
}

impl CrossEntropy {
    fn with_labels<R>(&self, stream: &Stream, f: impl FnOnce(Address) -> Result<R>) -> Result<R> {
        let (labels, layout) = self.labels.storage_and_layout();
        let labels = match &*labels {
            Storage::Cuda(labels) if labels.device.id() == stream.device().id() => labels,
            _ => bail!("cross_entropy: y is on another device than y_hat"),
        };
        let labels = labels.as_cuda_slice::<u32>()?;
        let (first, _reading) = labels.device_ptr(stream.cuda());
        f(Address(
            first + (layout.start_offset() * size_of::<u32>()) as u64,
        ))
    }
}

impl CustomOp1 for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross-entropy"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        bail!("expected a tensor on a GPU")
    }

    fn cuda_fwd(&self, y_hat: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let stream = Stream::of(&y_hat.device)?;
        let (batch, classes) = layout.shape().dims2()?;
        let mut losses = stream.alloc(batch)?;
        {
            let slice = y_hat.as_cuda_slice::<f32>()?;
            let (first, _reading) = slice.device_ptr(stream.cuda());
            let len = slice.num_bytes() / size_of::<f32>();
            let y_hat = Floats::new(first, len).at(layout.start_offset(), batch * classes);
            let (address, _writing) = losses.device_ptr_mut(stream.cuda());
            let losses = Floats::new(address, batch);
            self.with_labels(&stream, |labels| {
                launch!(stream, "cross_entropy", elements batch; batch, y_hat, labels, losses, classes)
            })?;
        }
        let losses = CudaStorage::wrap_cuda_slice(losses, stream.device().clone());
        Ok((losses, batch.into()))
    }

    /// softmax(y_hat), less 1 at the label.
    fn bwd(&self, y_hat: &Tensor, _: &Tensor, d_losses: &Tensor) -> Result<Option<Tensor>> {
        let stream = stream_of(y_hat)?;
        let (batch, classes) = y_hat.dims2()?;
        let mut gradient = stream.alloc(batch * classes)?;
        {
            let (address, _writing) = gradient.device_ptr_mut(stream.cuda());
            let to = Floats::new(address, batch * classes);
            let d_losses = d_losses.contiguous()?;
            with_floats(&[y_hat, &d_losses], &stream, |x| {
                self.with_labels(&stream, |labels| {
                    let name = "cross_entropy_backward";
                    launch!(stream, name, elements batch; batch, x[0], labels, x[1], to, classes)
                })
            })?;
        }
        let gradient = storage(gradient, &stream);
        let gradient = Tensor::from_storage(gradient, y_hat.shape(), BackpropOp::none(), false);
        Ok(Some(gradient))
    }
}
