//! The lines that a run prints. Of several processes only process 0 prints.

use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::bar;

/// Whether this process prints nothing.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Switches the output of this process off or on.
pub(crate) fn set_quiet(quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
}

pub(crate) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Prints a line; of several processes only process 0 does. A closed pipe (`… | head`) is no error.
pub fn say(line: fmt::Arguments<'_>) {
    if !is_quiet() {
        let _ = bar::above(|_| writeln!(std::io::stdout(), "{line}"));
    }
}

/// Prints a line of something that went wrong and does not end the run.
pub(crate) fn warn(line: fmt::Arguments<'_>) {
    if !is_quiet() {
        let _ = bar::above(|_| writeln!(std::io::stderr(), "warning: {line}"));
    }
}
