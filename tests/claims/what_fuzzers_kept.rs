//! Every input that the fuzzers of `fuzz/` found worth keeping is still read, or refused by name.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::fuzzed;
use crate::kit::{comes_to_its_end, root};

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
    comes_to_its_end("corpus")
}

/// `claims --as corpus`: a panic says which input it was last.
pub fn replay() -> Result<()> {
    TARGETS.into_iter().try_for_each(replay_one)?;
    damaged_checkpoints()
}

/// A checkpoint of today's format, of which one byte is another one, and whose checksum is right all the same.
fn damaged_checkpoints() -> Result<()> {
    let whole = fuzzed::checkpoint_of_a_run()?;
    ensure!(fuzzed::resumed(&whole), "the run does not go on");
    let places = d2l::uniform(&mut d2l::rng(0), 0.0, 1.0, (300, 2))?.to_vec2::<f32>()?;
    for (i, place) in places.iter().enumerate() {
        println!("damaged checkpoint {i}");
        let mut bytes = whole.clone();
        let at = (place[0] * bytes.len() as f32) as usize;
        if i % 10 == 0 {
            bytes.truncate(at);
        } else {
            bytes[at] = b' ' + (place[1] * 95.0) as u8;
        }
        fuzzed::checkpoint(&bytes);
    }
    Ok(())
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
