//! The last line of a process that must end at once. Its threads wait inside MPI or for a GPU, and would wait for ever:
//! no call of this crate can return the error, so it goes to stderr.

use std::io::Write;

/// Writes `error: LINE` to stderr.
pub(crate) fn last_words(line: &str) {
    let _ = writeln!(std::io::stderr(), "error: {line}"); // the process ends, also if this fails
}
