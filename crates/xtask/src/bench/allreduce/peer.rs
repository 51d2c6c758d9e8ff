//! All-reduces of other projects: programs that start one process for each replica and print the time
//! of each call. They are no dependency of the project; a program that is not installed is left out.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::measure::{OWNER, Replicas};
use crate::bench::machine::ask;
use crate::bench::peers::root;
use crate::bench::stats::Summary;

/// The all-reduce of another project.
pub struct Peer {
    /// Its name and version.
    pub name: String,
    /// The program, and its arguments in front of the number of replicas, elements and calls.
    program: PathBuf,
    args: Vec<String>,
}

/// Our all-reduce and a peer's, measured alternately: the median µs of the calls of each round.
pub struct Beside {
    /// The elements.
    pub len: usize,
    /// The times of our owner algorithm.
    pub ours: Vec<f64>,
    /// The times of the peer.
    pub peer: Vec<f64>,
}

/// The peers that are installed.
pub fn all(python: &Path) -> Vec<Peer> {
    open_mpi(python).into_iter().collect()
}

/// Open MPI with mpi4py; `None` where one of them is missing.
fn open_mpi(python: &Path) -> Option<Peer> {
    let version = ask("mpirun", &["--version"]);
    let python = python.to_string_lossy();
    let modules = "import mpi4py, numpy; print(mpi4py.__version__)";
    let mpi4py = ask(&python, &["-c", modules]);
    if !version.contains("Open MPI") || mpi4py == "unknown" {
        return None;
    }
    let script = root().join("benches/openmpi_allreduce.py");
    let args = [
        "--bind-to",
        "none",
        "--oversubscribe",
        &python,
        &script.to_string_lossy(),
    ];
    let version = version.replace("mpirun (Open MPI)", "Open MPI");
    Some(Peer {
        name: format!("{version}, mpi4py {mpi4py}"),
        program: "mpirun".into(),
        args: args.map(str::to_owned).into(),
    })
}

impl Peer {
    /// Measures ours, the peer's, ours, the peer's, and so on.
    ///
    /// # Errors
    /// If the peer fails, or one of ours is wrong.
    pub fn beside(
        &self,
        replicas: &mut Replicas,
        k: usize,
        (len, calls): (usize, usize),
        rounds: usize,
    ) -> Result<Beside> {
        let (mut ours, mut peer) = (Vec::new(), Vec::new());
        for round in 1..=rounds {
            let measured = replicas.measure(len, calls, &[OWNER])?;
            ours.push(measured.micros(OWNER).median);
            let times = self.measure(k, len, calls)?;
            peer.push(Summary::of(&times).median);
            eprintln!("{}: {len} elements, round {round} of {rounds}", self.name);
        }
        Ok(Beside { len, ours, peer })
    }

    /// The µs of each call.
    fn measure(&self, k: usize, len: usize, calls: usize) -> Result<Vec<f64>> {
        let mut command = Command::new(&self.program);
        command.args(["-n", &k.to_string()]).args(&self.args);
        command.args([len.to_string(), calls.to_string()]);
        // Open MPI wants to be told twice that root may, as in a container
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1");
        command.env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        let output = command
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output();
        let output = output.with_context(|| self.name.clone())?;
        ensure!(output.status.success(), "{}: {}", self.name, output.status);
        let text = String::from_utf8_lossy(&output.stdout);
        let times: Vec<f64> = text.lines().filter_map(|line| line.parse().ok()).collect();
        ensure!(times.len() == calls, "{} said {text:?}", self.name);
        Ok(times)
    }
}
