//! `--trace` shows the work of each replica over time: replicas at the same time, the star's hub, overlap.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::kit::{refuses, start, succeeds, until_two_checkpoints};

trials![
    two_replicas_of_lenet_compute_at_the_same_time,
    a_star_has_a_hub_and_gradients_are_summed_while_others_are_computed,
    in_the_very_first_step_gradients_are_summed_while_others_are_computed,
    without_overlap_gradients_are_summed_after_backward,
    no_more_than_fifty_steps_are_kept,
    a_run_that_fails_leaves_what_it_did,
    a_run_that_is_killed_leaves_nothing,
    what_is_there_is_replaced_only_when_it_may_be,
    #[cfg(unix)]
    links_are_followed,
];

const SMALL: &str = "--device cpu --data synthetic --limit-test 20 --epochs 1 --gpus 2 --threads 2";
/// Eight steps, long enough that a worker does not take both replicas before the other one wakes.
const LENET: &str = "--limit-train 4096 --batch-size 512";
/// Four steps.
const RESNET: &str = "--limit-train 64 --batch-size 16";

/// A piece of a lane's work, in µs.
struct Span {
    lane: String,
    name: String,
    begin: f64,
    end: f64,
}

/// What the trace of a run has.
struct Trace(Vec<Span>);

impl Trace {
    fn of(program: &str, args: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("trace.json");
        let args = format!("{SMALL} {args} --trace {}", file.display());
        succeeds(program, &args)?;
        let picture = fs::read_to_string(file.with_extension("svg"))?;
        ensure!(picture.ends_with("</svg>\n"), "{picture}");
        Self::read(&file)
    }

    fn read(file: &Path) -> Result<Self> {
        let trace: Value = serde_json::from_str(&fs::read_to_string(file)?)?;
        let events = trace["traceEvents"].as_array().context("no events")?;
        let lane = |tid: &Value| {
            let named = |e: &&Value| e["name"] == "thread_name" && e["tid"] == *tid;
            let name = events.iter().find(named)?["args"]["name"].as_str()?;
            Some(name.to_owned())
        };
        let span = |event: &Value| {
            let begin = event["ts"].as_f64()?;
            Some(Span {
                lane: lane(&event["tid"])?,
                name: event["name"].as_str()?.to_owned(),
                begin,
                end: begin + event["dur"].as_f64()?,
            })
        };
        let spans = events.iter().filter(|e| e["ph"] == "X").map(span);
        let spans: Option<Vec<Span>> = spans.collect();
        Ok(Self(spans.context("an event says not all")?))
    }

    /// All of a kind in a lane, one after the other; at least `least`.
    fn all(&self, lane: &str, name: &str, least: usize) -> Result<Vec<&Span>> {
        let spans = self.0.iter().filter(|s| s.lane == lane && s.name == name);
        let spans: Vec<&Span> = spans.collect();
        let n = spans.len();
        ensure!(n >= least, "{lane} has {n} times {name}, not {least}");
        let mut pairs = spans.windows(2);
        ensure!(pairs.all(|pair| pair[0].end <= pair[1].begin + 1e-3));
        Ok(spans)
    }

    /// Both lanes went forward, and at least once at the same time.
    fn forward_together(&self, a: &str, b: &str) -> Result<()> {
        let (a, b) = (self.all(a, "forward", 1)?, self.all(b, "forward", 1)?);
        let meets = |a: &Span| b.iter().any(|b| a.begin < b.end && b.begin < a.end);
        ensure!(a.into_iter().any(meets), "never at the same time");
        Ok(())
    }

    /// How many all-reduces of replica 0 began while its backward was under way, in each step.
    fn overlaps(&self) -> Result<Vec<usize>> {
        let reduces = self.all("cpu(0), all-reduce", "all-reduce", 4)?;
        let backwards = self.all("cpu(0)", "backward", 4)?.into_iter();
        let within = |b: &Span| {
            let begins = reduces.iter().map(|reduce| reduce.begin);
            begins.filter(|a| b.begin < *a && *a < b.end).count()
        };
        Ok(backwards.map(within).collect())
    }
}

fn two_replicas_of_lenet_compute_at_the_same_time() -> Result<()> {
    let trace = Trace::of("scratch", LENET)?;
    trace.forward_together("cpu(0)", "cpu(1)")?;
    // one split and all-reduces of 8 parameters in a step
    for (name, times) in [("data", 8), ("split", 8), ("all-reduce", 64)] {
        trace.all("main", name, times)?;
    }
    // by whichever thread: a replica's lane is its device
    for replica in ["cpu(0)", "cpu(1)"] {
        for name in ["forward", "backward", "update"] {
            let times = trace.all(replica, name, 8)?.len();
            ensure!(times == 8, "{replica}: {times} times {name}");
        }
    }
    trace.all("main", "evaluate", 1)?;
    Ok(())
}

fn a_star_has_a_hub_and_gradients_are_summed_while_others_are_computed() -> Result<()> {
    let trace = Trace::of("concise", &format!("{RESNET} --allreduce star"))?;
    trace.forward_together("cpu(0)", "cpu(1)")?;
    for (name, times) in [("data", 4), ("split", 4), ("evaluate", 1)] {
        trace.all("main", name, times)?;
    }
    for replica in ["cpu(0)", "cpu(1)"] {
        for name in ["forward", "backward", "update"] {
            trace.all(replica, name, 4)?;
        }
    }
    // the hub sums, the other one copies after that
    let hub = trace.all("cpu(0), all-reduce", "sum", 4)?;
    let other = trace.all("cpu(1), all-reduce", "sum", 4)?;
    ensure!(hub.len() == other.len());
    ensure!(hub.iter().zip(other).all(|(a, b)| a.end <= b.begin));
    let waits = |s: &&Span| s.name == "wait" && s.lane.ends_with("all-reduce");
    ensure!(trace.0.iter().any(|s| waits(&s)), "no replica waits");
    let overlaps: usize = trace.overlaps()?.iter().sum();
    ensure!(overlaps > 0, "no bucket goes before the end");
    Ok(())
}

/// When a gradient is complete is known when forward ends, so that no step is needed to learn it.
fn in_the_very_first_step_gradients_are_summed_while_others_are_computed() -> Result<()> {
    let overlaps = Trace::of("concise", &format!("{RESNET} --bucket-mb 4"))?.overlaps()?;
    ensure!(overlaps[0] > 0, "{overlaps:?} go before the end");
    Ok(())
}

fn without_overlap_gradients_are_summed_after_backward() -> Result<()> {
    let overlaps = Trace::of("concise", &format!("{RESNET} --no-overlap"))?.overlaps()?;
    ensure!(overlaps == [0; 4], "{overlaps:?} go before the end");
    Ok(())
}

fn no_more_than_fifty_steps_are_kept() -> Result<()> {
    let trace = Trace::of("scratch", "--limit-train 120 --batch-size 2")?;
    let splits = trace.all("main", "split", 50)?.len();
    ensure!(splits == 50, "{splits} splits");
    ensure!(trace.all("main", "evaluate", 1).is_err(), "it is later");
    Ok(())
}

/// Its folder goes away under it, which it sees at the end of the second epoch.
fn a_run_that_fails_leaves_what_it_did() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (child, file) = traced_resnet(folder.path())?;
    fs::create_dir(folder.path().join("run/model.safetensors"))?; // which cannot be written then
    let output = child.wait_with_output()?;
    ensure!(output.status.code() == Some(1), "{output:?}");
    let trace = Trace::read(&file)?;
    for name in ["forward", "backward", "update"] {
        trace.all("cpu(0)", name, 4)?;
    }
    ensure!(fs::read_to_string(file.with_extension("svg"))?.starts_with("<svg"));
    Ok(())
}

fn a_run_that_is_killed_leaves_nothing() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (mut child, file) = traced_resnet(folder.path())?;
    child.kill()?;
    child.wait()?;
    ensure!(!file.exists() && !file.with_extension("svg").exists());
    Ok(())
}

/// ResNet-18 after the first of ten epochs, in all forty steps, and its trace.
fn traced_resnet(folder: &Path) -> Result<(Child, PathBuf)> {
    let (out, file) = (folder.join("run"), folder.join("trace.json"));
    let files = format!("--out {} --trace {}", out.display(), file.display());
    let ten_epochs = SMALL.replace("--epochs 1", "--epochs 10");
    let mut child = start("concise", &format!("{ten_epochs} {RESNET} {files}"))?;
    until_two_checkpoints(&out, &mut child)?;
    Ok((child, file))
}

fn what_is_there_is_replaced_only_when_it_may_be() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("trace.json");
    let picture = file.with_extension("svg");
    fs::write(&picture, "an earlier picture")?;
    let refused = |file: &Path, words: &str| {
        let args = format!("{SMALL} {LENET} --trace {}", file.display());
        refuses("scratch", &args, &[words])
    };
    refused(&file, "exists already: name another file for --trace")?;
    refused(&folder.path().join("a.svg"), "a.json")?;
    refused(&picture.join("trace.json"), "cannot make its folder")?;
    refused(folder.path(), "it is a folder, not a file")?;
    ensure!(fs::read_to_string(&picture)? == "an earlier picture");
    let args = format!("{SMALL} {LENET} --trace {} --overwrite", file.display());
    succeeds("scratch", &args)?;
    Trace::read(&file)?.all("main", "split", 8)?;
    ensure!(fs::read_to_string(&picture)?.starts_with("<svg"));
    Ok(())
}

/// To another disk, where the file is not there yet.
#[cfg(unix)]
fn links_are_followed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (link, disk) = (folder.path().join("t.json"), folder.path().join("disk"));
    fs::create_dir(&disk)?;
    for ending in ["json", "svg"] {
        let to = Path::new("disk/trace").with_extension(ending);
        std::os::unix::fs::symlink(to, link.with_extension(ending))?;
    }
    let args = format!("{SMALL} {LENET} --trace {}", link.display());
    succeeds("scratch", &args)?;
    ensure!(link.is_symlink() && link.with_extension("svg").is_symlink());
    Trace::read(&disk.join("trace.json"))?.all("main", "split", 8)?;
    ensure!(fs::read_to_string(disk.join("trace.svg"))?.starts_with("<svg"));
    Ok(())
}
