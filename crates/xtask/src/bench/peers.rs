//! The peers: none is a dependency of the project. PyTorch is installed in a virtual environment under
//! `target/`. The programs for candle as it is and for Burn are in a package outside the workspace.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// The project's folder.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// Where the peers are built and installed.
fn folder() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    root().join(target.unwrap_or("target".into())).join("peers")
}

/// The given Python, or one that is installed, in which there is PyTorch.
///
/// # Errors
/// If there is none; the message says how to do without it.
pub fn pytorch(python: Option<&Path>) -> Result<PathBuf> {
    let python = match python {
        Some(python) => python.to_owned(),
        None => install().context(NO_PYTORCH)?,
    };
    let works = run(&python, &["-c", "import torch"]);
    works.with_context(|| format!("{} has no torch", python.display()))?;
    Ok(python)
}

const NO_PYTORCH: &str = "PyTorch cannot be installed. By hand: `python3 -m venv DIR` and \
    `DIR/bin/pip install torch numpy`, then give `--python DIR/bin/python`. Without it: \
    `--only ours --only candle --only burn --only losses`";

/// The Python of the virtual environment, which is made where there is none.
fn install() -> Result<PathBuf> {
    let venv = folder().join("venv");
    let bin = venv.join(if cfg!(windows) { "Scripts" } else { "bin" });
    let (python, done) = (bin.join("python"), venv.join("complete"));
    if !done.exists() {
        let place = venv.display();
        eprintln!("installing PyTorch into {place}; delete that folder to remove it");
        run(Path::new("python3"), &["-m", "venv", &place.to_string()])?;
        run(
            &python,
            &["-m", "pip", "install", "--quiet", "torch", "numpy"],
        )?;
        std::fs::write(done, "")?;
    }
    Ok(python)
}

/// Builds a program of `benches/peers`, with its own feature alone.
///
/// # Errors
/// If it cannot be built; the message says how to do without it.
pub fn build(program: &str, feature: &str) -> Result<PathBuf> {
    let manifest = root().join("benches/peers/Cargo.toml");
    eprintln!("building {feature} in {}", folder().display());
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(["build", "--release", "--locked", "--quiet"]);
    cargo.args(["--bin", program, "--features", feature]);
    cargo.arg("--manifest-path").arg(manifest);
    cargo.arg("--target-dir").arg(folder());
    let how = format!("{feature} cannot be built; without it: name all others with --only");
    ensure!(cargo.status().context(how.clone())?.success(), how);
    let name = format!("{program}{}", env::consts::EXE_SUFFIX);
    Ok(folder().join("release").join(name))
}

fn run(program: &Path, args: &[&str]) -> Result<()> {
    let shown = || format!("{} {}", program.display(), args.join(" "));
    let mut command = Command::new(program);
    let status = command.args(args).stdin(Stdio::null()).status();
    let status = status.with_context(shown)?;
    ensure!(status.success(), "{}: {status}", shown());
    Ok(())
}
