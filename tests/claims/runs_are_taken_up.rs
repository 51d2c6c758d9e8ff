//! A run that was interrupted, in whatever way, goes on from its checkpoint, and ends to the bit as one that was
//! not; one that cannot go on says why.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

#[cfg(unix)]
use crate::kit::signal;
use crate::kit::{has, refuses, run, start, succeeds, times, until, until_there, write_idx};

trials![
    killed_at_random_times,
    what_a_kill_can_leave,
    #[cfg(unix)]
    a_run_that_was_asked_to_end,
    another_run_is_refused_and_the_difference_named,
    other_images_are_refused,
    a_finished_run_is_left_as_it_is,
    a_run_can_have_more_epochs,
];

/// A run of ResNet-18 in two epochs of four steps.
pub const RUN: &str = "--device cpu --data synthetic --limit-train 14 --limit-test 4 --batch-size 4 --epochs 2 \
                       --gpus 2 --lr 0.02 --threads 2";
#[cfg(unix)]
const STEPS_PER_EPOCH: usize = 4;
pub const NEWEST: &str = "checkpoint.safetensors";

/// A run that nothing interrupted.
struct Whole {
    folder: TempDir,
    /// From the first checkpoint to the end.
    takes: Duration,
}

/// The one of [`RUN`].
static WHOLE: Mutex<Option<Arc<Whole>>> = Mutex::new(None);

/// Removes it, when all tests have ended.
pub fn remove() {
    WHOLE.lock().unwrap_or_else(PoisonError::into_inner).take();
}

/// A run that nothing interrupted, and a folder for others that do the same.
pub struct Runs {
    args: String,
    folder: TempDir,
    whole: Arc<Whole>,
}

impl Runs {
    /// Those of [`RUN`], of which the whole one runs once for all tests.
    pub fn new() -> Result<Self> {
        let mut known = WHOLE.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = match &*known {
            Some(whole) => whole.clone(),
            None => known.insert(Arc::new(Whole::of(RUN)?)).clone(),
        };
        Self::after(whole, RUN)
    }

    fn of(args: &str) -> Result<Self> {
        Self::after(Arc::new(Whole::of(args)?), args)
    }

    fn after(whole: Arc<Whole>, args: &str) -> Result<Self> {
        Ok(Self {
            args: args.to_owned(),
            folder: tempfile::tempdir()?,
            whole,
        })
    }

    pub fn whole(&self) -> &Path {
        self.whole.folder.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A copy of the whole run, without `model.safetensors`: as if it had ended just before it wrote that.
    pub fn copied(&self, name: &str) -> Result<PathBuf> {
        let copy = self.path(name);
        fs::create_dir(&copy)?;
        for file in fs::read_dir(self.whole())? {
            let file = file?;
            fs::copy(file.path(), copy.join(file.file_name()))?;
        }
        fs::remove_file(copy.join("model.safetensors"))?;
        Ok(copy)
    }

    /// As [`copied`](Self::copied), with the checkpoint of the first epoch alone.
    pub fn begun(&self, name: &str) -> Result<PathBuf> {
        let begun = self.copied(name)?;
        fs::remove_file(begun.join(NEWEST))?;
        Ok(begun)
    }

    /// Starts a run in a folder of its own, and waits until there is something to go on from.
    fn start(&self, name: &str, more: &str) -> Result<Child> {
        let out = self.path(name);
        if out.exists() {
            fs::remove_dir_all(&out)?;
        }
        until_it_trains(&format!("{} {more}", self.args), &out)
    }

    fn resume(&self, name: &str, more: &str) -> Result<(i32, String, String)> {
        let folder = self.path(name);
        let args = format!("--resume {} {more}", folder.display());
        run("concise", &args)
    }

    /// Goes on with a run, which ends as the one that nothing interrupted.
    pub fn ends_alike(&self, name: &str) -> Result<String> {
        self.ends_alike_with(name, "")
    }

    fn ends_alike_with(&self, name: &str, more: &str) -> Result<String> {
        let (status, stdout, stderr) = self.resume(name, more)?;
        ensure!(status == 0, "{name}: status {status}\n{stdout}{stderr}");
        let (whole, other) = (self.whole(), self.path(name));
        for file in ["model.safetensors", "steps.csv", "loss.svg", "accuracy.svg"] {
            let read = |folder: &Path| fs::read(folder.join(file));
            ensure!(read(whole)? == read(&other)?, "{name}: another {file}");
        }
        let epochs = |folder: &Path| -> Result<Vec<String>> {
            let text = fs::read_to_string(folder.join("epochs.csv"))?;
            let without_seconds = |line: &str| Some(line.rsplit_once(',')?.0.to_owned());
            let lines = text.lines().map(without_seconds).collect::<Option<_>>();
            lines.context("no line")
        };
        ensure!(epochs(whole)? == epochs(&other)?, "{name}: other epochs");
        let names = fs::read_dir(&other)?;
        let mut names = names.filter_map(|file| file.ok()?.file_name().into_string().ok());
        let hidden = names.find(|file| file.starts_with('.'));
        ensure!(hidden.is_none(), "{name}: {hidden:?} was left");
        Ok(format!("{stdout}{stderr}"))
    }
}

impl Whole {
    fn of(args: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut child = until_it_trains(args, folder.path())?;
        let start = Instant::now();
        ensure!(child.wait()?.success(), "{args}");
        Ok(Self {
            folder,
            takes: start.elapsed(),
        })
    }
}

/// Starts a run, and waits for its first checkpoint.
fn until_it_trains(args: &str, out: &Path) -> Result<Child> {
    let mut child = start("concise", &format!("{args} --out {}", out.display()))?;
    until_there(&out.join(NEWEST), &mut child).context(args.to_owned())?;
    Ok(child)
}

/// With all options that change a step. A user's own program is killed more often, in `ones_own_run_goes_on`.
fn killed_at_random_times() -> Result<()> {
    const ARGS: &str = "--device cpu --data synthetic --limit-train 24 --limit-test 8 --batch-size 4 --epochs 1 \
                        --gpus 2 --lr 0.02 --threads 2 --momentum 0.9 --weight-decay 0.001 --accumulate 2 --sync-bn \
                        --allreduce ring --split 2,1 --no-overlap --schedule one-cycle --warmup 1";
    let runs = Runs::of(ARGS)?;
    let times = times(3);
    let fractions = d2l::uniform(&mut d2l::rng(0), 0.0, 1.0, times)?.to_vec1::<f32>()?;
    let mut killed = 0;
    for fraction in fractions {
        let mut child = runs.start("run", "--checkpoint-every 1")?;
        std::thread::sleep(runs.whole.takes.mul_f32(fraction));
        child.kill()?;
        killed += usize::from(!child.wait()?.success());
        runs.ends_alike("run")?;
    }
    ensure!(killed >= times / 3, "only {killed} of {times} were killed");
    Ok(())
}

/// What a kill leaves of the record; and what changes no result may be another option. For the checkpoints themselves
/// `ones_own_run_goes_on` tries each moment.
fn what_a_kill_can_leave() -> Result<()> {
    let runs = Runs::new()?;
    let folder = runs.begun("run")?;
    let partial = folder.join(".steps.csv.4711-0.partial");
    fs::write(partial, "epoch,step,examples,loss\n1,1,")?;
    fs::write(folder.join("model.safetensors"), "of an earlier step")?;
    for file in ["steps.csv", "epochs.csv", "loss.svg"] {
        fs::remove_file(folder.join(file))?;
    }
    let again = "--threads 4 --checkpoint-every 7 --check-replicas --lr 0.020 --epochs 2 --out";
    let same_folder = folder.join("..").join("run");
    let again = format!("{again} {}", same_folder.display());
    runs.ends_alike_with("run", &again).map(drop)
}

/// SIGTERM is what a machine sends that goes down: it leaves a checkpoint of the last step.
#[cfg(unix)]
fn a_run_that_was_asked_to_end() -> Result<()> {
    let runs = Runs::new()?;
    let mut ended = Some(0);
    while ended == Some(0) {
        let mut child = runs.start("run", "")?;
        std::thread::sleep(runs.whole.takes / 3);
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

fn another_run_is_refused_and_the_difference_named() -> Result<()> {
    let runs = Runs::new()?;
    let whole = runs.copied("run")?;
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

fn a_finished_run_is_left_as_it_is() -> Result<()> {
    let runs = Runs::new()?;
    let folder = runs.copied("run")?;
    runs.ends_alike("run")?;
    let times = || -> Result<Vec<_>> {
        let files = fs::read_dir(&folder)?.map(|file| {
            let file = file?;
            Ok((file.file_name(), file.metadata()?.modified()?))
        });
        files.collect()
    };
    let before = times()?;
    let (status, stdout, _) = runs.resume("run", "")?;
    ensure!(status == 0, "{status}");
    has(&stdout, "is complete; nothing to do")?;
    ensure!(!stdout.contains("epoch 2,"), "it trained:\n{stdout}");
    ensure!(before == times()?, "the folder was changed");
    Ok(())
}

/// Makes a complete run longer, and kills it after one of its first steps.
fn killed_after_a_step(folder: &Path) -> Result<()> {
    let newest = folder.join(NEWEST);
    let before = fs::read(&newest)?;
    let args = format!(
        "--resume {} --epochs 2 --checkpoint-every 1",
        folder.display()
    );
    let mut child = start("concise", &args)?;
    let is_new = || fs::read(&newest).is_ok_and(|now| now != before);
    until(is_new, "a new checkpoint", &mut child)?;
    child.kill()?;
    let status = child.wait()?;
    ensure!(
        !status.success(),
        "{args}: it has ended before it was killed"
    );
    Ok(())
}

/// A finished run is made longer: it ends as one that had these epochs from the start. It is not made shorter than it
/// is, and not where the learning rate depends on its length.
fn a_run_can_have_more_epochs() -> Result<()> {
    let runs = Runs::new()?;
    let folder = runs.path("run");
    let shorter = RUN.replace("--epochs 2", "--epochs 1");
    let shorter = format!("{shorter} --out {}", folder.display());
    succeeds("concise", &shorter)?;
    let model = folder.join("model.safetensors");
    let of_shorter = fs::read(&model)?;
    killed_after_a_step(&folder)?;
    ensure!(
        fs::read(&model)? == of_shorter,
        "the model of the complete run is gone"
    );
    runs.ends_alike_with("run", "--epochs 2")?;
    // one that was killed after its last checkpoint still has the model of the shorter run
    fs::write(runs.copied("last")?.join("model.safetensors"), of_shorter)?;
    runs.ends_alike("last")?;
    // the new length is the run's own from now on
    let (_, stdout, _) = runs.resume("run", "")?;
    has(&stdout, "is complete; nothing to do")?;
    let args = format!("--resume {} --epochs 1", folder.display());
    let words = "the run there is in epoch 2, so --epochs 1 is too few; give 2 or more";
    refuses("concise", &args, &[words])?;
    let falls = runs.path("falls");
    let args =
        "--device cpu --data synthetic --limit-train 4 --limit-test 4 --epochs 2 --schedule cosine";
    succeeds("concise", &format!("{args} --out {}", falls.display()))?;
    let args = format!("--resume {} --epochs 3", falls.display());
    let words = "A schedule that ends with the run changes with the number of epochs";
    refuses("concise", &args, &[words])
}
