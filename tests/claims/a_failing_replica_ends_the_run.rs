//! A replica that fails, in whatever phase of a step, ends the run: within seconds, with exit status 1 and a line
//! that names its device; and what was kept goes on to the end that it would have reached.
//!
//! The phases are the spans of the crates, which `crates/run/src/timeline` lists. A process of this binary that
//! listens to them panics as it enters one, so that the programs need no hook for it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use candle_core::Tensor;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::kit::{command, copies, cpus, formula_batch, has, succeeds};
#[cfg(unix)]
use crate::kit::{signal, start, until_two_checkpoints};

trials![
    one_of_several_in_every_phase,
    what_was_kept_goes_on,
    one_that_stands_still_ends_the_run_too,
    #[cfg(unix)]
    a_process_that_was_stopped_goes_on,
    who_wants_a_backtrace_gets_one,
    a_label_that_is_no_class_names_the_device,
];

/// The environment variable that says where a process is to fail.
pub const VARIABLE: &str = "CLAIMS_FAULT";
/// What the process writes as it fails: from there on the clock runs.
const FAILS: &str = "here it fails";
/// How long a run may take to end.
const LIMIT: Duration = Duration::from_secs(5);
const NAMES: [&str; 6] = [
    "split",
    "forward",
    "backward",
    "all-reduce",
    "update",
    "evaluate",
];

/// Where and how a process fails.
struct Fault {
    /// The name of a span; `infer` is a `forward` within `evaluate`.
    phase: String,
    /// The span begins after so many minibatches have been split.
    splits: usize,
    /// The name of the span's thread begins with this.
    thread: String,
    /// The number of the span among all such spans, from 1.
    nth: usize,
    /// How many seconds the thread sleeps there; 0 means that it panics.
    seconds: u64,
}

/// A process that is to fail listens to the spans from here on.
pub fn listen() {
    if let Ok(text) = std::env::var(VARIABLE) {
        let listener = Listener {
            fault: Fault::read(&text).expect("a fault"),
            splits: AtomicUsize::new(0),
            seen: AtomicUsize::new(0),
            evaluating: AtomicUsize::new(0),
        };
        tracing::subscriber::set_global_default(listener).expect("no other subscriber");
    }
}

impl Fault {
    /// `PHASE,SPLITS,THREAD,NTH,SECONDS`
    fn read(text: &str) -> Result<Self> {
        let words: Vec<&str> = text.split(',').collect();
        let [phase, splits, thread, nth, seconds] = words[..] else {
            bail!("{VARIABLE}: {text:?}");
        };
        Ok(Self {
            phase: phase.to_owned(),
            splits: splits.parse()?,
            thread: thread.to_owned(),
            nth: nth.parse()?,
            seconds: seconds.parse()?,
        })
    }

    fn happen(&self) {
        eprintln!("{FAILS}");
        match self.seconds {
            0 => panic!("a fault in {}", self.phase),
            seconds => thread::sleep(Duration::from_secs(seconds)),
        }
    }
}

/// Hears the spans of the phases, and counts.
struct Listener {
    fault: Fault,
    splits: AtomicUsize,
    evaluating: AtomicUsize,
    seen: AtomicUsize,
}

impl Listener {
    fn is_meant(&self, name: &str) -> bool {
        let thread = thread::current();
        let thread = thread.name().unwrap_or_default();
        let is_the_phase = match self.fault.phase.as_str() {
            "infer" => name == "forward" && self.evaluating.load(SeqCst) > 0,
            phase => name == phase,
        };
        is_the_phase
            && thread.starts_with(&self.fault.thread)
            && self.splits.load(SeqCst) >= self.fault.splits
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && NAMES.contains(&metadata.name())
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let name = span.metadata().name();
        let index = NAMES.iter().position(|n| *n == name);
        Id::from_u64(index.expect("it is enabled") as u64 + 1)
    }

    fn enter(&self, id: &Id) {
        let name = name(id);
        match name {
            "split" => _ = self.splits.fetch_add(1, SeqCst),
            "evaluate" => _ = self.evaluating.fetch_add(1, SeqCst),
            _ => (),
        }
        if self.is_meant(name) && self.seen.fetch_add(1, SeqCst) + 1 == self.fault.nth {
            self.fault.happen();
        }
    }

    fn exit(&self, id: &Id) {
        if name(id) == "evaluate" {
            self.evaluating.fetch_sub(1, SeqCst);
        }
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
}

fn name(id: &Id) -> &'static str {
    NAMES[id.into_u64() as usize - 1]
}

/// Two steps, each with two examples for each of four replicas, and an evaluation.
const SMALL: &str = "--device cpu --data synthetic --limit-train 16 --limit-test 8 --epochs 1 \
                     --batch-size 8 --lr 0.01 --threads 2";

/// A fault of one of `k` replicas in the second step, or in the evaluation after it, and what the run says of it.
type Case = (String, String);

fn faults_by_hand(k: usize) -> Vec<Case> {
    let all = d2l::device_names(&cpus(k));
    // which replica a thread of rayon has is not known
    vec![
        ("split,2,main,1".into(), format!("on {all}")),
        ("forward,2,worker,1".into(), "replica cpu(".into()),
        (format!("backward,2,worker,{k}"), "replica cpu(".into()),
        ("all-reduce,2,main,3".into(), format!("on {all}")),
        (format!("update,2,worker,{k}"), "replica cpu(".into()),
        ("evaluate,2,main,1".into(), "evaluation on [cpu(0)]".into()),
        ("infer,2,main,1".into(), "evaluation on [cpu(0)]".into()),
    ]
}

fn faults_of_concise(k: usize) -> Vec<Case> {
    let (all, last) = (d2l::device_names(&cpus(k)), format!("cpu({})", k - 1));
    let replica = format!("replica {last}");
    let of_last = |phase| (format!("{phase},2,{last},1"), replica.clone());
    vec![
        ("split,2,main,1".into(), format!("split on {all}")),
        of_last("forward"),
        of_last("backward"),
        of_last("all-reduce"),
        of_last("update"),
        (format!("infer,2,{last},1"), replica.clone()),
        // the main thread, which calls the replicas, is no replica
        ("evaluate,2,main,1".into(), String::new()),
    ]
}

fn one_of_several_in_every_phase() -> Result<()> {
    // they wait for each other in these phases too; three replicas have two cores: one that waits has to yield its own
    for (k, more) in [(2, "--momentum 0.9"), (3, "--sync-bn --timeout 60")] {
        let args = format!("{SMALL} --gpus {k}");
        for fault in faults_by_hand(k) {
            a_fault_ends("scratch", &args, &fault)?;
        }
        for fault in faults_of_concise(k) {
            a_fault_ends("concise", &format!("{args} {more}"), &fault)?;
        }
    }
    Ok(())
}

fn a_fault_ends(program: &str, args: &str, (fault, words): &Case) -> Result<()> {
    let said = fails(&mut with(program, args, &format!("{fault},0"))?, LIMIT);
    let said = said.with_context(|| format!("{program} {args}, {fault}"))?;
    let phase = fault.split(',').next().unwrap_or_default();
    let begin = format!("error: {words}");
    let end = format!("it panicked: a fault in {phase}");
    let named = said.len() == 1 && said[0].starts_with(&begin) && said[0].contains(&end);
    ensure!(named, "{program} {args}, {fault}: {said:#?}");
    Ok(())
}

/// To the end of the run that nothing happened to. A run of one's own is ended at any time, in `ones_own_run_goes_on`.
fn what_was_kept_goes_on() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [whole, out] = ["whole", "run"].map(|name| folder.path().join(name));
    let args = format!("{SMALL} --gpus 2 --momentum 0.9 --checkpoint-every 1 --out");
    succeeds("concise", &format!("{args} {}", whole.display()))?;
    let fault = (
        "backward,2,cpu(1),1".to_owned(),
        "replica cpu(1)".to_owned(),
    );
    a_fault_ends("concise", &format!("{args} {}", out.display()), &fault)?;
    let [stdout, stderr] = succeeds("concise", &format!("--resume {}", out.display()))?;
    ensure!(stderr.is_empty(), "{stderr}");
    has(&stdout, " goes on in epoch 1, after 1 of its minibatches")?;
    let model = |folder: &Path| fs::read(folder.join("model.safetensors"));
    ensure!(model(&out)? == model(&whole)?, "it ends elsewhere");
    Ok(())
}

/// The command `program args…`, which fails.
fn with(program: &str, args: &str, fault: &str) -> Result<Command> {
    let mut command = command(program, args)?;
    command.env(VARIABLE, fault).env_remove("RUST_BACKTRACE");
    Ok(command)
}

/// What a process says after it has failed; it ends within `limit`, with status 1.
fn fails(command: &mut Command, limit: Duration) -> Result<Vec<String>> {
    let command = command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let stderr = BufReader::new(child.stderr.take().context("stderr")?);
    let (sender, lines) = channel();
    thread::spawn(move || stderr.lines().try_for_each(|line| sender.send(line)));
    let first = lines.recv().context("it ended without a fault")??;
    ensure!(first == FAILS, "before the fault: {first}");
    let status = ends(&mut child, limit)?;
    let said: std::io::Result<Vec<String>> = lines.iter().collect();
    let said = said?;
    ensure!(status.code() == Some(1), "{status}\n{}", said.join("\n"));
    Ok(said)
}

/// Waits until a process ends; one that does not is ended.
fn ends(child: &mut Child, limit: Duration) -> Result<ExitStatus> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if start.elapsed() > limit {
            child.kill()?;
            bail!("it goes on after {limit:?}");
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// For an hour, that is. The others wait for it as long as they may, and the run once more as long where one of
/// them has said so; where none sums, as in evaluations, the run alone waits.
fn one_that_stands_still_ends_the_run_too() -> Result<()> {
    let cases = [
        ("forward,2,cpu(1),1", ""),
        ("backward,2,cpu(0),1", ""),
        ("all-reduce,2,cpu(2),1", ""),
        ("infer,2,cpu(1),1", ""),
        // the first of two minibatches that make a step
        ("forward,3,cpu(1),1", "--accumulate 2"),
    ];
    thread::scope(|s| {
        let start = |(fault, rest)| s.spawn(move || stands_still(fault, rest).context(fault));
        let running = cases.map(start);
        let mut ends = running
            .into_iter()
            .map(|case| case.join().expect("it panicked"));
        ends.try_for_each(|end| end)
    })
}

fn stands_still(fault: &str, rest: &str) -> Result<()> {
    let args = format!("{SMALL} --gpus 3 --timeout 3 {rest}");
    let mut command = with("concise", &args, &format!("{fault},3600"))?;
    let said = fails(&mut command, 2 * Duration::from_secs(3) + LIMIT)?;
    let replica = fault.split(',').nth(2).unwrap_or_default();
    let line = format!("error: replica {replica} did not arrive within 3s");
    ensure!(said == [line], "{said:#?}");
    Ok(())
}

/// For longer than replicas wait for each other, as with Ctrl-Z.
#[cfg(unix)]
fn a_process_that_was_stopped_goes_on() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("run");
    let args = "--device cpu --data synthetic --limit-train 40 --limit-test 10 --batch-size 4 --epochs 1 --gpus 2";
    let args = format!("{args} --timeout 2 --checkpoint-every 1");
    let args = format!("{args} --out {}", out.display());
    let mut child = start("concise", &args)?;
    until_two_checkpoints(&out, &mut child)?; // after its second step
    for _ in 0..2 {
        signal("-STOP", child.id())?;
        thread::sleep(Duration::from_secs(3));
        ensure!(child.try_wait()?.is_none(), "it ended too early");
        signal("-CONT", child.id())?;
        thread::sleep(Duration::from_millis(130)); // in another phase of a step
    }
    let status = child.wait()?;
    ensure!(status.success(), "{status}");
    Ok(())
}

fn who_wants_a_backtrace_gets_one() -> Result<()> {
    for program in ["scratch", "concise"] {
        let mut command = with(program, &format!("{SMALL} --gpus 2"), "update,2,,1,0")?;
        let said = fails(command.env("RUST_BACKTRACE", "1"), LIMIT)?.join("\n");
        has(&said, "stack backtrace")?;
        has(&said, "a fault in update\n")?;
        has(&said, "error: replica cpu(")?;
    }
    Ok(())
}

/// An error where the others are a panic: the last example's label, which is the last replica's.
fn a_label_that_is_no_class_names_the_device() -> Result<()> {
    for k in 2..=4 {
        let (x, y) = formula_batch(0, 8)?;
        let mut labels = y.to_vec1::<u32>()?;
        labels[7] = 10;
        let y = Tensor::new(labels, y.device())?;
        let device_params = copies(&scratch::init_params(0)?, k)?;
        let step = scratch::train_batch(&x, &y, &device_params, &cpus(k), 0.1);
        let error = step.err().context("there is no error")?.to_string();
        let replica = format!("replica cpu({}): ", k - 1);
        let named = error.starts_with(&replica) && error.contains("label");
        ensure!(named, "{error}");
    }
    Ok(())
}
