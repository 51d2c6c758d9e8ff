//! The peers: none is a dependency of the project. The programs for candle as it is and for Burn are in a package
//! outside the workspace.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The project's folder.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// Fails unless this Python has PyTorch.
pub fn has_pytorch(python: &Path) -> Result<()> {
    let import = Command::new(python).args(["-c", "import torch"]).output();
    let works = import.is_ok_and(|output| output.status.success());
    ensure!(
        works,
        "{} has no PyTorch: `python3 -m venv DIR`, `DIR/bin/pip install torch numpy`, then `--python DIR/bin/python`; \
         without it: `--only ours --only candle --only burn --only losses`",
        python.display()
    );
    Ok(())
}

/// Builds a program of `benches/peers`, with its own feature alone.
///
/// # Errors
/// If it cannot be built; the message says how to do without it.
pub fn build(program: &str, feature: &str) -> Result<PathBuf> {
    let target = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = root().join(target.unwrap_or("target".into())).join("peers");
    eprintln!("building {feature} in {}", target.display());
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(["build", "--release", "--locked", "--quiet"]);
    cargo.args(["--bin", program, "--features", feature, "--manifest-path"]);
    cargo.arg(root().join("benches/peers/Cargo.toml"));
    cargo.arg("--target-dir").arg(&target);
    let how = format!("{feature} cannot be built; without it: name all others with --only");
    ensure!(cargo.status().context(how.clone())?.success(), how);
    let name = format!("{program}{}", env::consts::EXE_SUFFIX);
    Ok(target.join("release").join(name))
}
