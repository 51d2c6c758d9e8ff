//! One process of several that train together. Only process 0 prints.

use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::bar;

/// One process of several that train together, each with as many replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its number, from 0; number 0 prints and writes.
    pub rank: usize,
    /// How many there are.
    pub of: usize,
    /// Its number among those of this machine.
    pub local_rank: usize,
    /// How many of them are on this machine.
    pub on_machine: usize,
}

impl Process {
    /// A process that trains by itself.
    pub const ALONE: Self = Self {
        rank: 0,
        of: 1,
        local_rank: 0,
        on_machine: 1,
    };

    /// Its part of the cores, where others use the same.
    pub(crate) fn share_of_cores(self) -> Option<usize> {
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        (self.on_machine > 1).then(|| (all / self.on_machine).max(1))
    }
}

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
