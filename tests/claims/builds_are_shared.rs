//! README's commands, and the lints, compile each dependency once: a dependency has the same features in all of them.
//! Otherwise cargo compiles it again, with all that use it.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::kit::root;

trials![programs_have_the_features_of_the_tests, lints_have_them_too];

/// The crates of a command, each with its version and features.
fn crates(selected: &[&str]) -> Result<BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "--prefix", "none"])
        .args(["--format", "{p} features: {f}"])
        .args(selected)
        .current_dir(root())
        .output()?;
    let listed = String::from_utf8(output.stdout)?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{said}");
    // a crate that is listed again ends in a sign
    let crates = listed.lines().map(|line| line.trim_end_matches(" (*)"));
    let crates: BTreeSet<String> = crates.map(str::to_owned).collect();
    ensure!(crates.len() > 100, "{selected:?}: {crates:?}");
    Ok(crates)
}

/// `cargo run -p scratch` or `-p lab`, then `cargo test`.
fn programs_have_the_features_of_the_tests() -> Result<()> {
    let tested = crates(&[])?;
    for program in ["scratch", "concise", "lab"] {
        let built = crates(&["--package", program, "--edges", "normal,build"])?;
        let again: Vec<&String> = built.difference(&tested).collect();
        ensure!(again.is_empty(), "{program} and `cargo test`: {again:#?}");
    }
    Ok(())
}

/// `cargo clippy --workspace --all-targets` after `cargo test`.
fn lints_have_them_too() -> Result<()> {
    let (tested, linted) = (crates(&[])?, crates(&["--workspace"])?);
    let differ: Vec<&String> = tested.symmetric_difference(&linted).collect();
    ensure!(differ.is_empty(), "{differ:#?}");
    Ok(())
}
