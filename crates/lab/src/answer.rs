//! An answer is compiled with its check by cargo, as the binary `answer` of this crate, and runs as a process of its own.
//! So it may hang or crash.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::exercise::Exercise;
use crate::judge::VERDICT;

/// Time that an answer may run.
const LIMIT: Duration = Duration::from_secs(20);
const ENDLESS: &str = "Your code did not end after 20 seconds. Is there an endless loop?";
/// Number of bytes that are kept of what it prints, of the beginning and of the end.
const MOST: u64 = 1 << 20;

/// Outcome of an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is right.
    Right,
    /// It is wrong; what the check says.
    Wrong(String),
    /// It does not compile; what the compiler says.
    NotCompiled(String),
}

/// The variable with the file that the schedule of a puzzle is written to.
pub(crate) const EXPORT: &str = "LAB_EXPORT";

/// Compiles an answer with its check, and runs both. The schedule of a puzzle is written to the file `export` as JSON.
///
/// # Errors
/// If cargo cannot be started.
pub fn outcome(exercise: &Exercise, answer: &Path, export: Option<&Path>) -> Result<Outcome> {
    let program = match compile(exercise, answer)? {
        Ok(program) => program,
        Err(said) => return Ok(Outcome::NotCompiled(said)),
    };
    let mut child = Command::new(&program)
        .envs(export.map(|file| (EXPORT, file)))
        .stdout(Stdio::piped())
        .spawn()
        .context("the answer")?;
    let stdout = child.stdout.take().context("no output")?;
    let reader = thread::spawn(move || read_ends(stdout));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if start.elapsed() > LIMIT {
            child.kill()?;
            child.wait()?;
            break None;
        }
        thread::sleep(Duration::from_millis(5));
    };
    let said = reader.join().expect("the reader does not panic")?;
    let said = String::from_utf8_lossy(&said);
    let (printed, verdict) = match (said.rsplit_once(VERDICT), status) {
        (Some((printed, verdict)), Some(_)) => (printed, verdict.to_owned()),
        (_, Some(status)) => (&*said, format!("Your code ended the process: {status}.")),
        (_, None) => (&*said, ENDLESS.to_owned()),
    };
    if !printed.is_empty() {
        let shown = printed.lines().take(20).map(|line| format!("  {line}\n"));
        let shown: String = shown.collect();
        let _ = write!(std::io::stderr(), "Your code printed:\n{shown}");
    }
    Ok(if verdict.is_empty() {
        Outcome::Right
    } else {
        Outcome::Wrong(verdict)
    })
}

/// The first and the last bytes of what an answer prints: the verdict comes last, however much comes before.
fn read_ends(mut stdout: impl Read) -> std::io::Result<Vec<u8>> {
    let mut said = Vec::new();
    let mut rest = Vec::new();
    stdout.by_ref().take(MOST).read_to_end(&mut said)?;
    while stdout.by_ref().take(MOST).read_to_end(&mut rest)? > 0 {
        rest.drain(..rest.len().saturating_sub(MOST as usize));
    }
    said.append(&mut rest);
    Ok(said)
}

/// Compiles an answer with its check; returns the program, or what the compiler says.
fn compile(exercise: &Exercise, answer: &Path) -> Result<Result<PathBuf, String>> {
    let checks = Path::new(env!("CARGO_MANIFEST_DIR")).join("checks");
    let check = checks.join(exercise.name).with_extension("rs");
    build(
        "answer",
        [
            ("LAB_ANSWER".to_owned(), answer.to_owned()),
            ("LAB_CHECK".to_owned(), check),
        ],
    )
}

/// The program that trains with these answers to exercises 1 to 5, or what the compiler says.
///
/// # Errors
/// If cargo cannot be started.
pub fn training(answers: &[PathBuf]) -> Result<Result<PathBuf, String>> {
    let numbered = (1..).zip(answers);
    build(
        "train",
        numbered.map(|(i, answer)| (format!("LAB_{i}"), answer.clone())),
    )
}

/// Compiles a program of this crate that includes the files of some variables.
fn build(
    program: &str,
    files: impl IntoIterator<Item = (String, PathBuf)>,
) -> Result<Result<PathBuf, String>> {
    let is_colored = console::colors_enabled_stderr();
    let color = if is_colored { "always" } else { "never" };
    let is_debug = cfg!(debug_assertions);
    let profile = if is_debug { "dev" } else { "release" };
    let output = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", "lab", "--bin", program])
        .args(["--features", "answer", "--profile", profile])
        .args(["--color", color])
        .args(["--message-format", "json-render-diagnostics"])
        .envs(files)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .context("cargo")?;
    if !output.status.success() {
        return Ok(Err(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let program = executable(&String::from_utf8_lossy(&output.stdout));
    Ok(Ok(program.context("cargo named no program")?))
}

/// The program that cargo has built: it prints a line of JSON for each artifact.
///
/// ```
/// let line = r#"{"reason":"compiler-artifact","executable":"C:\\target\\debug\\answer.exe"}"#;
/// let program = lab::answer::executable(line);
/// assert_eq!(program, Some(r"C:\target\debug\answer.exe".into()));
/// ```
pub fn executable(messages: &str) -> Option<PathBuf> {
    #[derive(Deserialize)]
    struct Message {
        executable: Option<PathBuf>,
    }

    let mut lines = messages.lines().rev();
    lines.find_map(|line| serde_json::from_str::<Message>(line).ok()?.executable)
}
