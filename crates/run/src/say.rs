//! The lines that a run prints, above the bar where there is one. Of several processes only process 0 prints.

use std::fmt;
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use devices::lock;
use indicatif::{ProgressBar, WeakProgressBar};

// Statics, because a process has one terminal, and the thread that waits for signals prints as well.
/// This process prints nothing.
static QUIET: AtomicBool = AtomicBool::new(false);
/// The bar on the terminal, which is hidden while a line is printed.
static BAR: Mutex<Option<WeakProgressBar>> = Mutex::new(None);

/// Switches the output of this process off or on.
pub(crate) fn set_quiet(quiet: bool) {
    QUIET.store(quiet, SeqCst);
}

pub(crate) fn is_quiet() -> bool {
    QUIET.load(SeqCst)
}

/// Lines are printed above this bar from now on.
pub(crate) fn set_bar(bar: &ProgressBar) {
    *lock(&BAR) = Some(bar.downgrade());
}

/// Takes the bar away, before the process ends in the middle of a run.
pub(crate) fn remove_bar() {
    if let Some(bar) = bar() {
        bar.finish_and_clear();
    }
}

fn bar() -> Option<ProgressBar> {
    lock(&BAR).as_ref().and_then(WeakProgressBar::upgrade)
}

/// Prints above the bar where there is one; whether one is drawn is the argument of `print`.
pub(crate) fn above_the_bar(print: impl FnOnce(bool) -> std::io::Result<()>) {
    // a closed pipe (`… | head`) is no error
    let _ = match bar() {
        Some(bar) => {
            let drawn = !bar.is_finished(); // which waits while the bar is hidden
            bar.suspend(|| print(drawn))
        }
        None => print(false),
    };
}

/// Prints a line; of several processes only process 0 does. A closed pipe (`… | head`) is no error.
pub fn say(line: fmt::Arguments<'_>) {
    if !is_quiet() {
        above_the_bar(|_| writeln!(std::io::stdout(), "{line}"));
    }
}

/// Prints a line of something that went wrong and does not end the run.
pub fn warn(line: fmt::Arguments<'_>) {
    if !is_quiet() {
        let line = one_line(line);
        above_the_bar(|_| writeln!(std::io::stderr(), "warning: {line}"));
    }
}

/// Prints a line to stderr that says how far the run is.
pub(crate) fn tell(line: &str) {
    // one write: mpirun prints lines of its own between two
    above_the_bar(|_| std::io::stderr().write_all(format!("{line}\n").as_bytes()));
}

/// The text in one line, though the name of a file has several.
pub(crate) fn one_line(text: fmt::Arguments<'_>) -> String {
    let text = text.to_string();
    let shown = text.chars().map(|c| {
        if c.is_control() {
            c.escape_default().to_string()
        } else {
            c.to_string()
        }
    });
    shown.collect()
}
