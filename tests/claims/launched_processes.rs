//! Processes that a launcher such as torchrun starts train as the replicas of one process do; where one is
//! in trouble all others end, and say which.

use std::fs::{self, File};
use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tempfile::TempDir;

use crate::a_failing_replica_ends_the_run::VARIABLE;
use crate::kit::{SMALL, command, run, same_as_in_one_process, signal, threads_of};

trials![
    three_steps_of_resnet18,
    a_variable_that_is_missing_is_named,
    what_the_program_cannot_do_is_said,
    settings_that_differ_are_named,
    a_process_that_is_killed_ends_all,
    a_process_that_stops_is_named_in_time,
    a_job_that_was_stopped_goes_on,
    a_process_that_is_asked_to_end_ends_all_in_order,
    so_does_one_that_is_asked_before_all_have_come,
    a_replica_that_stands_still_ends_all,
    sums_in_another_order_do_not_go_on,
    a_job_that_was_killed_goes_on,
    a_process_that_cannot_go_on_ends_all,
    a_process_that_does_not_start_is_named,
];

/// How long a job may take to start, or to end by itself.
const PLENTY: Duration = Duration::from_secs(100);
/// How long the others may take to end after one is in trouble.
const SOON: Duration = Duration::from_secs(30);

/// The processes of a job, which end with it.
struct Job {
    /// A launcher listens on the port that it names.
    launcher: TcpListener,
    size: usize,
    folder: TempDir,
    processes: Vec<Child>,
}

/// How a process ended.
struct Ended {
    status: Option<i32>,
    stderr: String,
}

impl Job {
    /// The first processes of a job of `size`, one for each of `args`.
    fn start(size: usize, args: &[&str]) -> Result<Self> {
        let mut job = Self {
            launcher: TcpListener::bind("127.0.0.1:0")?,
            size,
            folder: tempfile::tempdir()?,
            processes: Vec::new(),
        };
        args.iter().try_for_each(|args| job.add(args, None))?;
        Ok(job)
    }

    /// The next process; with a fault it fails as `a_failing_replica_ends_the_run` says.
    fn add(&mut self, args: &str, fault: Option<&str>) -> Result<()> {
        let rank = self.processes.len();
        let port = self.launcher.local_addr()?.port();
        let mut command = command("concise", &format!("--backend tcp {args}"))?;
        if let Some(fault) = fault {
            command.env(VARIABLE, fault);
        }
        let process = command
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("WORLD_SIZE", self.size.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(self.stderr(rank))?)
            .spawn()?;
        self.processes.push(process);
        Ok(())
    }

    fn stderr(&self, rank: usize) -> std::path::PathBuf {
        self.folder.path().join(format!("{rank}.stderr"))
    }

    /// What all have said so far.
    fn said(&self) -> String {
        let read = |rank| fs::read_to_string(self.stderr(rank)).unwrap_or_default();
        let said = (0..self.processes.len()).map(|rank| format!("process {rank}:\n{}", read(rank)));
        said.collect::<Vec<_>>().join("\n")
    }

    /// Waits until all of `ranks` have ended by themselves.
    fn ended(&mut self, ranks: &[usize], limit: Duration) -> Result<Vec<Ended>> {
        let start = Instant::now();
        let mut ended = Vec::new();
        for rank in ranks {
            let status = loop {
                if let Some(status) = self.processes[*rank].try_wait()? {
                    break status.code();
                }
                let goes_on = start.elapsed() > limit;
                ensure!(!goes_on, "process {rank} goes on\n{}", self.said());
                std::thread::sleep(Duration::from_millis(20));
            };
            let stderr = fs::read_to_string(self.stderr(*rank))?;
            ended.push(Ended { status, stderr });
        }
        Ok(ended)
    }

    /// Waits until all train.
    fn trains(&mut self) -> Result<()> {
        let start = Instant::now();
        let trains = |process: &Child| threads_of(process.id()).iter().any(|n| n == "minibatches");
        while !self.processes.iter().all(trains) {
            let late = start.elapsed() > PLENTY;
            ensure!(!late, "the job does not start\n{}", self.said());
            for process in &mut self.processes {
                let ended = process.try_wait()?;
                ensure!(ended.is_none(), "{ended:?}\n{}", self.said());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill(); // it may have ended
            let _ = process.wait();
        }
    }
}

/// A run that would take minutes.
const LONG: &str =
    "--device cpu --data synthetic --limit-train 2000 --limit-test 20 --batch-size 16 --threads 1";

/// A long run on three processes that have begun to train.
fn training(args: &str) -> Result<Job> {
    let args = format!("{LONG} {args}");
    let mut job = Job::start(3, &[&args[..]; 3])?;
    job.trains()?;
    Ok(job)
}

/// Sends `name` to a process: the others end soon, not well, and with an error in which `words` are.
fn others_end_after(args: &str, name: &str, victim: usize, words: &str) -> Result<()> {
    let mut job = training(args)?;
    signal(name, job.processes[victim].id())?;
    let others: Vec<usize> = (0..3).filter(|rank| *rank != victim).collect();
    for (rank, ended) in others.iter().zip(job.ended(&others, SOON)?) {
        let Ended { status, stderr } = ended;
        ensure!(status == Some(1), "process {rank}: {status:?}\n{stderr}");
        let names = stderr.contains(&format!("error: process {rank}: ")) && stderr.contains(words);
        ensure!(names, "process {rank}:\n{stderr}");
    }
    Ok(())
}

fn three_steps_of_resnet18() -> Result<()> {
    for k in [2, 3] {
        same_as_in_one_process(k, SMALL, |folder| {
            let args = format!("{SMALL} --out {}", folder.display());
            let mut job = Job::start(k, &vec![&args[..]; k])?;
            let all: Vec<usize> = (0..k).collect();
            for (rank, ended) in job.ended(&all, PLENTY)?.into_iter().enumerate() {
                let Ended { status, stderr } = ended;
                ensure!(status == Some(0), "process {rank}: {status:?}\n{stderr}");
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn a_variable_that_is_missing_is_named() -> Result<()> {
    let mut command = command("concise", &format!("--backend tcp {SMALL}"))?;
    let output = command.env("WORLD_SIZE", "2").env_remove("RANK").output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.code() == Some(2),
        "{}\n{stderr}",
        output.status
    );
    ensure!(
        stderr.starts_with("error: --backend tcp: RANK is not set"),
        "{stderr}"
    );
    Ok(())
}

fn what_the_program_cannot_do_is_said() -> Result<()> {
    let (status, _, stderr) = run(
        "concise",
        &format!("--backend nccl --reduce-on host {SMALL}"),
    )?;
    ensure!(
        status == 2 && stderr.contains("--backend nccl sums on the devices"),
        "{status} {stderr}"
    );
    if cfg!(not(feature = "nccl")) {
        let (status, _, stderr) = run("concise", &format!("--backend nccl {SMALL}"))?;
        let line = "error: --backend nccl: this program was built without NCCL; \
                    rebuild it with --features nccl\n";
        ensure!(status == 2 && stderr == line, "{status} {stderr}");
    }
    Ok(())
}

fn settings_that_differ_are_named() -> Result<()> {
    let mut job = Job::start(2, &[SMALL, &format!("{SMALL} --seed 3")])?;
    for Ended { status, stderr } in job.ended(&[0, 1], PLENTY)? {
        ensure!(status == Some(2), "{status:?}\n{stderr}");
        let words = r#"different settings: process 0 has "seed 0", process 1 has "seed 3""#;
        ensure!(stderr.contains(words), "{stderr}");
    }
    Ok(())
}

fn a_process_that_is_killed_ends_all() -> Result<()> {
    others_end_after("", "-KILL", 1, "process 1 has ended, or has left the group")?;
    others_end_after("", "-KILL", 0, "process 0 has ended, or has left the group")
}

fn a_process_that_stops_is_named_in_time() -> Result<()> {
    let limit = "--timeout 5"; // healthy ones come in time on a busy machine, too
    others_end_after(limit, "-STOP", 1, "process 1 did not arrive within 5s")?;
    others_end_after(limit, "-STOP", 0, "process 0 did not arrive within 5s")
}

/// For longer than its processes wait for each other, as with Ctrl-Z.
fn a_job_that_was_stopped_goes_on() -> Result<()> {
    let mut job = training("--timeout 5")?;
    for (how, seconds) in [("-STOP", 7), ("-CONT", 1)] {
        for process in &job.processes {
            signal(how, process.id())?;
        }
        std::thread::sleep(Duration::from_secs(seconds));
    }
    signal("-TERM", job.processes[1].id())?;
    for Ended { status, stderr } in job.ended(&[0, 1, 2], SOON)? {
        ensure!(status == Some(130), "{status:?}\n{stderr}");
    }
    Ok(())
}

fn a_process_that_is_asked_to_end_ends_all_in_order() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("run");
    let mut job = training(&format!("--out {}", out.display()))?;
    signal("-TERM", job.processes[1].id())?;
    for Ended { status, stderr } in job.ended(&[0, 1, 2], SOON)? {
        ensure!(status == Some(130), "{status:?}\n{stderr}");
    }
    ensure!(out.join("model.safetensors").is_file());
    Ok(())
}

/// The others come after that, and train with it until the end of a step.
fn so_does_one_that_is_asked_before_all_have_come() -> Result<()> {
    let mut job = Job::start(2, &[LONG])?;
    let start = Instant::now();
    while !threads_of(job.processes[0].id())
        .iter()
        .any(|n| n == "ctrl-c")
    {
        ensure!(start.elapsed() < PLENTY, "{}", job.said());
        std::thread::sleep(Duration::from_millis(5));
    }
    signal("-TERM", job.processes[0].id())?;
    job.add(LONG, None)?;
    for Ended { status, stderr } in job.ended(&[0, 1], PLENTY)? {
        ensure!(status == Some(130), "{status:?}\n{stderr}");
    }
    Ok(())
}

/// Its own process too, which has no other replica to wait for it.
fn a_replica_that_stands_still_ends_all() -> Result<()> {
    for culprit in [0, 1] {
        let mut job = Job::start(2, &[])?;
        let args = format!("{SMALL} --timeout 3");
        for rank in 0..2 {
            let fault = (rank == culprit).then_some("forward,1,cpu(0),1,3600");
            job.add(&args, fault)?;
        }
        for Ended { status, stderr } in job.ended(&[0, 1], PLENTY)? {
            ensure!(status == Some(1), "{status:?}\n{stderr}");
            let named = stderr.contains(&format!("process {culprit} did not arrive within 3s"));
            let left = stderr.contains(&format!(
                "process {} has ended, or has left the group",
                1 - culprit
            ));
            ensure!(named || left, "{stderr}");
        }
    }
    Ok(())
}

/// Each process has one replica, and then the ranks are the order.
fn sums_in_another_order_do_not_go_on() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("run");
    let args = format!("{SMALL} --gpus 2 --allreduce ring --out {}", out.display());
    let (status, _, stderr) = run("concise", &args)?;
    ensure!(status == 0, "{status}\n{stderr}");
    let go_on = format!("--resume {} --gpus 1", out.display());
    let mut job = Job::start(2, &[&go_on[..]; 2])?;
    let words = r#"has "summed in the order of ring", this one has "summed in the order of ranks""#;
    let Ended { status, stderr } = job.ended(&[0, 1], PLENTY)?.remove(0);
    ensure!(status == Some(2) && stderr.contains(words), "{stderr}");
    Ok(())
}

/// With momentum and without `--sync-bn`: each process has batch-norm statistics of its own.
fn a_job_that_was_killed_goes_on() -> Result<()> {
    let args = SMALL.replace("--sync-bn", "--momentum 0.9 --checkpoint-every 1");
    same_as_in_one_process(2, &args, |folder| {
        let begin = format!("{args} --out {}", folder.display());
        let mut job = Job::start(2, &[&begin[..]; 2])?;
        while !folder.join("checkpoint.previous.safetensors").exists() {
            let ended = job.processes[0].try_wait()?;
            ensure!(ended.is_none(), "{ended:?}\n{}", job.said());
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(job);
        let go_on = format!("--resume {}", folder.display());
        let sums_of_sums = format!("{go_on} --gpus 2");
        let mut job = Job::start(2, &[&sums_of_sums[..]; 2])?;
        let words = r#"has "replicas 2", this one has "replicas 2 in each of 2 processes""#;
        let ended = job.ended(&[0, 1], PLENTY)?;
        let refused = |e: &Ended| e.status == Some(2) && e.stderr.contains(words);
        ensure!(refused(&ended[0]), "{}", ended[0].stderr);
        let mut job = Job::start(2, &[&go_on[..]; 2])?;
        for Ended { status, stderr } in job.ended(&[0, 1], PLENTY)? {
            ensure!(status == Some(0), "{status:?}\n{stderr}");
        }
        Ok(())
    })
}

fn a_process_that_cannot_go_on_ends_all() -> Result<()> {
    for culprit in [0, 1] {
        let bad = format!("{SMALL} --init /no/such/file");
        let mut args = [SMALL; 3];
        args[culprit] = &bad;
        let mut job = Job::start(3, &args)?;
        for (rank, ended) in job.ended(&[0, 1, 2], PLENTY)?.into_iter().enumerate() {
            let Ended { status, stderr } = ended;
            let (expected, words) = match rank == culprit {
                true => (2, format!("error: process {rank}: --init /no/such/file")),
                false => (
                    1,
                    format!("process {culprit} has ended, or has left the group"),
                ),
            };
            ensure!(status == Some(expected), "{rank}: {status:?}\n{stderr}");
            ensure!(stderr.contains(&words), "{rank}:\n{stderr}");
        }
    }
    Ok(())
}

fn a_process_that_does_not_start_is_named() -> Result<()> {
    let args = format!("{SMALL} --timeout 5");
    let mut job = Job::start(3, &[&args[..]; 2])?;
    for Ended { status, stderr } in job.ended(&[0, 1], PLENTY)? {
        ensure!(status == Some(1), "{status:?}\n{stderr}");
        let words = "error: --backend tcp: process 2 did not arrive within 5s";
        ensure!(stderr.contains(words), "{stderr}");
    }
    Ok(())
}
