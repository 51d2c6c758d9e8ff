//! The loss of classification: its sizes, and the labels.

use super::args;
use candle_core::{DType, Result, Tensor, bail};

/// The cross-entropy of each example: logits (B, C) and labels (B,).
#[derive(Clone)]
pub(crate) struct CrossEntropy {
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
        let [batch, classes] = match *y_hat {
            [batch, classes] => [batch, classes],
            _ => bail!("{op}: y_hat has shape {y_hat:?}, expected (B, C)"),
        };
        if y.dtype() != DType::U32 {
            bail!(
                "{op}: y is {}, expected u32; convert it with to_dtype",
                y.dtype().as_str()
            )
        }
        args::vector(op, "y", y.dims(), batch, "examples of y_hat")?;
        let labels = match y.device().is_cpu() {
            true => {
                let labels = y.to_vec1::<u32>()?;
                if let Some(i) = labels.iter().position(|label| *label as usize >= classes) {
                    bail!(
                        "{op}: label {} of example {i} is too large, y_hat has {classes} classes",
                        labels[i]
                    )
                }
                Tensor::from_vec(labels, batch, y.device())? // what was checked is what is read
            }
            false => y.contiguous()?.detach(),
        };
        Ok(Self {
            batch,
            classes,
            labels,
        })
    }
}
