//! Why a folder of checkpoints cannot be used.

use std::path::PathBuf;

use devices::wrap;

/// Why the folder of a run cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// Another run writes there.
    #[error("another run is writing to {}; name another folder, or wait for its end", .0.display())]
    InUse(PathBuf),
    /// It has another name now, or is gone.
    #[error(
        "the folder {} was moved, removed or replaced during the run; nothing more was written. If you moved it, go on \
         with its new name", .0.display()
    )]
    Moved(PathBuf),
    /// Checkpoints are there, and none is whole; the text names each.
    #[error("{0}")]
    NoneIsWhole(String),
    /// A checkpoint is whole, and of a format that this version does not read.
    #[error("{0}")]
    OtherFormat(String),
    /// A checkpoint is there of a run with other settings, of which the text names the first, or of another network.
    #[error("{0}")]
    OtherRun(String),
    /// The first of several processes has the error, and this is another one.
    #[error("process 0: {0}")]
    InFirstProcess(String),
}

impl From<CheckpointError> for candle_core::Error {
    /// [`devices::find`] finds it again.
    fn from(error: CheckpointError) -> Self {
        wrap(error)
    }
}
