//! The kinds of errors that a program may want to act on.
//!
//! Each kind is inside of candle's error, with its context in one line: `devices::errors` says why there is no second
//! `Result`.

use std::fmt;

use devices::{find, message, wrap};
use training::CheckpointError;

/// What this library and its closures return: candle's `Result`. So one `Result` serves networks, losses, data and
/// training loops, also where a trait of candle's prescribes it. [`Error`] tells its errors apart.
pub type Result<T> = candle_core::Result<T>;

/// The kinds of errors that a program may want to act on; each holds the error as a function returned it.
///
/// ```
/// use data_parallel::{Error, prelude::*};
///
/// # fn main() -> Result<()> {
/// let net = DataParallel::new(&devices(2)?, Initializer::Layers, 0, |vb| Linear::new(2, 3, vb))?;
/// let mut trainer = Trainer::new(&net, cross_entropy, AdamW::default());
/// let (x, y) = (Tensor::full(f32::NAN, (4, 2), &Device::Cpu)?, Tensor::zeros(4, DType::U32, &Device::Cpu)?);
/// match trainer.step(&x, &y).map_err(Error::from) {
///     Ok(step) => println!("loss {}", step.loss.mean()?),
///     Err(Error::StepRefused(why)) => println!("left out: {why}"), // x has the value NaN in example 0 …
///     Err(other) => return Err(other.into()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A step was not taken, and nothing was changed: training can go on with the next minibatch.
    #[error(transparent)]
    StepRefused(candle_core::Error),
    /// A loss is NaN or infinite, and its step was taken; or a step has made a parameter NaN or infinite. Each later step
    /// fails as well: go on from an earlier checkpoint.
    #[error(transparent)]
    Diverged(candle_core::Error),
    /// A replica or a process failed in a step, or did not come to it: this network trains no further. In several processes
    /// each later call of this process is this error as well.
    #[error(transparent)]
    NetworkFailed(candle_core::Error),
    /// Processes that train together have different settings or parameters.
    #[error(transparent)]
    Disagreement(candle_core::Error),
    /// The folder of a run cannot be used; `CheckpointError` says why.
    #[error(transparent)]
    Checkpoint(candle_core::Error),
    /// Any other: a value that cannot be used, an operation that failed, a file.
    #[error(transparent)]
    Other(candle_core::Error),
}

impl Error {
    /// True if an error is [`Disagreement`](Self::Disagreement).
    pub fn is_disagreement(error: &candle_core::Error) -> bool {
        Kind::Disagreement.is_of(error)
    }
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        match find::<OfKind>(&error).map(|of_kind| of_kind.kind) {
            Some(Kind::Refused) => Self::StepRefused(error),
            Some(Kind::Diverged) => Self::Diverged(error),
            Some(Kind::Failed) => Self::NetworkFailed(error),
            Some(Kind::Disagreement) => Self::Disagreement(error),
            None if find::<CheckpointError>(&error).is_some() => Self::Checkpoint(error),
            None => Self::Other(error),
        }
    }
}

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::StepRefused(error)
            | Error::Diverged(error)
            | Error::NetworkFailed(error)
            | Error::Disagreement(error)
            | Error::Checkpoint(error)
            | Error::Other(error) => error,
        }
    }
}

/// The kind of an error: what became of a failed step, or that the processes differ, which is an error in all of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Refused,
    Diverged,
    Failed,
    Disagreement,
}

impl Kind {
    /// The error as one of this kind; one that has a kind already keeps it.
    pub fn of(self, cause: candle_core::Error) -> candle_core::Error {
        if find::<OfKind>(&cause).is_some() {
            return cause;
        }
        wrap(OfKind { kind: self, cause })
    }

    /// True if an error is of this kind.
    pub fn is_of(self, error: &candle_core::Error) -> bool {
        find::<OfKind>(error).is_some_and(|of_kind| of_kind.kind == self)
    }

    /// An error of this kind that says only this.
    pub fn says(self, text: impl Into<String>) -> candle_core::Error {
        self.of(message(text))
    }
}

/// An error of a kind.
#[derive(Debug)]
struct OfKind {
    kind: Kind,
    cause: candle_core::Error,
}

impl fmt::Display for OfKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

impl std::error::Error for OfKind {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.source()
    }
}
