//! Lines for the user, and paths in them.

use std::io::Write;
use std::path::Path;

/// Writes a line to stderr. With stderr closed the line is lost, and the run goes on.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A path as it is written on a command line of this system.
///
/// ```
/// assert_eq!(dataset::quoted("runs/lr-0.1".as_ref()), "runs/lr-0.1");
/// ```
pub fn quoted(path: &Path) -> String {
    let path = path.to_string_lossy();
    if cfg!(windows) {
        return quoted_for_windows(&path);
    }
    match shlex::try_quote(&path) {
        Ok(quoted) => quoted.into_owned(),
        Err(_) => path.into_owned(), // it has a zero byte, which no path has
    }
}

/// As cmd and PowerShell read it, if it has no `%`, `$` or backtick: a backslash stands for itself, except before the last
/// quotation mark. A path has no
/// quotation marks there.
fn quoted_for_windows(path: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "\\/:._-+".contains(c);
    if !path.is_empty() && path.chars().all(is_plain) {
        return path.to_owned();
    }
    let last = if path.ends_with('\\') { "\\" } else { "" };
    format!("\"{path}{last}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(windows))]
    #[test]
    fn a_path_can_be_copied_to_a_shell() {
        for (path, says) in [
            ("runs/lr-0.1", "runs/lr-0.1"),
            ("my runs/a$b", "'my runs/a$b'"),
            ("it's", "\"it's\""),
        ] {
            assert_eq!(quoted(Path::new(path)), says);
        }
    }

    #[test]
    fn a_path_of_windows_can_be_copied_to_its_shells() {
        for (path, says) in [
            (r"C:\Users\Zoë\run-1", r"C:\Users\Zoë\run-1"),
            (r"D:\my runs\1", r#""D:\my runs\1""#),
            (r"D:\my runs\", r#""D:\my runs\\""#),
            (r"it's\a&b", r#""it's\a&b""#),
        ] {
            assert_eq!(quoted_for_windows(path), says);
        }
    }
}
