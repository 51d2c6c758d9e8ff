//! The peers: PyTorch and Open MPI, which are no dependencies of the project.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

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
         without it: `--only ours --only losses`",
        python.display()
    );
    Ok(())
}
