//! `gpu-pack`: builds the programs for a machine that may have no Rust, and puts them into a folder. They
//! load CUDA's libraries when they run, from wherever these are, and start without a driver too.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;

/// What `gpu-pack` can be told.
#[derive(Args, Debug)]
pub struct Options {
    /// Folder for the programs
    #[arg(long, value_name = "DIR", default_value = ".gpu")]
    out: PathBuf,
}

/// Builds and copies, without the symbols for a debugger.
///
/// # Errors
/// If something cannot be built; the CUDA toolkit is needed.
pub fn pack(options: &Options) -> Result<()> {
    fs::create_dir_all(&options.out)?;
    for (program, feature) in [("scratch", "cuda"), ("concise", "cuda"), ("xtask", "cuda")] {
        let args = [
            "build",
            "-p",
            program,
            "--bin",
            program,
            "--features",
            feature,
        ];
        build(&args, &options.out.join(program))?;
    }
    let tests = "test --no-run -p functional --test operations --features cuda";
    let tests: Vec<&str> = tests.split(' ').collect();
    build(&tests, &options.out.join("operations"))?;
    let out = options.out.display();
    println!(
        "on the machine with the GPU, in the project's folder: \
         {out}/xtask gpu-check --tests {out}/operations --data DIR"
    );
    Ok(())
}

/// Runs cargo, and copies the one program that it made.
fn build(args: &[&str], to: &Path) -> Result<()> {
    let (command, what) = args.split_first().context("no command")?;
    let output = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()))
        .arg(command)
        .args(["--release", "--message-format=json-render-diagnostics"])
        .args(what)
        .env("RUSTC_WRAPPER", env::current_exe()?)
        .env(WRAPS, "1")
        .env("CARGO_TARGET_DIR", target())
        .stderr(Stdio::inherit())
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

/// A target folder of these builds alone: other builds compile cudarc with other features.
fn target() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target.unwrap_or("target".into()).join("gpu-pack")
}

/// The environment variable that marks a call of this program in place of rustc.
const WRAPS: &str = "XTASK_WRAPS_RUSTC";

/// Whether this program was called in place of rustc.
pub fn wraps_rustc() -> bool {
    env::var_os(WRAPS).is_some()
}

/// Calls rustc with the arguments that it was to get. candle asks cudarc to link CUDA's libraries, and
/// cudarc does so or loads them by a feature that does not go together with candle's: so it is set here.
pub fn rustc() -> ExitCode {
    let mut args = env::args_os().skip(1);
    let Some(program) = args.next() else {
        return ExitCode::FAILURE;
    };
    let args: Vec<_> = args.collect();
    let mut rustc = Command::new(program);
    rustc.args(&args);
    if args
        .windows(2)
        .any(|pair| pair == ["--crate-name", "cudarc"])
    {
        rustc.args(["--cfg", "feature=\"dynamic-loading\""]);
    }
    match rustc.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// The path in a message of cargo's that tells of a program.
fn executable(line: &str) -> Option<String> {
    let (_, after) = line.split_once("\"executable\":\"")?;
    let (path, _) = after.split_once('"')?;
    Some(path.to_owned())
}
