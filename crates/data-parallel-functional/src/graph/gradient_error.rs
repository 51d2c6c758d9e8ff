//! The error of gradients that were compared.

use candle_core::Error;
use std::fmt;

/// The reason for which the gradients of a function did not pass [`check_gradients`](crate::check_gradients).
#[derive(Debug)]
pub enum GradientError {
    /// Two derivatives in one direction differ.
    Wrong {
        /// Such as "input 0 of shape [2, 3]".
        of: String,
        /// By candle's gradient; none where candle computes no gradient.
        gradient: Option<f64>,
        /// By a finite difference.
        difference: f64,
    },
    /// The backward pass is an error.
    Backward(Error),
    /// The function, or one of its inputs, cannot be checked.
    Failed(Error),
    /// The function gives no number, or another one each time.
    Incomparable(&'static str),
}

impl fmt::Display for GradientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wrong {
                of,
                gradient: None,
                difference,
            } => write!(
                f,
                "the gradient of {of} is missing: a finite difference along one direction is {difference:.4}"
            ),
            Self::Wrong {
                of,
                gradient: Some(gradient),
                difference,
            } => {
                let times = gradient / difference;
                write!(
                    f,
                    "the gradient of {of} is wrong: along one direction candle's is {gradient:.4}, and a \
                     finite difference {difference:.4} ({times:.2} times)"
                )
            }
            Self::Backward(error) => write!(f, "the backward pass failed: {error}"),
            Self::Failed(error) => write!(f, "{error}"),
            Self::Incomparable(why) => write!(f, "the function {why}: it cannot be compared"),
        }
    }
}

impl std::error::Error for GradientError {}

impl From<Error> for GradientError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<GradientError> for Error {
    fn from(error: GradientError) -> Self {
        match error {
            GradientError::Failed(error) => error,
            other => Error::Msg(other.to_string()),
        }
    }
}
