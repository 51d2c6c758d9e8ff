//! Open MPI's all-reduce, called from Python: a process for each replica, which `mpirun` starts. It is no dependency
//! of the project; if it is not installed, it is left out.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::measure::{OWNER, measure};
use super::report::size;
use crate::bench::machine::ask;
use crate::bench::peers::root;
use crate::bench::stats::{Summary, short};

/// Open MPI with mpi4py.
pub struct OpenMpi {
    /// Its name and version.
    name: String,
    python: PathBuf,
}

impl OpenMpi {
    /// `None` if a part of it is missing.
    pub fn find(python: &Path) -> Option<Self> {
        let version = ask("mpirun", &["--version"]);
        let modules = "import mpi4py, numpy; print(mpi4py.__version__)";
        let mpi4py = ask(&python.to_string_lossy(), &["-c", modules]);
        let is_there = version.contains("Open MPI") && mpi4py != "unknown";
        is_there.then(|| Self {
            name: format!(
                "{}, mpi4py {mpi4py}",
                version.replace("mpirun (Open MPI)", "Open MPI")
            ),
            python: python.to_owned(),
        })
    }

    /// The section of the report: our owner algorithm and Open MPI, alternating, for vectors of these lengths with so
    /// many calls.
    ///
    /// # Errors
    /// If one of them fails.
    pub fn markdown(&self, k: usize, lens: &[(usize, usize)], rounds: usize) -> Result<String> {
        let mut text = format!(
            "\n## {}\n\n{k} processes on {k} cores, alternating with the owner; the medians of the rounds.\n\n\
             | bytes | owner, µs | this, µs | this / owner | rounds |\n|--:|--:|--:|--:|--:|\n",
            self.name
        );
        for &(len, calls) in lens {
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for round in 1..=rounds {
                ours.push(measure(k, len, calls, &[OWNER])?[0].median);
                theirs.push(self.measure(k, len, calls)?.median);
                eprintln!("{}: {len} elements, round {round} of {rounds}", self.name);
            }
            let [ours, theirs] = [ours, theirs].map(|times| Summary::of(&times));
            let (bytes, ratio) = (size(len), short(theirs.median / ours.median));
            text += &format!("| {bytes} | {ours} | {theirs} | {ratio} | {rounds} |\n");
        }
        Ok(text)
    }

    /// The µs of the calls.
    fn measure(&self, k: usize, len: usize, calls: usize) -> Result<Summary> {
        let output = Command::new("mpirun")
            .args(["-n", &k.to_string(), "--bind-to", "none", "--oversubscribe"])
            .arg(&self.python)
            .arg(root().join("benches/openmpi_allreduce.py"))
            .args([len.to_string(), calls.to_string()])
            // Open MPI wants to be told twice that root may, as in a container
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .context("mpirun")?;
        ensure!(output.status.success(), "mpirun: {}", output.status);
        let text = String::from_utf8_lossy(&output.stdout);
        let times: Vec<f64> = text.lines().filter_map(|line| line.parse().ok()).collect();
        ensure!(times.len() == calls, "mpirun said {text:?}");
        Ok(Summary::of(&times))
    }
}
