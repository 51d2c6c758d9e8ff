//! Ctrl-C ends a run in order: what was reached is reported and written, with exit status 130.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::kit::{command, has, signal, start, until_there};

trials![
    what_was_reached_is_reported_and_written,
    #[cfg(target_os = "linux")] // elsewhere nothing says what is ignored
    one_that_is_ignored_stays_so,
    before_the_first_step_nothing_is_replaced,
    the_first_epoch_of_resnet18_can_be_ended,
    a_second_one_ends_at_once,
];

fn what_was_reached_is_reported_and_written() -> Result<()> {
    end_in_order_after(&["-INT"])?;
    // a terminal that closes: the shell says so, and then the system
    end_in_order_after(&["-HUP", "-HUP"])?;
    // a queue that warns, and then ends the job
    end_in_order_after(&["-USR1", "-USR1", "-TERM"])?;
    // `timeout` sends one to the program and one to its group, `perf` adds one to that of the terminal
    end_in_order_after(&["-TERM", "-TERM"])?;
    end_in_order_after(&["-INT", "-TERM"])
}

fn end_in_order_after(signals: &[&str]) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("run");
    let args = "--device cpu --data synthetic --limit-train 200 --limit-test 50 --epochs 100000";
    let mut child = command("scratch", &format!("{args} --out {}", out.display()))?
        .stdout(Stdio::piped())
        .spawn()?;
    let lines = BufReader::new(child.stdout.take().context("stdout")?).lines();
    let mut printed = Vec::new();
    for line in lines {
        let line = line?;
        if line.starts_with("epoch 3,") {
            signals.iter().try_for_each(|s| signal(s, child.id()))?;
        }
        printed.push(line);
    }
    ensure!(child.wait()?.code() == Some(130), "{printed:#?}");
    has(&printed.join("\n"), "\ninterrupted in epoch ")?;
    let last = printed.last().context("nothing was printed")?;
    ensure!(last.starts_with("test acc: 0."), "{last}");
    the_folder_is_whole(&out)?;
    let epochs = fs::read_to_string(out.join("epochs.csv"))?;
    ensure!(epochs.lines().count() >= 4, "{epochs}");
    Ok(())
}

fn the_folder_is_whole(out: &Path) -> Result<()> {
    for file in [
        "steps.csv",
        "epochs.csv",
        "loss.svg",
        "accuracy.svg",
        "model.safetensors",
    ] {
        ensure!(out.join(file).exists(), "there is no {file}");
    }
    Ok(())
}

/// `nohup` ignores a terminal that closes, and a script Ctrl-C for what it starts with `&`.
#[cfg(target_os = "linux")]
fn one_that_is_ignored_stays_so() -> Result<()> {
    let args =
        "--as scratch --device cpu --data synthetic --limit-train 100 --limit-test 10 --epochs 30";
    for name in ["HUP", "INT", "TERM"] {
        let mut child = std::process::Command::new("sh")
            .args(["-c", &format!("trap '' {name}; exec \"$0\" \"$@\"")])
            .arg(std::env::current_exe()?)
            .args(args.split_whitespace())
            .stdout(Stdio::piped())
            .spawn()?;
        for line in BufReader::new(child.stdout.take().context("stdout")?).lines() {
            if line?.starts_with("epoch 3,") {
                signal(&format!("-{name}"), child.id())?;
                ensure!(child.try_wait()?.is_none(), "it had ended");
            }
        }
        let status = child.wait()?;
        ensure!(status.success(), "{name}: {status}");
    }
    Ok(())
}

/// While the data are loaded: the run in the folder stays, although it may be overwritten.
fn before_the_first_step_nothing_is_replaced() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let earlier = folder.path().join("model.safetensors");
    fs::write(&earlier, "an earlier run")?;
    let out = folder.path().display();
    let args = format!("--threads 1 --data synthetic --out {out} --overwrite");
    let mut child = start("scratch", &args)?;
    std::thread::sleep(Duration::from_millis(100));
    signal("-INT", child.id())?;
    child.wait()?;
    ensure!(fs::read_to_string(&earlier)? == "an earlier run");
    Ok(())
}

fn the_first_epoch_of_resnet18_can_be_ended() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("run");
    let args = "--device cpu --data synthetic --limit-train 4000 --limit-test 10 --batch-size 4";
    let trace = out.join("trace.json");
    let args = format!("{args} --out {} --trace {}", out.display(), trace.display());
    let mut child = command("concise", &args)?
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    until_there(&out.join("steps.csv"), &mut child)?;
    signal("-INT", child.id())?;
    let output = child.wait_with_output()?;
    ensure!(output.status.code() == Some(130), "{}", output.status);
    let printed = String::from_utf8_lossy(&output.stdout);
    has(&printed, "interrupted in epoch 1 of 10, after step ")?;
    let last = "test acc: none, no epoch was completed, on [cpu(0)]";
    has(&printed, last)?;
    the_folder_is_whole(&out)?;
    ensure!(fs::read_to_string(&trace)?.contains("traceEvents"));
    Ok(())
}

/// In the middle of a step that takes long; the checkpoint is whole.
fn a_second_one_ends_at_once() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // on a busy machine it may take longer until the step begins
    for seconds in [1, 4, 16] {
        let out = folder.path().join(seconds.to_string());
        if ended_twice(&out, Duration::from_secs(seconds))? {
            let there = |name: &str| out.join(name).exists();
            ensure!(there("checkpoint.safetensors") && !there("model.safetensors"));
            return Ok(());
        }
    }
    bail!("the step was too short")
}

/// Whether the first Ctrl-C came so late that it had to wait; then the second one does not.
fn ended_twice(out: &Path, after: Duration) -> Result<bool> {
    let args = "--device cpu --data synthetic --limit-train 3000 --limit-test 10 --batch-size 3000 --threads 1";
    let mut child = start("concise", &format!("{args} --out {}", out.display()))?;
    until_there(&out.join("epochs.csv"), &mut child)?;
    std::thread::sleep(after);
    signal("-INT", child.id())?;
    std::thread::sleep(Duration::from_millis(700));
    if child.try_wait()?.is_some() {
        return Ok(false);
    }
    signal("-INT", child.id())?;
    let start = Instant::now();
    let status = child.wait()?;
    let took = start.elapsed();
    ensure!(took < Duration::from_secs(5), "it took {took:?}");
    ensure!(status.code() == Some(130), "{status}");
    Ok(true)
}
