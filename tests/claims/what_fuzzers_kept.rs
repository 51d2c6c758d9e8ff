//! Every input that the fuzzers of `fuzz/` found worth keeping is still read, or refused by name.

use std::fs;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use crate::fuzzed;
use crate::kit::{command, root};

trials![the_corpus_is_read];

/// A fuzzer's name, and what it calls.
type Target = (&'static str, fn(&[u8]));

const TARGETS: [Target; 4] = [
    ("idx", fuzzed::idx),
    ("weights", fuzzed::weights),
    ("checkpoint", fuzzed::checkpoint),
    ("arguments", fuzzed::arguments),
];

/// In a process of its own, because the command lines set what belongs to all of a process.
fn the_corpus_is_read() -> Result<()> {
    let output = command("corpus", "")?.output()?;
    let says = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = says.lines().last().unwrap_or_default();
    let all = output.status.success() && last == "all inputs are read";
    ensure!(all, "{last}\n{errors}");
    Ok(())
}

/// `claims --as corpus`: a panic says which input it was last.
pub fn replay() -> ExitCode {
    match TARGETS.into_iter().try_for_each(replay_one) {
        Ok(()) => {
            println!("all inputs are read");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn replay_one((target, function): Target) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let packed = root().join(format!("fuzz/corpus/{target}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(&packed).arg("-C").arg(folder.path());
    ensure!(tar.status().context("tar")?.success(), "{packed:?}");
    let mut inputs = 0;
    for entry in fs::read_dir(folder.path())? {
        let path = entry?.path();
        println!("{target} {}", path.display());
        function(&fs::read(&path)?);
        inputs += 1;
    }
    ensure!(inputs >= 100, "{target} has {inputs} inputs");
    Ok(())
}
