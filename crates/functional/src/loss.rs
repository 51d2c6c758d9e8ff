//! The loss of classification, an example at a time. It takes no mean and no sum: that is the
//! caller's, because shards of one minibatch have to be added.

use crate::chain::{self, Link, Next};
use crate::storage::{read, slice, tensor};
use crate::threads::for_each_chunk;
use crate::{args, plain};
use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Result, Shape, Tensor, bail};

/// Examples of a chunk.
const CHUNK: usize = 64;

/// The cross-entropy of each example: logits `y_hat` (B, C) and labels `y` (B,) of u32 → (B,):
/// log Σⱼ exp(y_hatⱼ) − y_hat at the label.
///
/// In the book: `nn.CrossEntropyLoss(reduction='none')`.
///
/// # Errors
/// Where the types or sizes do not match, or a label is no class. On a GPU the host does not wait to read
/// the labels: there, a label that is no class gives a loss of NaN instead.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let y_hat = Tensor::new(&[[0f32, 0.], [0., 100.]], &Device::Cpu)?;
/// let y = Tensor::new(&[0u32, 0], &Device::Cpu)?;
/// let loss = functional::cross_entropy(&y_hat, &y)?;
/// assert_eq!(loss.to_vec1::<f32>()?, [2f32.ln(), 100.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn cross_entropy(y_hat: &Tensor, y: &Tensor) -> Result<Tensor> {
    match y_hat.device() {
        Device::Cpu => {
            let (y_hat, labels) = arguments(y_hat, y)?;
            let y_hat = y_hat.contiguous()?;
            let op = CrossEntropy {
                y_hat: y_hat.clone(),
                labels,
            };
            chain::apply(&y_hat, op)
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => crate::cuda::cross_entropy(&check(y_hat, y)?, y),
        _ => plain::cross_entropy(y_hat, y),
    }
}

/// What [`cross_entropy`] and its plain twin were given, checked: the logits, and the labels.
pub(crate) fn arguments(y_hat: &Tensor, y: &Tensor) -> Result<(Tensor, Vec<u32>)> {
    let y_hat = check(y_hat, y)?;
    let (labels, classes) = (y.to_vec1::<u32>()?, y_hat.dim(1)?);
    match labels.iter().position(|label| *label as usize >= classes) {
        Some(i) => bail!(
            "cross_entropy: label {} of example {i} is too large, y_hat has {classes} classes",
            labels[i]
        ),
        None => Ok((y_hat, labels)),
    }
}

/// The logits, after types and shapes were checked.
fn check(y_hat: &Tensor, y: &Tensor) -> Result<Tensor> {
    let op = "cross_entropy";
    let y_hat = args::float(op, "y_hat", y_hat)?;
    let batch = match *y_hat.dims() {
        [batch, _] => batch,
        _ => bail!("{op}: y_hat has shape {:?}, expected (B, C)", y_hat.dims()),
    };
    if y.dtype() != DType::U32 {
        bail!(
            "{op}: y is {}, expected u32; convert it with to_dtype",
            y.dtype().as_str()
        )
    }
    args::vector(op, "y", y.dims(), batch, "examples of y_hat")?;
    Ok(y_hat)
}

struct CrossEntropy {
    y_hat: Tensor,
    labels: Vec<u32>,
}

/// The largest logit, and Σ exp(logit − largest): the shift keeps exp from overflowing.
fn log_sum_exp(logits: &[f32]) -> (f32, f32) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    (largest, logits.iter().map(|v| (v - largest).exp()).sum())
}

impl CustomOp1 for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross-entropy"
    }

    fn cpu_fwd(&self, y_hat: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (batch, classes) = layout.shape().dims2()?;
        let y_hat = slice(y_hat, layout)?;
        let mut losses = vec![0.; batch];
        for_each_chunk(&mut losses, CHUNK, |i, losses| {
            let (rows, labels) = (&y_hat[i * CHUNK * classes..], &self.labels[i * CHUNK..]);
            for ((loss, row), label) in losses
                .iter_mut()
                .zip(rows.chunks_exact(classes))
                .zip(labels)
            {
                let (largest, sum) = log_sum_exp(row);
                *loss = sum.ln() - (row[*label as usize] - largest);
            }
        });
        Ok((CpuStorage::F32(losses), batch.into()))
    }

    /// softmax(y_hat), less 1 at the label.
    fn bwd(&self, y_hat: &Tensor, _: &Tensor, d_losses: &Tensor) -> Result<Option<Tensor>> {
        let classes = y_hat.dim(1)?;
        let gradient = read([y_hat, d_losses], |[y_hat, d_losses]| {
            let mut gradient = vec![0.; y_hat.len()];
            for_each_chunk(&mut gradient, CHUNK * classes, |i, gradient| {
                let rows = y_hat[i * CHUNK * classes..].chunks_exact(classes);
                let examples = rows
                    .zip(&self.labels[i * CHUNK..])
                    .zip(&d_losses[i * CHUNK..]);
                for (to, ((row, label), d_loss)) in gradient.chunks_exact_mut(classes).zip(examples)
                {
                    let (largest, sum) = log_sum_exp(row);
                    for (to, v) in to.iter_mut().zip(row) {
                        *to = d_loss * (v - largest).exp() / sum;
                    }
                    to[*label as usize] -= d_loss;
                }
            });
            gradient
        })?;
        tensor(gradient, y_hat.shape()).map(Some)
    }
}

impl Link for CrossEntropy {
    fn next(&self) -> Result<Next<'_>> {
        Ok(Next::To(&self.y_hat))
    }

    fn back(&self, losses: &Tensor, d_losses: Option<&Tensor>) -> Result<Option<Tensor>> {
        self.bwd(&self.y_hat, losses, &chain::or_ones(losses, d_losses)?)
    }
}
