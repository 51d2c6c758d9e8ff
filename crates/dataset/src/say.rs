//! Lines for the user.

use std::io::Write;

/// Writes a line to stderr. With stderr closed the line is lost, and the run goes on.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
