//! Does memory grow? Both programs train at the smallest size, epoch after epoch with a checkpoint after each, and
//! are asked how much memory they have.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::bench::machine::peak_memory;

/// How much more the last epoch may need than the one after the first, beside the losses of the steps.
const LIMIT: f64 = 1.02;
/// MiB for the loss of a step, which checkpoints keep: 4 bytes, twice that in a vector that grows, and two copies
/// while a checkpoint is written.
const STEP: f64 = 16.0 / (1 << 20) as f64;
const SMALLEST: &str = "--device cpu --data synthetic --gpus 2 --epochs 100000000 --lr 0.001";

#[derive(clap::Args)]
pub struct Options {
    /// Minutes to train; both programs run at once
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
}

/// The program that the process is, with its command line.
#[derive(clap::Args)]
pub struct Job {
    program: String,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Trains, as the program itself does.
pub fn train(job: Job) -> ExitCode {
    let args = [job.program.clone().into()].into_iter().chain(job.args);
    match job.program.as_str() {
        "scratch" => run::program(&scratch::BOOK, scratch::train, args),
        _ => run::program(&concise::BOOK, concise::train, args),
    }
}

/// Runs both, and says what they need; an error where it has grown.
pub fn soak(options: &Options) -> Result<()> {
    let time = Duration::from_secs_f64(options.minutes * 60.0);
    // 235 steps of LeNet to an epoch, as the book has them; 20 of ResNet-18
    let sizes = [
        (
            "scratch",
            235,
            "--limit-train 3760 --limit-test 64 --batch-size 16",
        ),
        (
            "concise",
            20,
            "--limit-train 80 --limit-test 8 --batch-size 4",
        ),
    ];
    let grown = std::thread::scope(|scope| {
        let both = sizes
            .map(|(program, steps, size)| scope.spawn(move || grows(program, steps, size, time)));
        let both = both.map(|run| run.join().unwrap_or_else(|_| bail!("it panicked")));
        both.into_iter().collect::<Result<Vec<f64>>>()
    })?;
    let most = grown.into_iter().fold(0.0, f64::max);
    ensure!(
        most <= LIMIT,
        "memory has grown to {most:.3} times what it was"
    );
    Ok(())
}

/// What the last epoch needs as a multiple of what the second does.
fn grows(program: &str, steps: usize, size: &str, time: Duration) -> Result<f64> {
    let folder = std::env::temp_dir().join(format!("soak {program} {}", std::process::id()));
    let mut child = Command::new(std::env::current_exe()?)
        .args(["train", program])
        .args(SMALLEST.split(' ').chain(size.split(' ')))
        .arg("--out")
        .arg(&folder)
        // what is freed goes back: glibc keeps the holes that tensors leave, in all a few times LeNet's parameters,
        // and other ones from epoch to epoch
        .env("MALLOC_MMAP_THRESHOLD_", "65536")
        .stdout(Stdio::piped())
        .spawn()?;
    let watched = watch(program, steps, &mut child, time);
    let _ = child.kill();
    let _ = child.wait();
    fs::remove_dir_all(&folder)?;
    watched
}

fn watch(program: &str, steps: usize, child: &mut Child, time: Duration) -> Result<f64> {
    let lines = BufReader::new(child.stdout.take().context("no pipe")?).lines();
    let (start, mut said) = (Instant::now(), Instant::now());
    let mut first = None;
    for line in lines {
        let line = line?;
        let epoch = line
            .strip_prefix("epoch ")
            .and_then(|l| l.split(',').next());
        let Some(epoch) = epoch else {
            continue;
        };
        let all_steps = epoch.parse::<usize>()? * steps;
        let now = memory(child.id())? - all_steps as f64 * STEP;
        if epoch == "1" {
            continue; // what the start needs, which is more
        }
        let first = *first.get_or_insert(now);
        let (minutes, ratio) = (start.elapsed().as_secs_f64() / 60.0, now / first);
        let over = start.elapsed() > time;
        if now == first || over || said.elapsed() > time / 10 {
            said = Instant::now();
            println!(
                "{program}: {now:.1} MiB beside the losses after {minutes:.1} minutes and {epoch} epochs, {ratio:.4}"
            );
        }
        if over {
            ensure!(epoch != "2", "{program}: too few minutes for a third epoch");
            return Ok(ratio);
        }
    }
    bail!("{program} has ended")
}

/// The most resident memory that a process has had since it was asked before, in MiB. Asked for what it has just
/// now, it would have more or less by what a checkpoint takes.
fn memory(pid: u32) -> Result<f64> {
    let memory = peak_memory(pid);
    fs::write(format!("/proc/{pid}/clear_refs"), "5").context("this needs Linux")?; // from here on anew
    Ok(memory)
}
