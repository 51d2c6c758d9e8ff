//! What a minibatch counts in the mean of a step.

use candle_core::{DType, Result, Tensor};
use devices::{Context, ensure, or_panic};

use crate::batch_tensors::BatchTensors;

/// What inputs and targets count.
pub(crate) type CountOf = dyn Fn(&[Tensor], &[Tensor]) -> Result<f64> + Send + Sync;

/// How much a minibatch counts in the mean of its step, as `count` says.
///
/// # Errors
/// If it is no number that can be added to others: NaN, infinite or negative. A panic becomes an error.
pub(crate) fn checked(count: &CountOf, data: &BatchTensors) -> Result<f64> {
    let counted = or_panic(|| count(&data.x, &data.y)).context("mean_over")?;
    ensure!(
        is_count(counted),
        "mean_over gives {counted}; expected a finite number, 0 or more. No step was taken"
    );
    Ok(counted)
}

/// True if it can be added to other counts.
fn is_count(number: f64) -> bool {
    number.is_finite() && number >= 0.0
}

/// What [`Trainer::mean_over`](crate::Trainer::mean_over) divides by: a number, or a tensor, whose elements are added in f64.
/// A mask of u8 is such a tensor; candle would add it in u8, where 255 + 1 is 0.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no count of `Trainer::mean_over`",
    note = "return a tensor such as a mask, `Ok(y[1].clone())`, which is summed in f64",
    note = "or a number of type f32, f64, u32 or usize"
)]
pub trait Count {
    /// As a number.
    ///
    /// # Errors
    /// If a device fails.
    fn count(&self) -> Result<f64>;
}

impl Count for Tensor {
    fn count(&self) -> Result<f64> {
        let counts: Vec<f64> = self.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?;
        // of each, because a sum of others may have any sign, and another one in each process
        if let Some(count) = counts.iter().find(|count| !is_count(**count)) {
            return Ok(*count);
        }
        Ok(counts.iter().sum())
    }
}

macro_rules! count_numbers {
    ($($number:ty)*) => {$(
        impl Count for $number {
            fn count(&self) -> Result<f64> {
                Ok(*self as f64)
            }
        }
    )*};
}
count_numbers!(f32 f64 u32 usize);
