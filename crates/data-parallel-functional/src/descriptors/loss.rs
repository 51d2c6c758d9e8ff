//! The loss of classification: its sizes, and the labels.

use super::args;
use candle_core::{DType, Result, Tensor, bail};

/// The cross-entropy of each label: logits (B, …, C) and labels (B, …).
#[derive(Clone)]
pub(crate) struct CrossEntropy {
    /// The number of labels.
    pub batch: usize,
    pub classes: usize,
    /// Of u32, contiguous.
    pub labels: Tensor,
}

impl CrossEntropy {
    /// For logits of shape `y_hat` and labels `y`. On the CPU the labels are checked: to look at them on a GPU
    /// would mean to wait for it.
    pub fn new(y_hat: &[usize], y: &Tensor) -> Result<Self> {
        let op = "cross_entropy";
        let (dims, classes) = match y_hat {
            [dims @ .., classes] if !dims.is_empty() => (dims, *classes),
            _ => bail!("{op}: y_hat has shape {y_hat:?}, expected (B, C) or (B, …, C)"),
        };
        // the shape first: one-hot labels are not to be converted
        if y.dims() == y_hat {
            bail!(
                "{op}: y has shape {y_hat:?} as y_hat, expected {dims:?}: of one-hot labels take y.argmax(D::Minus1); a \
                 loss of probabilities is one of your own"
            )
        }
        match dims {
            [batch] => args::vector(op, "y", y.dims(), *batch, "examples of y_hat")?,
            [_, labels @ ..] if labels.contains(&0) => {
                bail!(
                    "{op}: y_hat has shape {y_hat:?}, expected at least one label for each example"
                )
            }
            _ if y.dims() == dims => {}
            _ => bail!(
                "{op}: y has shape {:?}, expected {dims:?} for y_hat of shape {y_hat:?}",
                y.dims()
            ),
        }
        if y.dtype() != DType::U32 {
            let dtype = y.dtype().as_str();
            bail!("{op}: y is {dtype}, expected u32; convert it with to_dtype")
        }
        let batch = y.elem_count();
        let y = y.flatten_all()?;
        let labels = if y.device().is_cpu() {
            let labels = y.to_vec1::<u32>()?;
            if let Some(i) = labels.iter().position(|label| *label as usize >= classes) {
                let label = labels[i];
                let example = i * dims[0] / batch;
                bail!(
                    "{op}: label {label} of example {example} is too large, y_hat has {classes} classes"
                )
            }
            Tensor::from_vec(labels, batch, y.device())? // what was checked is what is read
        } else {
            y.contiguous()?.detach()
        };
        Ok(Self {
            batch,
            classes,
            labels,
        })
    }
}
