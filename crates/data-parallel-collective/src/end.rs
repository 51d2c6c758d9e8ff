//! The last line of a process that must end at once. Its threads wait inside MPI or for a GPU, and would wait for ever:
//! no call of this crate can return the error, so it goes to stderr.

use std::io::Write;

/// Writes `error: LINE` to stderr, in one piece: mpirun prints lines of its own between two.
pub(crate) fn last_words(line: &str) {
    let line = format!("error: {line}\n");
    let _ = std::io::stderr().write_all(line.as_bytes()); // the process ends, also if this fails
}
