//! A run of a user's own program goes on where it was, to the bit: whenever it is killed or asked to end, and with whatever
//! is left in its folder. A folder of another run is refused.

pub mod program;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::kit::{command, ended, has, older_checkpoint, signal, times, until_two_checkpoints};

trials![
    killed_at_random_times,
    #[cfg(target_os = "linux")]
    killed_after_each_operation_on_a_file,
    asked_to_end_it_sees_each_example_once,
    gradients_that_wait_are_in_no_checkpoint,
    each_other_setting_is_named_and_nothing_changes,
    the_last_and_the_best_stay,
    patience_counts_from_the_old_best,
    a_folder_in_use_is_refused,
    a_damaged_folder_is_never_begun_anew,
    changed_best_parameters_are_not_loaded,
    the_best_are_those_that_the_checkpoint_knows,
    a_flag_that_comes_too_late_is_an_error,
    a_moved_folder_is_an_error,
    #[cfg(target_os = "linux")]
    a_full_disk_is_an_error_and_the_checkpoint_stays,
    a_link_that_leads_nowhere_is_named,
    #[cfg(target_os = "linux")]
    a_folder_that_cannot_be_written_is_named_with_a_way_out,
    what_a_launcher_started_does_not_train_alone,
    #[cfg(target_os = "linux")]
    where_candle_computes_on_all_cores_it_is_said,
];

const NEWEST: &str = "checkpoint.safetensors";

/// A place for a folder `runs/own`, in which the program is started.
pub struct Place(pub tempfile::TempDir);

impl Place {
    pub fn new() -> Result<Self> {
        Ok(Self(tempfile::tempdir()?))
    }

    pub fn run_folder(&self) -> PathBuf {
        self.0.path().join("runs/own")
    }

    pub fn command(&self, args: &str) -> Result<Command> {
        let mut command = command("goes_on", args)?;
        command.current_dir(self.0.path()).stdin(Stdio::null());
        Ok(command)
    }

    fn start(&self, args: &str) -> Result<Child> {
        let mut command = self.command(args)?;
        Ok(command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?)
    }

    fn output(&self, args: &str) -> Result<Output> {
        Ok(self.command(args)?.output()?)
    }

    /// What the program says at its end; it has to end well.
    pub fn to_the_end(&self, args: &str) -> Result<Said> {
        Said::of(self.output(args)?).with_context(|| args.to_owned())
    }

    /// The program ends well, and its result is this.
    pub fn ends_with(&self, args: &str, expected: &str) -> Result<Said> {
        let said = self.to_the_end(args)?;
        ensure!(
            said.result == expected,
            "{args}: {}\n{expected}",
            said.result
        );
        Ok(said)
    }

    /// The program ends with an error that has these words.
    fn fails(&self, args: &str, words: &str) -> Result<()> {
        let (status, _, stderr) = ended(self.output(args)?)?;
        ensure!(status == 1, "{args}: {status}: {stderr}");
        has(&stderr, words)
    }

    /// The error with which the program ends before it trains.
    fn refused(&self, args: &str) -> Result<String> {
        let before = self.files()?;
        let (status, stdout, stderr) = ended(self.output(args)?)?;
        ensure!(
            status == 1 && stdout.is_empty(),
            "{args}: {status}\n{stdout}{stderr}"
        );
        ensure!(self.files()? == before, "{args}: another folder");
        Ok(stderr)
    }

    /// The names and contents of all files of the run.
    fn files(&self) -> Result<Vec<(PathBuf, Vec<u8>)>> {
        let mut files = Vec::new();
        if let Ok(entries) = fs::read_dir(self.run_folder()) {
            for entry in entries {
                let path = entry?.path();
                let content = fs::read(&path)?;
                files.push((path, content));
            }
        }
        files.sort();
        Ok(files)
    }

    fn names(&self) -> Result<Vec<String>> {
        let files = self.files()?;
        let names = files.iter().filter_map(|(path, _)| path.file_name());
        Ok(names
            .map(|name| name.to_string_lossy().into_owned())
            .collect())
    }
}

/// What the program said.
pub struct Said {
    /// How many lines of epochs.
    epochs: usize,
    /// The history of the epochs, how often each example was seen, and what tells the bits of all state.
    pub result: String,
    notes: String,
}

impl Said {
    /// It has to have ended well.
    pub fn of(output: Output) -> Result<Self> {
        let (status, stdout, notes) = ended(output)?;
        ensure!(status == 0, "{status}\n{stdout}{notes}");
        let lines = stdout.lines();
        let (epochs, result): (Vec<&str>, Vec<&str>) =
            lines.partition(|line| line.starts_with("epoch "));
        Ok(Self {
            epochs: epochs.len(),
            result: result.join("\n"),
            notes,
        })
    }
}

/// What a run says that nothing disturbs, and how long it takes.
fn undisturbed(args: &str) -> Result<(String, Duration)> {
    let place = Place::new()?;
    let since = Instant::now();
    let said = place.to_the_end(args)?;
    Ok((said.result, since.elapsed()))
}

const LONG: &str = "epochs=40 every=3";

/// The same run again and again, which goes on each time; `runs_are_taken_up` kills the book's program three times.
fn killed_at_random_times() -> Result<()> {
    let (expected, takes) = undisturbed(LONG)?;
    let place = Place::new()?;
    let fractions = d2l::uniform(&mut d2l::rng(3), 0.0, 0.5, times(47))?.to_vec1::<f32>()?;
    let mut killed = 0;
    for fraction in fractions {
        let mut child = place.start(LONG)?;
        std::thread::sleep(takes.mul_f32(fraction));
        child.kill()?;
        killed += usize::from(!child.wait()?.success());
    }
    ensure!(killed > 0, "no run was killed before its end");
    place.ends_with(LONG, &expected)?;
    let again = place.ends_with(LONG, &expected)?;
    ensure!(again.epochs == 0, "it had ended, and trained");
    Ok(())
}

/// A library that is loaded before all others ends the program right after its first operation on a file of the run,
/// another run after the second, and so on; each goes on to the same bits.
#[cfg(target_os = "linux")]
fn killed_after_each_operation_on_a_file() -> Result<()> {
    let args = "epochs=2 every=6 keep=2";
    let (expected, _) = undisturbed(args)?;
    let folder = tempfile::tempdir()?;
    let library = folder.path().join("killed.so");
    let source =
        crate::kit::root().join("tests/claims/ones_own_run_goes_on/killed_at_each_operation.c");
    let mut cc = Command::new("cc");
    let cc = cc
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(source)
        .arg("-ldl");
    ensure!(cc.status().context("no C compiler")?.success());
    let mut operations = 0;
    loop {
        operations += 1;
        let place = Place::new()?;
        let mut command = place.command(args)?;
        command
            .env("LD_PRELOAD", &library)
            .env("OWN_RUN", "runs/own");
        let ended = command
            .env("KILL_AFTER", operations.to_string())
            .output()?
            .status;
        if ended.success() {
            break;
        }
        ensure!(ended.code().is_none(), "operation {operations}: {ended}");
        let said = place.ends_with(args, &expected);
        said.with_context(|| format!("operation {operations}"))?;
        let left = place.names()?;
        let whole = |name: &String| !name.contains("partial") && !name.contains("next");
        ensure!(left.iter().all(whole), "operation {operations}: {left:?}");
    }
    // a save has about ten of them
    ensure!(operations > 40, "only {operations} operations");
    Ok(())
}

/// By SIGTERM, also between the minibatches of a step. The rate that falls on a plateau does not fall twice.
fn asked_to_end_it_sees_each_example_once() -> Result<()> {
    for (more, seen) in [
        ("", "seen 40 to 40"),
        ("by_hand=4", "seen 40 to 40"), // backward and flush, not accumulate
        ("skips=true", "seen 39 to 40"), // a minibatch that cannot be made
    ] {
        let args = format!("epochs=40 every=1000 {more}");
        let (expected, takes) = undisturbed(&args)?;
        has(&expected, seen)?;
        let place = Place::new()?;
        let mut went_on_inside = false;
        // where a disk is slow, a run writes for as long as it trains: so it is asked again until it was inside of an epoch
        for part in 1..=3 * times(4) {
            if went_on_inside && part > times(4) {
                break;
            }
            // nearly all of the time it trains
            let mut child = place.start(&format!("{args} pause=8"))?;
            until_two_checkpoints(&place.run_folder(), &mut child)?; // the first epoch is complete
            let while_it_starts = Duration::from_millis(50);
            let then = takes.mul_f32(0.1 + 0.02 * (part % 5) as f32);
            std::thread::sleep(while_it_starts + then);
            signal("-TERM", child.id())?;
            let status = child.wait()?;
            ensure!(status.success(), "{status}");
            let note = place
                .to_the_end(&format!("epochs=0 cosine=120 {more}"))?
                .notes; // trains nothing
            went_on_inside |= note.contains(" of its minibatches");
        }
        ensure!(went_on_inside, "it always ended between two epochs");
        place.ends_with(&args, &expected)?;
    }
    Ok(())
}

fn gradients_that_wait_are_in_no_checkpoint() -> Result<()> {
    // seven minibatches an epoch: steps of 3, 3 and 1
    let (expected, _) = undisturbed("epochs=30 every=1")?;
    let place = Place::new()?;
    let mut child = place.start("epochs=30 every=1 pause=5")?;
    until_two_checkpoints(&place.run_folder(), &mut child)?;
    signal("-KILL", child.id())?;
    child.wait()?;
    let said = place.ends_with("epochs=30 every=1", &expected)?;
    let places = [
        "after epoch",
        "after 3 of its",
        "after 6 of its",
        "after 7 of its",
    ];
    let known = places.iter().any(|place| said.notes.contains(place));
    ensure!(known, "{}", said.notes);
    Ok(())
}

fn each_other_setting_is_named_and_nothing_changes() -> Result<()> {
    let place = Place::new()?;
    place.to_the_end("epochs=1")?;
    for (other, words) in [
        ("replicas=3", ["\"replicas 2\"", "\"replicas 3\""]),
        ("seed=1", ["\"seed 0\"", "\"seed 1\""]),
        ("sync_bn=true", ["\"sync-bn false\"", "\"sync-bn true\""]),
        ("lr=0.03", ["lr: 0.02", "lr: 0.03"]),
        ("decay=0.5", ["weight_decay: 0.01", "weight_decay: 0.5"]),
        ("accumulate=2", ["\"accumulate 3\"", "\"accumulate 2\""]),
        (
            "clip=2",
            ["\"clip-norm Some(1.0)\"", "\"clip-norm Some(2.0)\""],
        ),
        ("rate=0.25", ["conv.weight 0.5", "conv.weight 0.25"]),
        ("cosine=99", ["\"schedule 0.25", "\"schedule 0.99"]),
        (
            "width=4",
            [
                "conv.weight\" has shape [8, 1, 3, 3]",
                "expected [4, 1, 3, 3]",
            ],
        ),
    ] {
        let said = place.refused(&format!("epochs=1 {other}"))?;
        has(&said, "runs/own holds another run")?;
        for words in words {
            has(&said, words).context(other)?;
        }
    }
    let said = place.refused("epochs=1 replicas=1")?;
    has(
        &said,
        "begin with its parameters: net.load(\"runs/own/best.safetensors\")",
    )?;
    // what only the data tells is known at the first minibatch
    for (other, words) in [
        ("examples=113", ["\"examples 112\"", "\"examples 113\""]),
        ("batch=8", ["\"batch-size 16\"", "\"batch-size 8\""]),
        ("order=5", ["\"order of seed 0\"", "\"order of seed 5\""]),
    ] {
        let said = place.refused(&format!("epochs=2 cosine=3 {other}"))?;
        for words in words {
            has(&said, words).context(other)?;
        }
    }
    // and goes on
    place.to_the_end("epochs=2 cosine=3").map(drop)
}

fn the_last_and_the_best_stay() -> Result<()> {
    let place = Place::new()?;
    for epochs in 1..=4 {
        place.to_the_end(&format!("epochs={epochs} cosine=12 every=1000"))?;
        let expected: Vec<String> = (0..epochs)
            .rev()
            .take(2)
            .map(|epoch| format!("checkpoint-{}.safetensors", 7 * epoch))
            .rev()
            .collect();
        let names = place.names()?;
        let mut others: Vec<String> = names
            .iter()
            .filter(|name| name.starts_with("checkpoint-"))
            .cloned()
            .collect();
        others.sort_by_key(|name| (name.len(), name.clone()));
        ensure!(others == expected, "{epochs}: {names:?}");
        ensure!(names.contains(&"best.safetensors".to_owned()), "{names:?}");
    }
    // with a rate so large that it becomes worse: the best is from before, also after a restart
    let place = Place::new()?;
    let args = |epochs| format!("epochs={epochs} cosine=60 lr=0.08 dropout=0.6");
    let best = |said: &Said| {
        let mut lines = said.result.lines().filter(|line| line.ends_with("true"));
        lines
            .next_back()
            .map(str::to_owned)
            .context("no best epoch")
    };
    let mut before = None;
    let mut worse = 0;
    for epochs in 1..=8 {
        let said = place.to_the_end(&args(epochs))?;
        let (best, parameters) = (
            best(&said)?,
            fs::read(place.run_folder().join("best.safetensors"))?,
        );
        let is_worse = said.result.contains(&format!("\n{epochs} "))
            && !best.starts_with(&format!("{epochs} "));
        if let Some((old_best, old)) = before.filter(|_| is_worse) {
            worse += 1;
            ensure!(best == old_best && parameters == old, "{epochs}: {best}");
        }
        before = Some((best, parameters));
    }
    ensure!(worse > 0, "no epoch was worse");
    Ok(())
}

fn patience_counts_from_the_old_best() -> Result<()> {
    let args = "epochs=60 cosine=60 lr=0.08 dropout=0.6 patience=2";
    let (expected, _) = undisturbed(args)?;
    let epochs = expected
        .lines()
        .filter(|line| line.ends_with("false") || line.ends_with("true"));
    let epochs = epochs.count();
    ensure!(epochs < 60, "it never lost patience");
    // one epoch a start
    let place = Place::new()?;
    for all in 1..=epochs {
        place.to_the_end(&args.replace("epochs=60", &format!("epochs={all}")))?;
    }
    let said = place.ends_with(args, &expected)?;
    ensure!(said.epochs == 0, "it trained on");
    Ok(())
}

fn a_folder_in_use_is_refused() -> Result<()> {
    let place = Place::new()?;
    let (expected, _) = undisturbed("epochs=2")?;
    place.to_the_end("epochs=1 cosine=6")?;
    let mut first = place.start("epochs=2 holds=true")?; // unless another has the folder when it starts
    let in_use = "another run is writing to runs/own; name another folder, or wait for its end";
    let since = Instant::now();
    loop {
        let (status, _, stderr) = ended(place.output("epochs=0 cosine=6")?)?;
        if status == 1 {
            has(&stderr, in_use)?;
            break;
        }
        ensure!(since.elapsed() < Duration::from_secs(60), "{stderr}");
        if first.try_wait()?.is_some() {
            first = place.start("epochs=2 holds=true")?;
        }
    }
    first.kill()?;
    first.wait()?;
    place.ends_with("epochs=2", &expected).map(drop)
}

/// If the newest checkpoint and the one before it are damaged, the error names both; the tests of `training` damage
/// each byte.
fn a_damaged_folder_is_never_begun_anew() -> Result<()> {
    let args = "epochs=3 keep=2";
    let (expected, _) = undisturbed(args)?;
    let place = Place::new()?;
    place.to_the_end("epochs=2 keep=2 cosine=9")?;
    let newest = place.run_folder().join(NEWEST);
    let damage = |path: &Path| -> Result<()> {
        let mut bytes = fs::read(path)?;
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        Ok(fs::write(path, bytes)?)
    };
    damage(&newest)?;
    let older = older_checkpoint(&place.run_folder()).context("one checkpoint alone")?;
    let whole_older = fs::read(&older)?;
    damage(&older)?;
    let said = place.refused(args)?;
    for file in [&newest, &older] {
        let name = file
            .file_name()
            .and_then(|name| name.to_str())
            .context("no name")?;
        has(&said, name)?;
    }
    fs::write(&older, whole_older)?;
    let said = place.ends_with(args, &expected)?;
    has(&said.notes, "an older checkpoint is taken")?;
    // the best parameters of a run whose checkpoints are gone
    let place = Place::new()?;
    fs::create_dir_all(place.run_folder())?;
    fs::write(place.run_folder().join("best.safetensors"), "of a long run")?;
    let words = "best.safetensors is there and no checkpoint of its run";
    has(&place.refused("epochs=1")?, words)
}

/// A byte of the best parameters, which have no checksum in their file, because other programs read it.
fn changed_best_parameters_are_not_loaded() -> Result<()> {
    let place = Place::new()?;
    place.to_the_end("epochs=2 keep=1")?;
    let best = place.run_folder().join("best.safetensors");
    let mut bytes = fs::read(&best)?;
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&best, bytes)?;
    let words = "best.safetensors: the parameters are not those that this run wrote";
    place.fails("epochs=2 keep=1", words)
}

/// A run that was killed after the checkpoint of its best epoch, before the parameters of that epoch had their name; and
/// one that was killed before that checkpoint.
fn the_best_are_those_that_the_checkpoint_knows() -> Result<()> {
    let place = Place::new()?;
    let folder = place.run_folder();
    let (best, next) = (
        folder.join("best.safetensors"),
        folder.join("best.next.safetensors"),
    );
    place.to_the_end("epochs=1 cosine=9")?;
    let of_first = fs::read(&best)?;
    let expected = place.to_the_end("epochs=2 cosine=9")?.result;
    let of_second = fs::read(&best)?;
    ensure!(of_first != of_second, "the second epoch is not the best");
    fs::rename(&best, &next)?;
    fs::write(&best, &of_first)?;
    for left in [None, Some(&of_first)] {
        if let Some(left) = left {
            fs::write(&next, left)?;
        }
        place.ends_with("epochs=2 cosine=9", &expected)?;
        ensure!(fs::read(&best)? == of_second, "another best");
    }
    Ok(())
}

/// Otherwise a signal would be heard, and nothing would end.
fn a_flag_that_comes_too_late_is_an_error() -> Result<()> {
    let place = Place::new()?;
    let words = "give the trainer its flag before Checkpoints::open";
    place.fails("epochs=2 late=true", words)
}

fn a_moved_folder_is_an_error() -> Result<()> {
    let place = Place::new()?;
    let mut command = place.command("epochs=100000 every=1")?;
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    until_two_checkpoints(&place.run_folder(), &mut child)?;
    let elsewhere = place.0.path().join("runs/elsewhere");
    fs::rename(place.run_folder(), &elsewhere)?;
    let (status, _, stderr) = ended(child.wait_with_output()?)?;
    ensure!(status == 1, "{status}: {stderr}");
    has(
        &stderr,
        "runs/own was moved, removed or replaced during the run",
    )?;
    ensure!(!place.run_folder().exists(), "it was made again");
    ensure!(elsewhere.join(NEWEST).exists() || older_checkpoint(&elsewhere).is_some());
    Ok(())
}

/// On a disk of its own, in a mount namespace.
#[cfg(target_os = "linux")]
fn a_full_disk_is_an_error_and_the_checkpoint_stays() -> Result<()> {
    let args = "epochs=30 every=1";
    let (expected, _) = undisturbed(args)?;
    let place = Place::new()?;
    fs::create_dir(place.0.path().join("runs"))?;
    let script = format!(
        "mount -t tmpfs -o size=1m none runs || exit 99\n\
         $PROGRAM {args} pause=5 > /dev/null 2> error & run=$!\n\
         until ls runs/own/checkpoint-*.safetensors > /dev/null 2>&1; do kill -0 $run || exit 98; sleep 0.001; done\n\
         cat /dev/zero > runs/filler 2> /dev/null\n\
         wait $run; [ $? = 1 ] || exit 97\n\
         rm runs/filler\n\
         $PROGRAM {args} > result 2> notes || exit 96"
    );
    let mut script = crate::kit::in_a_namespace("goes_on", &script)?;
    let status = script.current_dir(place.0.path()).status()?;
    let read = |name| fs::read_to_string(place.0.path().join(name)).unwrap_or_default();
    ensure!(
        status.success(),
        "{status}\n{}{}",
        read("error"),
        read("notes")
    );
    has(&read("error"), "cannot write runs/own/")?;
    has(&read("error"), "No space left on device")?;
    has(&read("notes"), "runs/own goes on ")?;
    let result = read("result");
    let result: Vec<&str> = result
        .lines()
        .filter(|line| !line.starts_with("epoch "))
        .collect();
    ensure!(result.join("\n") == expected, "{result:?}\n{expected}");
    Ok(())
}

/// As where its disk is not mounted.
fn a_link_that_leads_nowhere_is_named() -> Result<()> {
    let place = Place::new()?;
    std::os::unix::fs::symlink("/no/such/disk", place.0.path().join("runs"))?;
    let said = place.refused("epochs=1")?;
    has(
        &said,
        "cannot make the folder runs/own: runs is a link to /no/such/disk, which is not there",
    )
}

/// Such as the input of a notebook on the web.
#[cfg(target_os = "linux")]
fn a_folder_that_cannot_be_written_is_named_with_a_way_out() -> Result<()> {
    let place = Place::new()?;
    place.to_the_end("epochs=1 cosine=9")?;
    let script = "mount --bind runs runs && mount -o remount,bind,ro runs || exit 99\n\
                  $PROGRAM epochs=1 cosine=9 || exit 98\n\
                  $PROGRAM epochs=2 cosine=9";
    let mut script = crate::kit::in_a_namespace("goes_on", script)?;
    let (status, _, stderr) = ended(script.current_dir(place.0.path()).output()?)?;
    ensure!(status == 1, "{status}: {stderr}");
    has(&stderr, "Read-only file system")?;
    has(
        &stderr,
        "; copy the folder to a place that can be written, and name the copy",
    )
}

/// Without MPI each process would train by itself, in the same folder.
fn what_a_launcher_started_does_not_train_alone() -> Result<()> {
    for variable in [
        "OMPI_COMM_WORLD_SIZE",
        "PMI_SIZE",
        "SLURM_STEP_NUM_TASKS",
        "MV2_COMM_WORLD_SIZE",
        "JSM_NAMESPACE_SIZE",
        "FLUX_JOB_SIZE",
        "WORLD_SIZE",
    ] {
        let place = Place::new()?;
        let mut two = place.command("")?;
        // torchrun sets both
        let output = two.env("RANK", "0").env(variable, "2").output()?;
        let (status, stdout, stderr) = ended(output)?;
        ensure!(
            status == 1 && stdout.is_empty(),
            "{variable}: {status}\n{stdout}{stderr}"
        );
        has(&stderr, &format!("{variable} is 2"))?;
        ensure!(
            fs::read_dir(place.0.path())?.count() == 0,
            "something was written"
        );
        let one = place.command("epochs=1")?.env(variable, "1").output()?;
        ensure!(one.status.success(), "{variable}=1");
    }
    let alone = |variables: &[(&str, &str)]| -> Result<Output> {
        let place = Place::new()?;
        let mut command = place.command("epochs=1")?;
        Ok(command.envs(variables.iter().copied()).output()?)
    };
    // of a script that Slurm has started, and not srun; of a program that is not PyTorch's
    for variable in [
        ("SLURM_NTASKS", "4"),
        ("WORLD_SIZE", "2"),
        ("PMIX_RANK", "0"),
    ] {
        ensure!(alone(&[variable])?.status.success(), "{variable:?}");
    }
    // PMIx says no number
    let (_, _, stderr) = ended(alone(&[("PMIX_RANK", "1")])?)?;
    has(&stderr, "PMIX_RANK is 1")?;
    // srun has started one, and that one torchrun
    let (slurm, torchrun) = (("SLURM_STEP_NUM_TASKS", "1"), ("WORLD_SIZE", "2"));
    let (_, _, stderr) = ended(alone(&[slurm, torchrun, ("RANK", "1")])?)?;
    has(&stderr, "WORLD_SIZE is 2")
}

/// candle reads how many threads it has once, and the variable cannot be set while other threads run.
#[cfg(target_os = "linux")]
fn where_candle_computes_on_all_cores_it_is_said() -> Result<()> {
    let warns = |args: &str, variable: Option<&str>| -> Result<String> {
        let place = Place::new()?;
        let mut command = place.command(&format!("warns=true {args}"))?;
        command.env_remove("CANDLE_NUM_THREADS");
        command.envs(variable.map(|threads| ("CANDLE_NUM_THREADS", threads)));
        let (status, stdout, stderr) = ended(command.output()?)?;
        ensure!(status == 0, "{status}: {stderr}");
        Ok(stdout)
    };
    let line = "candle computes its operations on all cores, beside the replicas";
    has(&warns("thread=true", None)?, line)?;
    for (args, variable) in [("", None), ("thread=true", Some("1"))] {
        let said = warns(args, variable)?;
        ensure!(!said.contains(line), "{args} {variable:?}: {said}");
    }
    // candle starts its threads where there are several cores
    if std::thread::available_parallelism()?.get() > 1 {
        has(&warns("candle=true", None)?, line)?;
    }
    Ok(())
}
