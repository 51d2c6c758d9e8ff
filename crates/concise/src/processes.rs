//! The processes of a run: each joins the others, and all end together.

use std::io::Write;
use std::sync::Arc;

use anyhow::Result;
use data_parallel::{Error, Processes};
use run::BadInput;

use crate::options::Options;

/// Joins the processes of the run, and calls `train` in this one. If it fails in one of several, all end: the others wait
/// for this one.
pub(crate) fn in_processes<T>(
    options: &Options,
    train: impl FnOnce(Arc<Processes>) -> Result<T>,
) -> Result<T> {
    options.check().map_err(BadInput::from)?;
    let processes = Arc::new(options.processes()?);
    let result = train(processes.clone()).map_err(as_bad_input);
    let processes = Arc::into_inner(processes).expect("the network was dropped");
    let alone = processes.are_one();
    let rank = processes.rank();
    let ended = result.and_then(|trained| {
        processes.finish()?;
        Ok(trained)
    });
    match ended {
        Err(error) if !alone => {
            // one write: mpirun prints lines of its own between two
            let line = format!("error: process {rank}: {error:#}\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            Processes::abort(if error.is::<BadInput>() { 2 } else { 1 })
        }
        ended => ended,
    }
}

/// The error of processes that have different settings or parameters is one of their options, whenever it comes.
fn as_bad_input(error: anyhow::Error) -> anyhow::Error {
    let of_candle = error.downcast_ref::<candle_core::Error>();
    if of_candle.is_some_and(Error::is_disagreement) {
        BadInput::from(error).into()
    } else {
        error
    }
}
