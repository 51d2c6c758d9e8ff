//! Processes that mpirun starts train as the replicas of one process do, and one that is in trouble
//! ends all.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::a_failing_replica_ends_the_run::VARIABLE;
use crate::kit::{ended, has, root, signal, succeeds, until, until_there, until_two_checkpoints};
use crate::ones_own_run_goes_on::{Place, Said};

trials![
    where_replicas_are_changes_no_bit,
    the_steps_of_the_chapter_too,
    settings_that_differ_are_named,
    a_process_that_is_killed_ends_all,
    a_process_that_stops_is_named_in_time,
    a_job_that_was_stopped_goes_on,
    a_process_that_is_asked_to_end_ends_all_in_order,
    a_job_that_is_asked_to_end_leaves_a_checkpoint,
    a_process_that_cannot_go_on_ends_all,
    a_replica_that_stands_still_ends_all,
    sums_in_another_order_do_not_go_on,
    ones_own_program_has_the_same_bits,
    ones_own_program_goes_on_whichever_process_is_killed,
    ones_own_program_ends_in_order_whichever_process_is_asked,
    only_the_first_process_needs_the_folder,
    an_error_of_ones_own_in_one_process_ends_all,
    processes_that_do_not_know_each_other_are_refused,
    processes_that_do_not_do_the_same_are_refused,
];

/// `mpirun -n …`, to which programs are added. It ends by itself if the test cannot end it.
fn mpirun() -> Command {
    let mut command = Command::new("mpirun");
    command
        .args("--timeout 100 --oversubscribe --bind-to none --mca plm isolated".split(' '))
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("RUST_BACKTRACE", "0");
    command
}

/// What starts `args…` as a program of this binary.
pub fn as_program(args: &str) -> Result<Vec<String>> {
    let program = std::env::current_exe()?.display().to_string();
    let start = [program, "--as".to_owned()].into_iter();
    let args = args.split_whitespace().map(str::to_owned);
    Ok(start.chain(args).collect())
}

/// The arguments that start `processes` of them.
fn of(processes: usize, args: &str) -> Result<Vec<String>> {
    let count = ["-n".to_owned(), processes.to_string()];
    Ok(count.into_iter().chain(as_program(args)?).collect())
}

fn under_mpirun(processes: usize, args: &str) -> Result<(i32, String, String)> {
    let output = mpirun().args(of(processes, args)?).output();
    ended(output.context("mpirun cannot be started: install openmpi-bin and libopenmpi-dev")?)
}

/// A job ends with this status, and says this.
fn ends((found, _, stderr): (i32, String, String), status: i32, words: &str) -> Result<()> {
    ensure!(found == status, "status {found}\n{stderr}");
    has(&stderr, words)
}

/// A run of `concise` under mpirun that leaves a folder.
fn leaves(folder: &Path, processes: usize, args: &str) -> Result<()> {
    let args = format!("{args} --out {} --overwrite", folder.display());
    let job = under_mpirun(processes, &format!("concise --backend mpi {args}"))?;
    ends(job, 0, "")
}

/// Where replicas are changes no bit: 1 + 1, 2 + 2, 2 + 1 + 1, also with a sum in rank order.
fn where_replicas_are_changes_no_bit() -> Result<()> {
    same_as_in_one_process(2, SMALL, |folder| leaves(folder, 2, SMALL))?;
    let four = format!("{SMALL} --gpus 4");
    same_as_in_one_process(4, SMALL, |folder| leaves(folder, 2, &four))?;
    same_as_in_one_process(4, SMALL, |folder| leaves(folder, 3, &four))?;
    let split = format!("{SMALL} --split 2,1,1");
    same_as_in_one_process(3, &split, |folder| {
        leaves(folder, 2, &format!("{split} --gpus 3"))
    })?;
    same_as_in_one_process(3, &split, |folder| {
        leaves(folder, 1, &format!("{split} --gpus 3"))
    })?;
    let star = format!("{SMALL} --allreduce star --momentum 0.9");
    same_as_in_one_process(4, &star, |folder| {
        leaves(folder, 3, &format!("{star} --gpus 4"))
    })
}

/// Two processes, of which the second has one more option, refuse to train and say why.
fn refused_because_of(option: &str, words: &str) -> Result<()> {
    let args = format!("concise --backend mpi {SMALL}");
    let (one, other) = (of(1, &args)?, of(1, &format!("{args} {option}"))?);
    let output = mpirun().args(one).arg(":").args(other).output()?;
    ends(ended(output)?, 2, words)
}

/// Two processes, with three replicas and with one, are four replicas of one, in each step of the chapter `seven-diffs`.
fn the_steps_of_the_chapter_too() -> Result<()> {
    let squares = |said: &str| Some(said.split_once("|w|² ")?.1.trim().to_owned());
    for step in &seven_diffs::program::STEPS[5..] {
        let [one, _] = succeeds("seven-diffs", &format!("{step} 4 3"))?;
        let [first, second] = [3, 1].map(|k| as_program(&format!("seven-diffs {step} {k} 3")));
        let mut job = mpirun();
        job.args(["-n", "1"]).args(first?);
        job.args([":", "-n", "1"]).args(second?);
        let (status, several, stderr) = ended(job.output()?)?;
        ensure!(status == 0, "status {status}\n{stderr}");
        let ends: Vec<_> = several.lines().map(squares).collect();
        let same = ends
            .iter()
            .all(|end| end.is_some() && *end == squares(&one));
        ensure!(ends.len() == 2 && same, "{one}{several}");
    }
    Ok(())
}

fn settings_that_differ_are_named() -> Result<()> {
    let words =
        r#"the processes have different settings: process 0 has "seed 0", process 1 has "seed 3""#;
    refused_because_of("--seed 3", words)
}

fn a_process_that_cannot_go_on_ends_all() -> Result<()> {
    refused_because_of("--init /no/such/file", "process 1: --init /no/such/file")
}

/// Options of a run that would take minutes.
pub const LONG: &str = "concise --backend mpi --device cpu --data synthetic --limit-train 2000 \
                        --limit-test 20 --batch-size 16 --threads 1";

/// Such a run, and its processes once they train.
fn training(args: &str) -> Result<(Child, Vec<u32>)> {
    let mut mpirun = mpirun()
        .args(of(3, &format!("{LONG} {args}"))?)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (job, mut ranks) = (mpirun.id(), Vec::new());
    let started = until_they_train(&mut mpirun, 3, || {
        ranks = children(job);
        ranks.iter().filter(|pid| trains(**pid)).count()
    });
    if let Err(error) = started {
        signal("-TERM", job)?;
        let (_, stdout, stderr) = ended(mpirun.wait_with_output()?)?;
        bail!("{error}\n{stdout}{stderr}");
    }
    Ok((mpirun, ranks))
}

/// Waits until so many processes of a job train.
pub fn until_they_train(
    job: &mut Child,
    processes: usize,
    mut count: impl FnMut() -> usize,
) -> Result<()> {
    until(|| count() == processes, "training", job)
}

/// Minibatches are made once there is a network.
pub fn trains(process: u32) -> bool {
    threads_of(process).iter().any(|name| name == "minibatches")
}

/// How long after `start` the processes had ended. mpirun does not wait for those that it kills.
pub fn all_are_gone(processes: &[u32], start: Instant) -> Result<Duration> {
    while let Some(left) = processes.iter().find(|pid| threads_of(**pid).len() > 1) {
        if start.elapsed() > Duration::from_secs(30) {
            signal("-KILL", *left)?;
            bail!("process {left} is left");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(start.elapsed())
}

pub fn children(of: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        after_name.split_whitespace().nth(1) == Some(&of.to_string())
    };
    let mut children: Vec<u32> = pids.filter(is_child).collect();
    children.sort();
    children
}

/// Sends `name` to the second process; how the job ended, and after how long.
fn after_a_signal(args: &str, name: &str) -> Result<(i32, String, Duration)> {
    let (mpirun, ranks) = training(args)?;
    let start = Instant::now();
    signal(name, ranks[1])?;
    let (status, stdout, stderr) = ended(mpirun.wait_with_output()?)?;
    let took = all_are_gone(&ranks, start).with_context(|| stderr.clone())?;
    Ok((status, stdout + &stderr, took))
}

/// After the signal `name` all end soon, not well, and with `words` about the second process.
fn all_end_soon(args: &str, name: &str, words: &str) -> Result<()> {
    let (status, output, took) = after_a_signal(args, name)?;
    let soon = took < Duration::from_secs(30);
    ensure!(status != 0 && soon, "{status}, {took:?}");
    ensure!(output.contains(words), "{output}");
    Ok(())
}

fn a_process_that_is_killed_ends_all() -> Result<()> {
    all_end_soon("", "-KILL", "rank 1")
}

fn a_process_that_stops_is_named_in_time() -> Result<()> {
    all_end_soon("--timeout 5", "-STOP", "rank 1 did not arrive within 5s")
}

/// For longer than its processes wait for each other, as with Ctrl-Z.
fn a_job_that_was_stopped_goes_on() -> Result<()> {
    let (mpirun, ranks) = training("--timeout 5")?;
    for (how, seconds) in [("-STOP", 8), ("-CONT", 1)] {
        ranks.iter().try_for_each(|rank| signal(how, *rank))?;
        std::thread::sleep(Duration::from_secs(seconds));
    }
    signal("-TERM", ranks[1])?;
    let (status, stdout, stderr) = ended(mpirun.wait_with_output()?)?;
    ensure!(status == 130, "status {status}\n{stdout}{stderr}");
    Ok(())
}

fn a_process_that_is_asked_to_end_ends_all_in_order() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("run");
    let (status, output, _) = after_a_signal(&format!("--out {}", out.display()), "-TERM")?;
    ensure!(status == 130, "status {status}\n{output}");
    ensure!(output.contains("interrupted in epoch 1"), "{output}");
    ensure!(out.join("model.safetensors").is_file());
    Ok(())
}

/// `mpirun` passes SIGUSR1 on, and the run goes on to the bit. SIGTERM it sends itself, and the page has the option with
/// which it then waits for the processes; here for less time.
fn a_job_that_is_asked_to_end_leaves_a_checkpoint() -> Result<()> {
    const WAITS: &str = "--mca odls_base_sigkill_timeout";
    let page = fs::read_to_string(root().join("notebooks-md/several-machines.md"))?;
    ensure!(page.contains(WAITS), "the page has another option");
    let asked_to_end = |name: &str, mca: &str, args: &str, folder: &Path| -> Result<i32> {
        let begin = format!("{args} --gpus 2 --out {}", folder.display());
        let mut job = mpirun();
        job.args(mca.split_whitespace()).args(of(2, &begin)?);
        let mut job = job.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        until_there(&folder.join("steps.csv"), &mut job)?;
        signal(name, job.id())?;
        let (status, stdout, stderr) = ended(job.wait_with_output()?)?;
        let says = has(&stdout, "\ninterrupted in epoch 1 of ");
        says.with_context(|| format!("{name}: status {status}\n{stderr}"))?;
        Ok(status)
    };
    let args = SMALL.replace("--limit-train 34", "--limit-train 320");
    same_as_in_one_process(2, &args, |folder| {
        let begin = format!("concise --backend mpi {args}");
        let status = asked_to_end("-USR1", "", &begin, folder)?;
        ensure!(status == 130, "{status}");
        let go_on = format!("concise --backend mpi --resume {}", folder.display());
        let (status, stdout, stderr) = under_mpirun(2, &go_on)?;
        ensure!(status == 0, "{status}\n{stdout}{stderr}");
        Ok(())
    })?;
    let folder = tempfile::tempdir()?;
    let run = folder.path().join("run");
    asked_to_end("-TERM", &format!("{WAITS} 30"), LONG, &run)?;
    ensure!(run.join("model.safetensors").is_file(), "it was killed");
    Ok(())
}

/// Its own process too, which has no other replica to wait for it.
fn a_replica_that_stands_still_ends_all() -> Result<()> {
    let args = format!("concise --backend mpi {SMALL} --timeout 5");
    for culprit in [0, 1] {
        let mut mpirun = mpirun();
        for rank in 0..2 {
            let fault = match rank == culprit {
                true => "forward,1,cpu(0),1,3600",
                false => "",
            };
            let separator = (rank > 0).then_some(":");
            mpirun.args(separator).args(["-n", "1", "env"]);
            mpirun.args((!fault.is_empty()).then(|| format!("{VARIABLE}={fault}")));
            mpirun.args(as_program(&args)?);
        }
        let words = format!("rank {culprit} did not arrive within 5s");
        ends(ended(mpirun.output()?)?, 1, &words)?;
    }
    Ok(())
}

/// A ring is another order than the one of all layouts.
fn sums_in_another_order_do_not_go_on() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("run");
    let ring = format!("{SMALL} --gpus 3 --allreduce ring --out {}", out.display());
    succeeds("concise", &ring)?;
    let go_on = format!("concise --backend mpi --resume {}", out.display());
    let words = "--allreduce ring: a ring sums within one process";
    ends(under_mpirun(2, &go_on)?, 2, words)?;
    let auto = under_mpirun(2, &format!("{go_on} --allreduce auto"))?;
    ends(
        auto.clone(),
        2,
        "has \"summed in the order of ring in buckets of ",
    )?;
    ends(auto, 2, "this one \"summed in the order of ranks\"")
}

/// Options of three steps on several processes: the last is on two examples, of which some have none.
pub const SMALL: &str = "--device cpu --data synthetic --limit-train 34 --limit-test 21 --epochs 1 \
                     --batch-size 16 --lr 0.01 --sync-bn";

/// A run of `concise` with `k` replicas in one process, and what `several` processes with one each leave in a
/// folder: they are the same.
fn same_as_in_one_process(
    k: usize,
    args: &str,
    several: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [one, others] = ["one", "several"].map(|name| folder.path().join(name));
    let args = format!("{args} --gpus {k} --out {}", one.display());
    succeeds("concise", &args)?;
    several(&others)?;
    same_runs(&one, &others).with_context(|| format!("k = {k}"))
}

/// Runs that have left the same in their folders, losses and parameters to the bit.
pub fn same_runs(a: &Path, b: &Path) -> Result<()> {
    let text = |folder: &Path, name| fs::read_to_string(folder.join(name));
    let (losses, others) = (text(a, "steps.csv")?, text(b, "steps.csv")?);
    ensure!(losses == others, "other losses:\n{losses}\n{others}");
    let model = |folder: &Path| fs::read(folder.join("model.safetensors"));
    ensure!(model(a)? == model(b)?, "other bits");
    let accuracy = |folder| -> Result<String> {
        let epochs = text(folder, "epochs.csv")?;
        let line = epochs.lines().nth(1).context("no epoch")?;
        Ok(line.split(',').nth(2).unwrap_or("").into())
    };
    ensure!(accuracy(a)? == accuracy(b)?, "another accuracy");
    Ok(())
}

/// The names of the threads of a process.
pub fn threads_of(pid: u32) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let name = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("comm")).ok();
    let names = threads.filter_map(name);
    names.map(|name| name.trim().to_owned()).collect()
}

const OWN: &str = "epochs=30 every=3 replicas=3";

/// Two or more processes of a user's own program, in a folder.
fn own_job(processes: usize, args: &str, place: &Place) -> Result<Command> {
    let mut job = mpirun();
    job.args(of(processes, &format!("goes_on {args}"))?);
    job.current_dir(place.0.path());
    Ok(job)
}

fn own_under_mpirun(processes: usize, args: &str, place: &Place) -> Result<String> {
    Ok(Said::of(own_job(processes, args, place)?.output()?)?.result)
}

/// With `launch`, three replicas in one process, in two and in three.
fn ones_own_program_has_the_same_bits() -> Result<()> {
    for args in [OWN.to_owned(), format!("{OWN} sync_bn=true epochs=6")] {
        let expected = Place::new()?.to_the_end(&args)?.result;
        has(&expected, "bits ")?;
        for processes in [2, 3] {
            let said = own_under_mpirun(processes, &args, &Place::new()?)?;
            ensure!(
                said == expected,
                "{processes} processes: {said}\n{expected}"
            );
        }
    }
    Ok(())
}

fn ones_own_program_goes_on_whichever_process_is_killed() -> Result<()> {
    let expected = Place::new()?.to_the_end(OWN)?.result;
    for rank in [0, 1] {
        let place = Place::new()?;
        for _ in 0..2 {
            let mut job = own_job(2, &format!("{OWN} pause=10"), &place)?
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?;
            let id = job.id();
            until_two_checkpoints(&place.run_folder(), &mut job)?;
            until(|| children(id).len() >= 2, "second process", &mut job)?;
            std::thread::sleep(Duration::from_millis(300)); // of two seconds
            signal("-KILL", children(id)[rank])?;
            ensure!(!job.wait()?.success(), "the others went on without it");
        }
        if rank == 0 {
            let said = own_under_mpirun(2, OWN, &place)?;
            ensure!(said == expected, "{said}\n{expected}");
        } else {
            place.ends_with(OWN, &expected)?;
        }
    }
    Ok(())
}

fn ones_own_program_ends_in_order_whichever_process_is_asked() -> Result<()> {
    let args = format!("{OWN} every=100000");
    let expected = Place::new()?.to_the_end(&args)?.result;
    for rank in [0, 1] {
        let place = Place::new()?;
        let mut job = own_job(2, &args, &place)?
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        // an epoch has ended, so all processes train
        until_there(&place.run_folder().join("checkpoint.safetensors"), &mut job)?;
        signal("-TERM", children(job.id())[rank])?;
        let (status, _, stderr) = ended(job.wait_with_output()?)?;
        ensure!(status == 0, "{status}: {stderr}");
        place.ends_with(&args, &expected)?;
    }
    Ok(())
}

/// The second one is in another folder, as on a host that does not share its disk.
fn only_the_first_process_needs_the_folder() -> Result<()> {
    let (first, second) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let run = |args: &str| -> Result<String> {
        let mut job = mpirun();
        for (i, place) in [&first, &second].into_iter().enumerate() {
            job.args((i > 0).then_some(":"));
            let place = place.path().display().to_string();
            job.args(["-n", "1", "--wdir", &place])
                .args(as_program(&format!("goes_on {args}"))?);
        }
        Ok(Said::of(job.output()?)?.result)
    };
    run(&format!("{OWN} epochs=7 cosine=90"))?;
    let said = run(OWN)?;
    let expected = Place::new()?.to_the_end(OWN)?.result;
    ensure!(said == expected, "{said}\n{expected}");
    ensure!(
        fs::read_dir(second.path())?.count() == 0,
        "the second wrote something"
    );
    Ok(())
}

fn an_error_of_ones_own_in_one_process_ends_all() -> Result<()> {
    for (how, words) in [
        ("error", "rank 1 has failed: it cannot go on"),
        ("panic", "rank 1 has panicked"),
    ] {
        let place = Place::new()?;
        let mut job = own_job(2, &format!("{OWN} {how}=1"), &place)?;
        let since = Instant::now();
        let (status, _, stderr) = ended(job.output()?)?;
        ensure!(
            status == if how == "error" { 1 } else { 101 },
            "{how}: {status}\n{stderr}"
        );
        has(&stderr, words)?;
        ensure!(
            since.elapsed() < Duration::from_secs(30),
            "{how}: {:?}",
            since.elapsed()
        );
    }
    Ok(())
}

/// Each sees itself alone, as where the launcher belongs to another MPI.
fn processes_that_do_not_know_each_other_are_refused() -> Result<()> {
    let place = Place::new()?;
    let output = place.command(OWN)?.env("PMI_SIZE", "2").output()?;
    let (status, _, stderr) = ended(output)?;
    ensure!(status == 1, "{status}: {stderr}");
    has(&stderr, "PMI_SIZE is 2, and MPI sees 1")?;
    ensure!(
        fs::read_dir(place.0.path())?.count() == 0,
        "something was written"
    );
    // and without --backend mpi
    ends(
        under_mpirun(2, &format!("concise {SMALL}"))?,
        2,
        "OMPI_COMM_WORLD_SIZE is 2",
    )
}

/// A score of one's own in each; a loop over data that was not cut.
fn processes_that_do_not_do_the_same_are_refused() -> Result<()> {
    let whole = format!("{OWN} whole=true");
    for (args, words) in [
        (
            &format!("{OWN} spread=0.5"),
            "the processes have different scores",
        ),
        (
            &whole,
            "processes 0 and 1 train on the same minibatch: net.part(data)",
        ),
    ] {
        let output = own_job(2, args, &Place::new()?)?.output()?;
        ends(ended(output)?, 1, words)?;
    }
    Place::new()?.to_the_end(&whole).map(drop)
}
