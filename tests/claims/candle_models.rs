//! Models of candle-transformers train without a change of their code, if candle is patched: the recipe of the page "You
//! have a network in candle".

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;

use crate::kit::root;

/// It builds candle-transformers, which takes minutes, so it waits until it is asked for.
pub fn trials() -> Vec<Trial> {
    let asked = std::env::var_os("CANDLE_MODELS").is_some();
    listed!(asked, "CANDLE_MODELS=1", two_models_train_as_they_are)
}

/// In a folder elsewhere, with the lines that the page has.
fn two_models_train_as_they_are() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let elsewhere = folder.path().join("candle_models");
    let exe = std::env::current_exe()?;
    let target = exe.ancestors().nth(3).context("no target folder")?;
    let succeeds = |command: &mut Command| -> Result<()> {
        let output = command.env("CARGO_TARGET_DIR", target).output()?;
        let said = [output.stdout, output.stderr].concat();
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&said)
        );
        Ok(())
    };
    let mut apply = Command::new(root().join("tests/candle_patches/apply"));
    succeeds(apply.arg(folder.path().join("candle")))?;

    let from = root().join("tests/candle_models");
    fs::create_dir_all(elsewhere.join("src"))?;
    fs::copy(from.join("src/main.rs"), elsewhere.join("src/main.rs"))?;
    let manifest = fs::read_to_string(from.join("Cargo.toml"))?;
    let library = root().join("crates/data-parallel");
    let path = library.to_str().context("no text")?.replace('\\', "/");
    let manifest = manifest.replace("../../crates/data-parallel", &path);
    fs::write(elsewhere.join("Cargo.toml"), manifest)?;
    let mut run = Command::new(env!("CARGO"));
    succeeds(run.args(["run", "--release"]).current_dir(&elsewhere))
}
