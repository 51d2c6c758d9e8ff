//! `gpu-pack`: builds what `gpu-check` needs on a machine without Rust, and puts it into a folder.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

/// What `gpu-pack` can be told.
#[derive(Args, Debug)]
pub struct Options {
    /// Where it goes
    #[arg(long, value_name = "DIR", default_value = ".gpu")]
    out: PathBuf,
}

/// Builds and copies, without the symbols for a debugger.
///
/// # Errors
/// If something cannot be built; the CUDA toolkit is needed.
pub fn pack(options: &Options) -> Result<()> {
    fs::create_dir_all(&options.out)?;
    build(
        &["build", "-p", "xtask", "--bin", "xtask"],
        &options.out.join("xtask"),
    )?;
    let tests = [
        "test",
        "--no-run",
        "-p",
        "functional",
        "--test",
        "operations",
    ];
    build(&tests, &options.out.join("operations"))?;
    let out = options.out.display();
    println!(
        "there: {out}/xtask gpu-check --tests {out}/operations --data DIR, in the project's folder"
    );
    Ok(())
}

/// Runs cargo, and copies the one program that it made.
fn build(args: &[&str], to: &Path) -> Result<()> {
    let (command, what) = args.split_first().context("no command")?;
    let output = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()))
        .arg(command)
        .args([
            "--release",
            "--features",
            "cuda",
            "--message-format=json-render-diagnostics",
        ])
        .args(what)
        .stderr(std::process::Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "{what:?} cannot be built");
    let said = String::from_utf8(output.stdout)?;
    let program = said.lines().rev().find_map(executable);
    let program = program.context("cargo made no program")?;
    let _ = fs::remove_file(to); // it may be running
    let strip = Command::new("strip")
        .arg("-o")
        .arg(to)
        .arg(&program)
        .status();
    if !strip.is_ok_and(|status| status.success()) {
        fs::copy(&program, to).with_context(|| program.clone())?;
    }
    Ok(())
}

/// The path in a message of cargo's that tells of a program.
fn executable(line: &str) -> Option<String> {
    let (_, after) = line.split_once("\"executable\":\"")?;
    let (path, _) = after.split_once('"')?;
    Some(path.to_owned())
}
