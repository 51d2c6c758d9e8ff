//! Errors of what the user named.

use std::fmt;

/// An error that the user can mend: what was named on the command line cannot be used.
#[derive(Debug)]
pub struct BadInput(anyhow::Error);

impl BadInput {
    /// Marks `error` as one of what was named.
    pub fn from(error: impl Into<anyhow::Error>) -> Self {
        Self(error.into())
    }
}

impl fmt::Display for BadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.0)
    }
}

impl std::error::Error for BadInput {}
