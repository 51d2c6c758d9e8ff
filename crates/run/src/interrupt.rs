//! Ctrl-C ends a run in order: the iterators over the data end, and so does everything that
//! loops over them. A second Ctrl-C ends the process at once.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use anyhow::Context;

use crate::say::{above_the_bar, remove_bar};

/// The exit status after Ctrl-C.
pub(crate) const INTERRUPTED_STATUS: u8 = 130;

// Statics, because signals come to the process.
/// The run ends in order: the iterators over the data end.
pub(crate) static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// Several processes train together, which have to stop at the same step: a signal is only a request.
static AGREES_FIRST: AtomicBool = AtomicBool::new(false);
/// There was one.
static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Whether Ctrl-C was pressed (or the process was asked to end) since the start.
///
/// ```
/// assert!(!run::interrupted());
/// ```
pub fn interrupted() -> bool {
    INTERRUPTED.load(SeqCst)
}

/// From here on Ctrl-C is only a request, until [`interrupt`]: the processes have to agree when. So is one that came
/// while this process waited for the others.
pub(crate) fn agree_first() {
    AGREES_FIRST.store(true, SeqCst);
    if INTERRUPTED.swap(false, SeqCst) {
        REQUESTED.store(true, SeqCst);
    }
}

/// Whether this process of several has been asked to end.
pub fn wants_to_end() -> bool {
    REQUESTED.load(SeqCst)
}

/// Ends the run in order, as Ctrl-C does in a process that is alone.
pub fn interrupt() {
    INTERRUPTED.store(true, SeqCst);
}

/// From here on Ctrl-C, SIGTERM and SIGHUP only set the flag, the first time. One that was ignored when the
/// program started stays ignored: so `nohup` asks for it, and `sh` for what it starts in the background.
pub(crate) fn catch() -> anyhow::Result<()> {
    static CAUGHT: AtomicBool = AtomicBool::new(false);
    match CAUGHT.swap(true, SeqCst) {
        true => Ok(()),
        false => on_signals().context("for Ctrl-C a thread could not be started"),
    }
}

#[cfg(unix)]
fn on_signals() -> std::io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};

    let ignored = ignored();
    let mut wanted = vec![SIGHUP, SIGINT, SIGTERM];
    wanted.retain(|signal| ignored & (1 << (signal - 1)) == 0);
    // a file that may grow no more is as a full disk: the write fails, and the process goes on
    signal_hook::flag::register(SIGXFSZ, std::sync::Arc::default())?;
    let mut signals = signal_hook::iterator::Signals::new(wanted)?;
    // a terminal that closes is told of twice, by the shell and by the system: that is not a second wish
    let serve = move || signals.forever().for_each(|s| asked_to_end(s != SIGHUP));
    let thread = std::thread::Builder::new().name("ctrl-c".into());
    thread.spawn(serve).map(drop)
}

/// The signals that this process was started to ignore, a bit each from signal 1. Only Linux tells without
/// `unsafe`; elsewhere none.
#[cfg(unix)]
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(not(unix))]
fn on_signals() -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(|| asked_to_end(true))
}

/// The first time the run ends in order; after that the process does, if it is to end `at_once`.
fn asked_to_end(at_once: bool) {
    let flag = match AGREES_FIRST.load(SeqCst) {
        true => &REQUESTED,
        false => &INTERRUPTED,
    };
    match flag.swap(true, SeqCst) {
        true if at_once => {
            remove_bar();
            std::process::exit(INTERRUPTED_STATUS.into());
        }
        true => return,
        false => (),
    }
    let word = "stopping after this step; press Ctrl-C again to stop at once";
    // the terminal has written ^C; with a bar that is gone
    above_the_bar(|drawn| match drawn {
        true => writeln!(std::io::stderr(), "{word}"),
        false => writeln!(std::io::stderr(), "\n{word}"),
    });
}
