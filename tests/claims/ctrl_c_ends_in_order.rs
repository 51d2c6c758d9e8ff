//! Ctrl-C ends a run in order: what was reached is reported and written, with exit status 130.

use anyhow::Result;

#[cfg(unix)]
trials![what_was_reached_is_reported_and_written];

/// Windows has no signal that one process could send another as Ctrl-C.
#[cfg(not(unix))]
pub fn trials() -> Vec<libtest_mimic::Trial> {
    Vec::new()
}

#[cfg(unix)]
fn what_was_reached_is_reported_and_written() -> Result<()> {
    use crate::kit::command;
    use anyhow::{Context, ensure};
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

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
            let id = child.id().to_string();
            ensure!(Command::new("kill").args(["-INT", &id]).status()?.success());
        }
        printed.push(line);
    }
    ensure!(child.wait()?.code() == Some(130), "{printed:#?}");
    ensure!(
        printed
            .iter()
            .any(|l| l.starts_with("interrupted in epoch ")),
        "{printed:#?}"
    );
    let last = printed.last().context("nothing was printed")?;
    ensure!(last.starts_with("test acc: 0."), "{last}");
    for file in [
        "steps.csv",
        "epochs.csv",
        "accuracy.svg",
        "model.safetensors",
    ] {
        ensure!(out.join(file).exists(), "there is no {file}");
    }
    let epochs = std::fs::read_to_string(out.join("epochs.csv"))?;
    ensure!(epochs.lines().count() >= 4, "{epochs}");
    Ok(())
}
