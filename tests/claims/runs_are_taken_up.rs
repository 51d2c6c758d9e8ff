//! A run that was interrupted, in whatever way, goes on from its checkpoint, and ends to the bit as one that was
//! not; one that cannot go on says why.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use concise::training::CheckpointFolder;
use rayon::prelude::*;
use tempfile::TempDir;

use crate::kit::{
    has, older_checkpoint, refuses, run, signal, start, times, until_two_checkpoints,
};

trials![
    lenet_is_killed,
    resnet18_is_killed,
    any_options_are_killed,
    one_of_several_runs_gets_the_folder,
    damaged_folders_are_refused_or_go_on,
    what_a_kill_can_leave,
    #[cfg(unix)]
    a_run_that_was_asked_to_end,
    a_step_of_several_minibatches_is_not_torn,
    another_run_is_refused_and_the_difference_named,
    what_does_not_change_the_result_may_differ,
    a_finished_run_is_left_as_it_is,
    a_run_can_have_more_epochs,
    a_run_that_goes_on_elsewhere_is_not_disturbed,
];

pub const LENET: &str = "--device cpu --data synthetic --limit-train 400 --limit-test 50 --batch-size 16 --epochs 3 \
                     --gpus 2 --lr 0.5 --threads 2";
pub const RESNET18: &str = "--device cpu --data synthetic --limit-train 40 --limit-test 10 --batch-size 16 --epochs 2 \
                        --gpus 2 --lr 0.02 --momentum 0.9 --weight-decay 0.001 --threads 2";
pub const NEWEST: &str = "checkpoint.safetensors";

/// A run that nothing interrupts, and a folder for others that do the same.
pub struct Runs {
    program: &'static str,
    args: String,
    folder: TempDir,
    /// From the first checkpoint to the end.
    pub takes: Duration,
}

impl Runs {
    pub fn of(program: &'static str, args: &str) -> Result<Self> {
        let mut runs = Self {
            program,
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
        let mut child = start(self.program, &args)?;
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
            let killed = self.killed(name, "--checkpoint-every 5", self.takes / 2)?;
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
        run(self.program, &args)
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

/// At random moments of a run with a checkpoint every 5 steps; the end of many comes in the middle of an epoch.
fn lenet_is_killed() -> Result<()> {
    let runs = Runs::of("scratch", LENET)?;
    kills(&runs, times(50), "--checkpoint-every 5")
}

/// With momentum, and the batch-norm statistics of each replica.
fn resnet18_is_killed() -> Result<()> {
    let runs = Runs::of("concise", RESNET18)?;
    kills(&runs, times(3), "--checkpoint-every 1")
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
        let runs = Runs::of("concise", &args)?;
        kills(&runs, times(1), "--checkpoint-every 1")?;
    }
    Ok(())
}

/// The others say why they have not got it.
fn one_of_several_runs_gets_the_folder() -> Result<()> {
    let runs = Runs::of("scratch", LENET)?;
    for i in 0..times(2) {
        let name = format!("race-{i}");
        let args = format!("{LENET} --out {}", runs.path(&name).display());
        let race: Vec<_> = (0..5)
            .into_par_iter()
            .map(|_| run("scratch", &args))
            .collect();
        let mut ended_well = 0;
        for run in race {
            let (status, _, stderr) = run?;
            match status {
                0 => ended_well += 1,
                2 if stderr.contains("another run is writing to") => (),
                2 => has(&stderr, "already holds a run")?,
                _ => bail!("{status}: {stderr}"),
            }
        }
        ensure!(ended_well == 1, "{ended_well} runs had the folder");
        runs.are_alike(&name)?;
    }
    Ok(())
}

/// One file of a run's folder is damaged, or two. The run ends as the whole one does, or the error names a file.
fn damaged_folders_are_refused_or_go_on() -> Result<()> {
    let runs = Runs::of("scratch", LENET)?;
    runs.interrupted("run")?;
    let draws = d2l::uniform(&mut d2l::rng(1), 0.0, 1.0, (times(12), 4))?.to_vec2::<f32>()?;
    let one = |(i, draws): (usize, &Vec<f32>)| -> Result<()> {
        let name = format!("damaged-{i}");
        fs::create_dir(runs.path(&name))?;
        for file in fs::read_dir(runs.path("run"))? {
            let file = file?;
            fs::copy(file.path(), runs.path(&name).join(file.file_name()))?;
        }
        let previous = older_checkpoint(&runs.path(&name)).context("one checkpoint alone")?;
        let previous = previous.file_name().and_then(|name| name.to_str());
        let previous = previous.context("no name")?;
        let files = [NEWEST, previous, "steps.csv", "epochs.csv"];
        let draw = |i: usize, n: usize| (draws[i] * n as f32) as usize;
        for which in [draw(0, 4), draw(1, 8)] {
            let path = files.get(which).map(|file| runs.path(&name).join(file));
            let Some(path) = path.filter(|path| path.exists()) else {
                continue; // one file only
            };
            let mut bytes = fs::read(&path)?;
            let at = draw(2, bytes.len());
            match draw(3, 4) {
                0 => bytes.truncate(at),
                1 => bytes.extend([7; 1000]),
                2 => bytes[at] ^= 1 << (at % 8),
                _ => fs::remove_file(&path)?,
            }
            if path.exists() {
                fs::write(path, bytes)?;
            }
        }
        let start = Instant::now();
        let (status, _, stderr) = runs.resume(&name, "")?;
        // two seconds on a machine that does nothing else
        ensure!(start.elapsed() < Duration::from_secs(60), "{stderr}");
        match status {
            0 => runs.are_alike(&name)?,
            2 => ensure!(files.iter().any(|file| stderr.contains(file)), "{stderr}"),
            _ => bail!("{status}: {stderr}"),
        }
        Ok(fs::remove_dir_all(runs.path(&name))?)
    };
    draws.iter().enumerate().try_for_each(one)
}

/// Kills runs at random moments, four at a time, and goes on with them; a half must not have ended by then.
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
    ensure!(killed >= times / 2, "only {killed} of {times} were killed");
    Ok(())
}

/// The moments between two writes, of which a random one seldom hits any.
fn what_a_kill_can_leave() -> Result<()> {
    let runs = Runs::of("scratch", LENET)?;
    let leave = |name: &str, change: &dyn Fn(&Path) -> Result<()>| -> Result<()> {
        runs.interrupted(name)?;
        change(&runs.path(name))?;
        runs.ends_alike(name).map(|_| ())
    };
    leave("partial", &|folder| {
        let whole = fs::read(folder.join(NEWEST))?;
        let partial = folder.join(".checkpoint.next.safetensors");
        Ok(fs::write(partial, &whole[..whole.len() / 2])?)
    })?;
    leave("renames", &|folder| {
        let found = CheckpointFolder::open(folder)?.newest()?;
        let step = found.context("no checkpoint")?.step;
        let older = folder.join(format!("checkpoint-{step}.safetensors"));
        Ok(fs::rename(folder.join(NEWEST), older)?)
    })?;
    leave("table", &|folder| {
        let partial = folder.join(".steps.csv.4711-0.partial");
        Ok(fs::write(partial, "epoch,step,examples,loss\n1,1,")?)
    })?;
    leave("model", &|folder| {
        let model = folder.join("model.safetensors");
        Ok(fs::write(model, "of an earlier step")?)
    })?;
    // before the first epoch has ended
    while !runs.killed("begun", "", Duration::ZERO)?
        || older_checkpoint(&runs.path("begun")).is_some()
    {}
    for file in ["steps.csv", "epochs.csv", "loss.svg"] {
        let _ = fs::remove_file(runs.path("begun").join(file));
    }
    runs.ends_alike("begun").map(|_| ())
}

/// SIGINT is Ctrl-C, SIGTERM what a machine sends that goes down: both leave a checkpoint of the last step.
#[cfg(unix)]
fn a_run_that_was_asked_to_end() -> Result<()> {
    let runs = Runs::of("scratch", LENET)?;
    for how in ["-INT", "-TERM"] {
        let name = how.trim_start_matches('-');
        let mut ended = Some(0);
        while ended == Some(0) {
            let mut child = runs.start(name, "")?;
            std::thread::sleep(runs.takes / 3);
            signal(how, child.id())?;
            ended = child.wait()?.code();
        }
        ensure!(ended == Some(130), "{how}: {ended:?}");
        let steps = fs::read_to_string(runs.path(name).join("steps.csv"))?;
        let said = runs.ends_alike(name)?;
        let last = steps.lines().count() - 1;
        has(&said, &format!("after step {last}\n"))?;
    }
    Ok(())
}

/// Gradients that wait for their step are in no checkpoint.
fn a_step_of_several_minibatches_is_not_torn() -> Result<()> {
    const ARGS: &str = "--device cpu --data synthetic --limit-train 44 --limit-test 10 --batch-size 4 --epochs 1 \
                        --gpus 2 --lr 0.02 --accumulate 4 --threads 2";
    let runs = Runs::of("concise", ARGS)?;
    for (name, how) in [("killed", "-KILL"), ("ended", "-TERM")] {
        let mut child = runs.start(name, "--checkpoint-every 1")?;
        until_two_checkpoints(&runs.path(name), &mut child)?;
        signal(how, child.id())?;
        child.wait()?;
        let said = runs.ends_alike(name)?;
        let after = |step: usize| said.contains(&format!("after step {step}\n"));
        ensure!([0, 4, 8, 11].into_iter().any(after), "{said}");
    }
    Ok(())
}

fn another_run_is_refused_and_the_difference_named() -> Result<()> {
    let runs = Runs::of("scratch", LENET)?;
    let whole = runs.path("whole");
    let of = |program, args: String, words| refuses(program, &args, &[words]);
    let resumed = |args: &str, words| {
        let args = format!("--resume {} {args}", whole.display());
        of("scratch", args, words)
    };
    let order = r#"has "order shuffled", this one has "order as in the file""#;
    let rate = r#"the run there has "lr 0.5", this one has "lr 0.25""#;
    resumed("--lr 0.25", rate)?;
    resumed("--gpus 3", r#"has "replicas 2", this one has "replicas 3""#)?;
    resumed("--seed 1", r#"has "seed 0""#)?;
    resumed("--no-shuffle", order)?;
    resumed("--dataset mnist", "images synthetic mnist")?;
    let own = "--out elsewhere: a resumed run writes into its own folder";
    resumed("--out elsewhere", own)?;
    resumed("--init other.safetensors", r#"has "init random""#)?;
    resumed("--overwrite", "--overwrite: there is nothing to replace")?;
    let other = "the run there trains LeNet, but concise trains ResNet-18";
    of("concise", format!("--resume {}", whole.display()), other)?;
    let nothing = "/no/such/folder holds no checkpoint";
    of("scratch", "--resume /no/such/folder".into(), nothing)?;
    let out = format!("--out {}", whole.display());
    of("scratch", out, "resume it with --resume")?;
    let needs_a_folder = "checkpoints need a folder; give --out";
    of("scratch", "--checkpoint-every 5".into(), needs_a_folder)
}

fn what_does_not_change_the_result_may_differ() -> Result<()> {
    let runs = Runs::of("scratch", LENET)?;
    runs.interrupted("run")?;
    let again = "--threads 4 --checkpoint-every 7 --check-replicas --lr 0.50 --epochs 3 --out";
    let same_folder = runs.path("run").join("..").join("run");
    let (status, _, stderr) = runs.resume("run", &format!("{again} {}", same_folder.display()))?;
    ensure!(status == 0, "{stderr}");
    runs.are_alike("run")
}

fn a_finished_run_is_left_as_it_is() -> Result<()> {
    let runs = Runs::of("scratch", LENET)?;
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
    ensure!(!stdout.contains("epoch 3,"), "it trained:\n{stdout}");
    ensure!(before == times()?, "the folder was changed");
    Ok(())
}

/// A run is made longer, one that is finished and one that was interrupted: both end as one that had these epochs from
/// the start. It is not made shorter than it is, and not where the learning rate depends on its length.
fn a_run_can_have_more_epochs() -> Result<()> {
    let runs = Runs::of("scratch", LENET)?;
    let two = LENET.replace("--epochs 3", "--epochs 2");
    let shorter = Runs::of("scratch", &two)?;
    fs::rename(shorter.path("whole"), runs.path("finished"))?;
    shorter.interrupted("run")?;
    fs::rename(shorter.path("run"), runs.path("run"))?;
    for name in ["finished", "run"] {
        let (status, stdout, stderr) = runs.resume(name, "--epochs 3")?;
        ensure!(status == 0, "{name}: status {status}\n{stdout}{stderr}");
        runs.are_alike(name)?;
        // the new length is the run's own from now on
        let (_, stdout, _) = runs.resume(name, "")?;
        has(&stdout, "is complete; nothing to do")?;
    }
    let folder = runs.path("finished");
    let args = format!("--resume {} --epochs 2", folder.display());
    let words = "the run there is in epoch 3, so --epochs 2 is too few; give 3 or more";
    refuses("scratch", &args, &[words])?;
    let falls = Runs::of("concise", &format!("{RESNET18} --schedule cosine"))?;
    let args = format!("--resume {} --epochs 3", falls.path("whole").display());
    let words = "with other --epochs it is another run from its first step on";
    refuses("concise", &args, &[words])
}

fn a_run_that_goes_on_elsewhere_is_not_disturbed() -> Result<()> {
    let runs = Runs::of("scratch", LENET)?;
    let mut child = runs.start("run", "")?;
    let (status, _, stderr) = runs.resume("run", "")?;
    let still = child.try_wait()?.is_none();
    ensure!(child.wait()?.success());
    let refused = status == 2 && stderr.contains("another run is writing to");
    ensure!(refused || !still, "status {status}\n{stderr}");
    runs.are_alike("run")
}
