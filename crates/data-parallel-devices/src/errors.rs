//! Errors of the library: each is a [`candle_core::Error`], so that one `Result` serves networks, losses and training
//! loops. It may hold an error of another type, and say in which context it came.
//!
//! candle's `Result` is the only one: the library, its closures and candle's traits return it, so a program needs no
//! other. An error type of its own in the signatures would be a second `Result`. `impl Module` prescribes candle's.
//! And Rust cannot infer the error type of a closure that ends in `Ok(…)` if it may be either.
//! `data_parallel::Error::from` tells the kinds apart.

use std::error::Error as StdError;
use std::fmt::{self, Display};
use std::io;

use candle_core::{Error, Result};

/// An error of candle's type that holds `error`, which [`find`] finds there.
///
/// ```
/// use data_parallel_devices::Panicked;
/// let error = data_parallel_devices::wrap(Panicked("no memory".into())); // of another type
/// assert_eq!(error.to_string(), "it panicked: no memory");
/// assert!(data_parallel_devices::find::<Panicked>(&error).is_some());
/// ```
pub fn wrap(error: impl StdError + Send + Sync + 'static) -> Error {
    // the one variant whose content can be asked for its type, and that says no more than its content
    Error::Io(io::Error::other(error))
}

/// The error of type `E` that `error` holds, also within contexts.
pub fn find<E: StdError + 'static>(error: &Error) -> Option<&E> {
    match cause(error) {
        Error::Io(io) => io.get_ref()?.downcast_ref(),
        Error::WrappedContext { wrapped, .. } => wrapped.downcast_ref(),
        _ => None,
    }
}

/// The kind of the `std::io::Error` in `error`, also within contexts.
pub fn io_kind(error: &Error) -> Option<io::ErrorKind> {
    match cause(error) {
        Error::Io(io) => Some(io.kind()),
        _ => None,
    }
}

/// The error behind all contexts, candle's and ours.
fn cause(error: &Error) -> &Error {
    let inner = match error {
        Error::WithBacktrace { inner, .. }
        | Error::Context { inner, .. }
        | Error::WithPath { inner, .. } => Some(&**inner),
        Error::WrappedContext { wrapped, .. } => wrapped.downcast_ref(),
        Error::Io(io) => {
            let held = io.get_ref().and_then(|held| held.downcast_ref());
            held.map(|within: &InContext| &within.cause)
        }
        _ => None,
    };
    inner.map_or(error, cause)
}

/// An error that says only this.
pub fn message(text: impl Into<String>) -> Error {
    Error::Msg(text.into())
}

/// The error without a backtrace: if RUST_BACKTRACE is set, candle puts one into the text of each error.
pub fn without_backtrace(error: Error) -> Error {
    match error {
        Error::WithBacktrace { inner, .. } => without_backtrace(*inner),
        other => other,
    }
}

/// An error, and the action during which it came.
#[derive(Debug)]
struct InContext {
    context: String,
    cause: Error,
}

impl Display for InContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.context, self.cause)
    }
}

impl StdError for InContext {
    /// That of the cause, whose own text is in this one's.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.source()
    }
}

/// Says in which context an error came, in one line: `context: cause`. candle's own `Context` takes a line for each.
///
/// ```
/// use data_parallel_devices::Context;
///
/// let missing = std::fs::File::open("/no/such/file").context("cannot read the labels");
/// assert!(missing.unwrap_err().to_string().starts_with("cannot read the labels: No such file"));
/// assert_eq!(None::<u8>.context("there is no replica").unwrap_err().to_string(), "there is no replica");
/// ```
pub trait Context<T> {
    /// Puts `context` before the error.
    ///
    /// # Errors
    /// That of `self` in its context; where there is none but a value is missing, the context itself.
    fn context(self, context: impl Display) -> Result<T>;

    /// Like [`context`](Self::context), with a text that is made only where it is needed.
    ///
    /// # Errors
    /// As there.
    fn with_context<C: Display>(self, context: impl FnOnce() -> C) -> Result<T>;
}

impl<T, E: Into<Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, context: impl Display) -> Result<T> {
        self.with_context(|| context)
    }

    fn with_context<C: Display>(self, context: impl FnOnce() -> C) -> Result<T> {
        self.map_err(|error| {
            wrap(InContext {
                context: context().to_string(),
                cause: without_backtrace(error.into()),
            })
        })
    }
}

impl<T> Context<T> for Option<T> {
    fn context(self, context: impl Display) -> Result<T> {
        self.with_context(|| context)
    }

    fn with_context<C: Display>(self, context: impl FnOnce() -> C) -> Result<T> {
        self.ok_or_else(|| message(context().to_string()))
    }
}

/// Returns an error with this message. candle's own `bail` adds a backtrace to the text where RUST_BACKTRACE is set.
#[macro_export]
macro_rules! bail {
    ($($text:tt)*) => {
        return Err($crate::message(format!($($text)*)))
    };
}

/// Returns an error with this message unless the condition is true.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($text:tt)*) => {
        if !$condition {
            return Err($crate::message(format!($($text)*)));
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::panics::Panicked;

    #[test]
    fn what_an_error_holds_is_found_within_contexts_and_said_once() {
        let failed: std::result::Result<(), _> = Err(Panicked("no memory".into()));
        let failed = failed.context("replica 1").context("step 3").unwrap_err();
        assert_eq!(
            failed.to_string(),
            "step 3: replica 1: it panicked: no memory"
        );
        assert_eq!(
            find::<Panicked>(&failed).map(|panicked| &*panicked.0),
            Some("no memory")
        );
        assert!(find::<fmt::Error>(&failed).is_none());
        let failed = candle_core::Context::context(Err::<(), _>(failed), "candle's").unwrap_err();
        assert!(find::<Panicked>(&failed).is_some());
        // with its sources, as programs print it
        assert!(StdError::source(&failed).is_none());

        let full: std::result::Result<(), _> = Err(io::Error::from(io::ErrorKind::StorageFull));
        let full = full.context("cannot write model.safetensors").unwrap_err();
        assert_eq!(io_kind(&full), Some(io::ErrorKind::StorageFull));
    }
}
