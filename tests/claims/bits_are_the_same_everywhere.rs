//! A run gives the same bits on every processor with a fused multiply-add, and on every system. `models.txt` has the SHA-256
//! of the models: those of processors with it, and those of the scalar code. `.ci/platforms` runs the same lines on emulated
//! processors.

use std::fs;

use anyhow::{Context, Result, ensure};
use data_parallel::devices::{InstructionSet, instruction_set};
use sha2::{Digest, Sha256};

use crate::kit::{command, ended, has, succeeds};

trials![
    models_have_the_recorded_bits,
    a_wrong_name_of_instructions_is_an_error
];

fn models_have_the_recorded_bits() -> Result<()> {
    let kind = match instruction_set() {
        InstructionSet::Scalar => "scalar",
        _ => "fused",
    };
    let mut wrong = Vec::new();
    for line in include_str!("models.txt").lines() {
        let [of, recorded, program, args] = parts(line)?;
        if of != kind {
            continue;
        }
        let folder = tempfile::tempdir()?;
        let out = folder.path().join("run");
        succeeds(program, &format!("{args} --out {}", out.display()))?;
        let model = fs::read(out.join("model.safetensors"))?;
        let sum: String = Sha256::digest(model)
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        if sum != recorded {
            wrong.push(format!("{kind} {sum} {program} {args}"));
        }
    }
    ensure!(wrong.is_empty(), "not in models.txt:\n{}", wrong.join("\n"));
    Ok(())
}

/// The kind of instructions, the checksum, the program, and its arguments.
fn parts(line: &str) -> Result<[&str; 4]> {
    let parts: Vec<&str> = line.splitn(4, ' ').collect();
    parts.try_into().ok().context("four parts in a line")
}

fn a_wrong_name_of_instructions_is_an_error() -> Result<()> {
    let mut scratch = command("scratch", "--gpus 2 --data synthetic")?;
    let output = scratch.env("DATA_PARALLEL_MAX_CPU_ISA", "sse9").output()?;
    let (status, _, said) = ended(output)?;
    ensure!(status == 2, "{status}: {said}");
    has(
        &said,
        "DATA_PARALLEL_MAX_CPU_ISA is \"sse9\"; here it can be: scalar",
    )
}
