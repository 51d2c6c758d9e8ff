//! A run that was interrupted, in whatever way, goes on from its checkpoint, and ends to the bit as one that was
//! not; one that cannot go on says why.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rayon::prelude::*;
use tempfile::TempDir;

use crate::kit::{
    has, older_checkpoint, refuses, run, signal, start, succeeds, times, until_two_checkpoints,
    write_idx,
};

trials![
    killed_at_random_times,
    any_options_are_killed,
    what_a_kill_can_leave,
    #[cfg(unix)]
    a_run_that_was_asked_to_end,
    a_step_of_several_minibatches_is_not_torn,
    another_run_is_refused_and_the_difference_named,
    other_images_are_refused,
    what_does_not_change_the_result_may_differ,
    a_finished_run_is_left_as_it_is,
    a_run_can_have_more_epochs,
];

/// A run of ResNet-18 in two epochs of four steps.
pub const RUN: &str = "--device cpu --data synthetic --limit-train 14 --limit-test 4 --batch-size 4 --epochs 2 \
                       --gpus 2 --lr 0.02 --threads 2";
const STEPS_PER_EPOCH: usize = 4;
const WITH_MOMENTUM: &str = "--device cpu --data synthetic --limit-train 40 --limit-test 10 --batch-size 16 \
                             --epochs 2 --gpus 2 --lr 0.02 --momentum 0.9 --weight-decay 0.001 --threads 2";
pub const NEWEST: &str = "checkpoint.safetensors";

/// A run that nothing interrupts, and a folder for others that do the same.
pub struct Runs {
    args: String,
    folder: TempDir,
    /// From the first checkpoint to the end.
    pub takes: Duration,
}

impl Runs {
    pub fn of(args: &str) -> Result<Self> {
        let mut runs = Self {
            args: args.to_owned(),
            folder: tempfile::tempdir()?,
            takes: Duration::ZERO,
        };
        let mut child = runs.start("whole", "")?;
        let start = Instant::now();
        ensure!(child.wait()?.success());
        runs.takes = start.elapsed();
        Ok(runs)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts a run in a folder of its own, and waits until there is something to go on from.
    pub fn start(&self, name: &str, more: &str) -> Result<Child> {
        let out = self.path(name);
        if out.exists() {
            fs::remove_dir_all(&out)?;
        }
        let args = format!("{} {more} --out {}", self.args, out.display());
        let mut child = start("concise", &args)?;
        let start = Instant::now();
        while !out.join(NEWEST).exists() {
            let waits = start.elapsed() < Duration::from_secs(100) && child.try_wait()?.is_none();
            ensure!(waits, "{args}: there is no checkpoint");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(child)
    }

    /// Starts a run, and ends it after so long; whether it had not ended by itself.
    pub fn killed(&self, name: &str, more: &str, after: Duration) -> Result<bool> {
        let mut child = self.start(name, more)?;
        std::thread::sleep(after);
        child.kill()?;
        Ok(!child.wait()?.success())
    }

    /// Ends a run in its middle, and not between the two renames of a checkpoint: the newest and the one before
    /// it are both there.
    pub fn interrupted(&self, name: &str) -> Result<()> {
        for _ in 0..100 {
            let killed = self.killed(name, "--checkpoint-every 1", self.takes / 2)?;
            let folder = self.path(name);
            if killed && folder.join(NEWEST).exists() && older_checkpoint(&folder).is_some() {
                return Ok(());
            }
        }
        bail!("{name}: none of 100 runs was ended in its middle")
    }

    pub fn resume(&self, name: &str, more: &str) -> Result<(i32, String, String)> {
        let folder = self.path(name);
        let args = format!("--resume {} {more}", folder.display());
        run("concise", &args)
    }

    /// Goes on with a run, which ends as the one that nothing interrupted.
    pub fn ends_alike(&self, name: &str) -> Result<String> {
        let (status, stdout, stderr) = self.resume(name, "")?;
        ensure!(status == 0, "{name}: status {status}\n{stdout}{stderr}");
        self.are_alike(name)?;
        Ok(format!("{stdout}{stderr}"))
    }

    pub fn are_alike(&self, name: &str) -> Result<()> {
        let (whole, other) = (self.path("whole"), self.path(name));
        for file in ["model.safetensors", "steps.csv", "loss.svg", "accuracy.svg"] {
            let read = |folder: &Path| fs::read(folder.join(file));
            ensure!(read(&whole)? == read(&other)?, "{name}: another {file}");
        }
        let epochs = |folder: &Path| -> Result<Vec<String>> {
            let text = fs::read_to_string(folder.join("epochs.csv"))?;
            let without_seconds = |line: &str| Some(line.rsplit_once(',')?.0.to_owned());
            let lines = text.lines().map(without_seconds).collect::<Option<_>>();
            lines.context("no line")
        };
        ensure!(epochs(&whole)? == epochs(&other)?, "{name}: other epochs");
        let names = fs::read_dir(&other)?;
        let mut names = names.filter_map(|file| file.ok()?.file_name().into_string().ok());
        let hidden = names.find(|file| file.starts_with('.'));
        ensure!(hidden.is_none(), "{name}: {hidden:?} was left");
        Ok(())
    }
}

/// With momentum, and the batch-norm statistics of each replica. A user's own program is killed more often, in
/// `ones_own_run_goes_on`.
fn killed_at_random_times() -> Result<()> {
    let runs = Runs::of(WITH_MOMENTUM)?;
    kills(&runs, times(5), "--checkpoint-every 1")
}

fn any_options_are_killed() -> Result<()> {
    const RESNET18: &str = "--device cpu --data synthetic --limit-train 24 --limit-test 8 --batch-size 8 --epochs 1 \
                            --gpus 2 --lr 0.02 --threads 2";
    for more in [
        "--momentum 0.9 --accumulate 2",
        "--sync-bn --allreduce ring",
        "--split 2,1 --no-overlap --schedule one-cycle --warmup 1",
    ] {
        let args = format!("{RESNET18} {more}");
        let runs = Runs::of(&args)?;
        kills(&runs, times(1), "--checkpoint-every 1")?;
    }
    Ok(())
}

/// Kills runs at random moments, four at a time, and goes on with them; some must not have ended by then.
fn kills(runs: &Runs, times: usize, more: &str) -> Result<()> {
    let fractions = d2l::uniform(&mut d2l::rng(0), 0.0, 1.0, times)?.to_vec1::<f32>()?;
    let one = |(i, fraction): (usize, &f32)| -> Result<bool> {
        let name = format!("killed-{i}");
        let killed = runs.killed(&name, more, runs.takes.mul_f32(*fraction))?;
        runs.ends_alike(&name)?;
        fs::remove_dir_all(runs.path(&name))?;
        Ok(killed)
    };
    let four = rayon::ThreadPoolBuilder::new().num_threads(4).build()?;
    let all = || fractions.par_iter().enumerate().map(one).collect();
    let killed: Vec<bool> = four.install::<_, Result<_>>(all)?;
    let killed = killed.into_iter().filter(|killed| *killed).count();
    ensure!(killed >= times / 3, "only {killed} of {times} were killed");
    Ok(())
}

/// What a kill leaves of the record. For the checkpoints themselves `ones_own_run_goes_on` tries each moment.
fn what_a_kill_can_leave() -> Result<()> {
    let runs = Runs::of(RUN)?;
    runs.interrupted("run")?;
    let folder = runs.path("run");
    let partial = folder.join(".steps.csv.4711-0.partial");
    fs::write(partial, "epoch,step,examples,loss\n1,1,")?;
    fs::write(folder.join("model.safetensors"), "of an earlier step")?;
    for file in ["steps.csv", "epochs.csv", "loss.svg"] {
        fs::remove_file(folder.join(file))?;
    }
    runs.ends_alike("run").map(|_| ())
}

/// SIGTERM is what a machine sends that goes down: it leaves a checkpoint of the last step.
#[cfg(unix)]
fn a_run_that_was_asked_to_end() -> Result<()> {
    let runs = Runs::of(RUN)?;
    let mut ended = Some(0);
    while ended == Some(0) {
        let mut child = runs.start("run", "")?;
        std::thread::sleep(runs.takes / 3);
        signal("-TERM", child.id())?;
        ended = child.wait()?.code();
    }
    ensure!(ended == Some(130), "{ended:?}");
    let steps = fs::read_to_string(runs.path("run").join("steps.csv"))?;
    let said = runs.ends_alike("run")?;
    let begun = (steps.lines().count() - 1) % STEPS_PER_EPOCH;
    if begun > 0 {
        has(&said, &format!("after {begun} of its minibatches\n"))?;
    }
    Ok(())
}

/// Gradients that wait for their step are in no checkpoint.
fn a_step_of_several_minibatches_is_not_torn() -> Result<()> {
    const ARGS: &str = "--device cpu --data synthetic --limit-train 44 --limit-test 10 --batch-size 4 --epochs 1 \
                        --gpus 2 --lr 0.02 --accumulate 4 --threads 2";
    let runs = Runs::of(ARGS)?;
    for (name, how) in [("killed", "-KILL"), ("ended", "-TERM")] {
        let mut child = runs.start(name, "--checkpoint-every 1")?;
        until_two_checkpoints(&runs.path(name), &mut child)?;
        signal(how, child.id())?;
        child.wait()?;
        let said = runs.ends_alike(name)?;
        let after = |step: usize| said.contains(&format!("after {step} of its minibatches\n"));
        let goes_on = said.contains("goes on after epoch ") || [4, 8, 11].into_iter().any(after);
        ensure!(goes_on, "{said}");
    }
    Ok(())
}

fn another_run_is_refused_and_the_difference_named() -> Result<()> {
    let runs = Runs::of(RUN)?;
    let whole = runs.path("whole");
    let of = |args: String, words| refuses("concise", &args, &[words]);
    let resumed = |args: &str, words| {
        let args = format!("--resume {} {args}", whole.display());
        of(args, words)
    };
    resumed("--lr 0.25", "lr: 0.02")?;
    resumed("--gpus 3", r#"it has "replicas 2", this one "replicas 3""#)?;
    resumed("--seed 1", r#"it has "seed 0", this one "seed 1""#)?;
    resumed("--batch-size 5", r#"it has "batch 4", this one "batch 5""#)?;
    resumed("--limit-test 3", r#"it has "test-examples 4""#)?;
    let order = r#"it has "data-order shuffled", this one "data-order as in the file""#;
    resumed("--no-shuffle", order)?;
    resumed("--dataset mnist", "images synthetic mnist")?;
    let own = "--out elsewhere: a resumed run writes into its own folder";
    resumed("--out elsewhere", own)?;
    resumed("--init other.safetensors", r#"it has "init random""#)?;
    resumed("--overwrite", "--overwrite: there is nothing to replace")?;
    let nothing = "/no/such/folder holds no checkpoint";
    of("--resume /no/such/folder".into(), nothing)?;
    let out = format!("--out {}", whole.display());
    of(out, "resume it with --resume")?;
    let needs_a_folder = "checkpoints need a folder; give --out";
    of("--checkpoint-every 5".into(), needs_a_folder)
}

/// As many images of the same sizes, which the run has not had.
fn other_images_are_refused() -> Result<()> {
    let place = tempfile::tempdir()?;
    let (data, out) = (place.path().join("data"), place.path().join("run"));
    write_idx(&data, 16, 8, "")?;
    let args = format!("--device cpu --data {} --batch-size 8", data.display());
    succeeds(
        "concise",
        &format!("{args} --epochs 1 --out {}", out.display()),
    )?;
    let images = data.join("train-images-idx3-ubyte");
    let mut bytes = fs::read(&images)?;
    bytes[1000] ^= 1;
    fs::write(&images, bytes)?;
    let args = format!("--resume {} --epochs 2", out.display());
    refuses("concise", &args, &["images fashion-mnist"])
}

fn what_does_not_change_the_result_may_differ() -> Result<()> {
    let runs = Runs::of(RUN)?;
    runs.interrupted("run")?;
    let again = "--threads 4 --checkpoint-every 7 --check-replicas --lr 0.020 --epochs 2 --out";
    let same_folder = runs.path("run").join("..").join("run");
    let (status, _, stderr) = runs.resume("run", &format!("{again} {}", same_folder.display()))?;
    ensure!(status == 0, "{stderr}");
    runs.are_alike("run")
}

fn a_finished_run_is_left_as_it_is() -> Result<()> {
    let runs = Runs::of(RUN)?;
    let times = || -> Result<Vec<_>> {
        let files = fs::read_dir(runs.path("whole"))?.map(|file| {
            let file = file?;
            Ok((file.file_name(), file.metadata()?.modified()?))
        });
        files.collect()
    };
    let before = times()?;
    let (status, stdout, _) = runs.resume("whole", "")?;
    ensure!(status == 0, "{status}");
    has(&stdout, "is complete; nothing to do")?;
    ensure!(!stdout.contains("epoch 2,"), "it trained:\n{stdout}");
    ensure!(before == times()?, "the folder was changed");
    Ok(())
}

/// A run is made longer, one that is finished and one that was interrupted: both end as one that had these epochs from
/// the start. It is not made shorter than it is, and not where the learning rate depends on its length.
fn a_run_can_have_more_epochs() -> Result<()> {
    let runs = Runs::of(RUN)?;
    let one = RUN.replace("--epochs 2", "--epochs 1");
    let shorter = Runs::of(&one)?;
    fs::rename(shorter.path("whole"), runs.path("finished"))?;
    shorter.interrupted("run")?;
    fs::rename(shorter.path("run"), runs.path("run"))?;
    for name in ["finished", "run"] {
        let (status, stdout, stderr) = runs.resume(name, "--epochs 2")?;
        ensure!(status == 0, "{name}: status {status}\n{stdout}{stderr}");
        runs.are_alike(name)?;
        // the new length is the run's own from now on
        let (_, stdout, _) = runs.resume(name, "")?;
        has(&stdout, "is complete; nothing to do")?;
    }
    let folder = runs.path("finished");
    let args = format!("--resume {} --epochs 1", folder.display());
    let words = "the run there is in epoch 2, so --epochs 1 is too few; give 2 or more";
    refuses("concise", &args, &[words])?;
    let falls = Runs::of(&format!("{WITH_MOMENTUM} --schedule cosine"))?;
    let args = format!("--resume {} --epochs 3", falls.path("whole").display());
    let words = "A schedule that ends with the run changes with the number of epochs";
    refuses("concise", &args, &[words])
}
