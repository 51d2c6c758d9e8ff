//! Cross-entropy, sum and mean on a GPU. To look at the labels on the host would mean to wait for the GPU: a
//! label that is no class makes the loss of its example NaN, and its gradient too.

use super::elementwise::bias_relu;
use super::floats::Floats;
use super::gradient::{At, Cuda, Grad, Pass};
use super::launch::{Address, THREADS, launch};
use super::memory::Block;
use super::stream::Stream;
use crate::descriptors::loss::CrossEntropy;
use crate::descriptors::pool::GlobalAverage;
use crate::descriptors::{Mean, Sum};
use crate::kernel::Kernel;
use candle_core::cuda_backend::cudarc::driver::DevicePtr;
use candle_core::{Result, Storage, bail};

impl CrossEntropy {
    fn with_labels<R>(&self, stream: &Stream, f: impl FnOnce(Address) -> Result<R>) -> Result<R> {
        let (storage, layout) = self.labels.storage_and_layout();
        let on_gpu = match &*storage {
            Storage::Cuda(labels) if labels.device.id() == stream.device().id() => labels,
            _ => bail!("cross_entropy: y is on another device than y_hat"),
        };
        let labels = on_gpu.as_cuda_slice::<u32>()?;
        let (first, _reading) = labels.device_ptr(stream.cuda());
        f(Address(
            first + (layout.start_offset() * size_of::<u32>()) as u64,
        ))
    }
}

impl Kernel<Cuda> for CrossEntropy {
    fn forward(&self, pass: &Pass, x: &[Floats], y: Floats) -> Result<Vec<Block>> {
        let stream = &*pass.stream;
        let classes = self.classes;
        self.with_labels(stream, |labels| {
            launch!(stream, "cross_entropy", elements y.len; y.len, x[0], labels, y, classes)
        })?;
        Ok(vec![])
    }

    /// softmax(y_hat), less 1 at the label, times the gradient of the losses.
    fn backward(&self, pass: &Pass, at: At<'_, '_>, dy: Block, dx: &mut [Grad<'_>]) -> Result<()> {
        let stream = &*pass.stream;
        let y_hat = at.x[0];
        let classes = self.classes;
        let gradient = Block::new(&pass.stream, y_hat.len)?;
        let d_losses = dy.floats();
        let batch = d_losses.len;
        let to = gradient.floats();
        self.with_labels(stream, |labels| {
            let name = "cross_entropy_backward";
            launch!(stream, name, elements batch; batch, y_hat, labels, d_losses, to, classes)
        })?;
        dx[0].give(stream, gradient)
    }
}

impl Kernel<Cuda> for Sum {
    /// By one block: losses are few.
    fn forward(&self, pass: &Pass, x: &[Floats], y: Floats) -> Result<Vec<Block>> {
        launch!(pass.stream, "total", (1, 1, 1), (THREADS, 1, 1); x[0], y, x[0].len)?;
        Ok(vec![])
    }

    fn backward(&self, pass: &Pass, _: At<'_, '_>, dy: Block, dx: &mut [Grad<'_>]) -> Result<()> {
        dx[0].write(&pass.stream, |to, add| {
            if !add {
                pass.stream.fill(to, 0.)?;
            }
            bias_relu(&pass.stream, to, Some(dy.floats()), 1, false)
        })
    }
}

/// Computed as the mean of a channel over all pixels.
impl Kernel<Cuda> for Mean {
    fn forward(&self, pass: &Pass, x: &[Floats], y: Floats) -> Result<Vec<Block>> {
        all(x[0].len).forward(pass, x, y)
    }

    fn backward(&self, pass: &Pass, at: At<'_, '_>, dy: Block, dx: &mut [Grad<'_>]) -> Result<()> {
        all(at.x[0].len).backward(pass, at, dy, dx)
    }
}

fn all(pixels: usize) -> GlobalAverage {
    GlobalAverage {
        pixels,
        channels: 1,
    }
}
