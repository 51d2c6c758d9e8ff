//! Cross-entropy and the sum of losses on a GPU. To look at the labels on the host would mean to wait for the
//! GPU: a label that is no class makes the loss of its example NaN, and its gradient too.

use super::memory::Floats;
use super::stream::{Address, Stream, launch};
use super::tape::{storage, stream_of, with_floats};
use crate::chain::{self, Link, Next};
use candle_core::cuda_backend::CudaStorage;
use candle_core::cuda_backend::cudarc::driver::{DevicePtr, DevicePtrMut};
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Storage, Tensor, bail};

/// As [`crate::cross_entropy`], of arguments that fit.
pub(crate) fn cross_entropy(y_hat: &Tensor, y: &Tensor) -> Result<Tensor> {
    let y_hat = y_hat.contiguous()?;
    let op = CrossEntropy {
        y_hat: y_hat.clone(),
        labels: y.contiguous()?,
    };
    chain::apply(&y_hat, op)
}

struct CrossEntropy {
    y_hat: Tensor,
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

    fn bwd(&self, _: &Tensor, _: &Tensor, d_losses: &Tensor) -> Result<Option<Tensor>> {
        self.gradient(Some(&d_losses.contiguous()?)).map(Some)
    }
}

impl Link for CrossEntropy {
    fn next(&self) -> Result<Next<'_>> {
        Ok(Next::To(&self.y_hat))
    }

    fn back(&self, _: &Tensor, d_losses: Option<&Tensor>) -> Result<Option<Tensor>> {
        self.gradient(d_losses).map(Some)
    }
}

impl CrossEntropy {
    /// softmax(y_hat), less 1 at the label, times the gradient of the losses; none stands for ones.
    fn gradient(&self, d_losses: Option<&Tensor>) -> Result<Tensor> {
        let y_hat = &self.y_hat;
        let stream = stream_of(y_hat)?;
        let (batch, classes) = y_hat.dims2()?;
        let mut gradient = stream.alloc(batch * classes)?;
        {
            let (address, _writing) = gradient.device_ptr_mut(stream.cuda());
            let to = Floats::new(address, batch * classes);
            let given: Vec<&Tensor> = std::iter::once(y_hat).chain(d_losses).collect();
            with_floats(&given, &stream, |given| {
                let (y_hat, d_losses) = (given[0], given.get(1).copied());
                self.with_labels(&stream, |labels| {
                    let name = "cross_entropy_backward";
                    launch!(stream, name, elements batch; batch, y_hat, labels, d_losses, to, classes)
                })
            })?;
        }
        let gradient = storage(gradient, &stream);
        let shape = self.y_hat.shape();
        Ok(Tensor::from_storage(
            gradient,
            shape,
            BackpropOp::none(),
            false,
        ))
    }
}

/// The sum of all elements, by one block: losses are few.
pub(crate) fn sum(x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
    let stream = Stream::of(&x.device)?;
    let n = layout.shape().elem_count();
    let mut sum = stream.alloc(1)?;
    {
        let slice = x.as_cuda_slice::<f32>()?;
        let (first, _reading) = slice.device_ptr(stream.cuda());
        let len = slice.num_bytes() / size_of::<f32>();
        let x = Floats::new(first, len).at(layout.start_offset(), n);
        let (address, _writing) = sum.device_ptr_mut(stream.cuda());
        launch!(stream, "total", (1, 1, 1), (256, 1, 1); x, Floats::new(address, 1), n)?;
    }
    let sum = CudaStorage::wrap_cuda_slice(sum, stream.device().clone());
    Ok((sum, ().into()))
}
