//! A chapter's run, in a process of its own: what each cell printed.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Mark that the process prints before the line of a cell, where that cell begins.
pub const BEGIN: &str = "\u{1e}cell ";

/// Time that a chapter may take: several times what it takes on four cores, before it counts as hanging.
pub const LIMIT: Duration = Duration::from_secs(300);

/// The exit status of a process that ends because its time is over, as `timeout` has it.
pub const OVERTIME: i32 = 124;

/// Runs a chapter by `program run CHAPTER`, in the folder where its page lies: what each cell printed to stdout,
/// and the line where the cell begins.
///
/// # Errors
/// If a cell fails, panics or goes on beyond `limit`: the message has its line, and what the process said.
pub fn run(
    program: &Path,
    folder: &Path,
    chapter: &str,
    limit: Duration,
) -> Result<Vec<(usize, String)>> {
    let output = Command::new(program)
        .args(["run", chapter, "--limit", &limit.as_secs().to_string()])
        .current_dir(folder)
        .env("NO_COLOR", "1")
        .env("RUST_BACKTRACE", "0")
        .env_remove("FASHION_MNIST_DIR") // or a cell would say something else where there is one
        .stdin(Stdio::null())
        .output()
        .with_context(|| program.display().to_string())?;
    let cells = cells(&String::from_utf8_lossy(&output.stdout));
    let place = format!("{chapter}.md:{}", cells.last().map_or(1, |(line, _)| *line));
    if output.status.code() == Some(OVERTIME) {
        bail!("{place}: this cell was at work when the chapter's {limit:?} were over");
    }
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{place}: this cell fails\n{}", stderr.trim_end());
    }
    Ok(cells)
}

/// Output of each cell, by the marks.
fn cells(stdout: &str) -> Vec<(usize, String)> {
    let cell = |part: &str| {
        let (line, text) = part.split_once('\n')?;
        Some((line.parse().ok()?, text.into()))
    };
    stdout.split(BEGIN).skip(1).filter_map(cell).collect()
}
