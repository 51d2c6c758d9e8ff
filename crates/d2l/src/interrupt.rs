//! Ctrl-C ends a run in order: the iterators over the data end, and so does everything that
//! loops over them. A second Ctrl-C ends the process at once.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::bar;

pub(crate) static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Whether Ctrl-C was pressed (or the process was asked to end) since the start.
///
/// ```
/// assert!(!d2l::interrupted());
/// ```
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Ctrl-C was pressed where several processes train together, which have to stop at the same step.
static WANTED: AtomicBool = AtomicBool::new(false);
static AGREES_FIRST: AtomicBool = AtomicBool::new(false);

/// From here on Ctrl-C is only a wish, until [`interrupt`]: the processes have to agree when.
pub(crate) fn agree_first() {
    AGREES_FIRST.store(true, Ordering::Relaxed);
}

/// Whether this process of several has been asked to end.
pub fn wants_to_end() -> bool {
    WANTED.load(Ordering::Relaxed)
}

/// Ends the run in order, as Ctrl-C does in a process that is alone.
pub fn interrupt() {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From here on Ctrl-C, SIGTERM and SIGHUP only set the flag, the first time.
pub(crate) fn catch() {
    let handler = || {
        let flag = match AGREES_FIRST.load(Ordering::Relaxed) {
            true => &WANTED,
            false => &INTERRUPTED,
        };
        if flag.swap(true, Ordering::Relaxed) {
            bar::remove();
            std::process::exit(crate::program::INTERRUPTED_STATUS.into());
        }
        let word = "ending after this minibatch; Ctrl-C again ends at once";
        // the terminal has written ^C; with a bar that is gone
        let _ = bar::above(|drawn| match drawn {
            true => writeln!(std::io::stderr(), "{word}"),
            false => writeln!(std::io::stderr(), "\n{word}"),
        });
    };
    // The one error is that a handler is there already; then its owner decides.
    let _ = ctrlc::set_handler(handler);
}
