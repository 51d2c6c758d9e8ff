//! The scripts of `examples` that start a run again, with stubs of `mpirun`, `ssh` and `scontrol`: what they start, and how
//! they end. `two_hosts` runs them with Open MPI, where there is a feature for it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command};

use anyhow::{Result, ensure};
use tempfile::TempDir;

use crate::kit::{root, signal, until_there};

trials![
    a_run_goes_on_where_a_host_is_lost,
    the_same_hosts_and_checkpoint_are_not_tried_again,
    slurm_starts_the_script_again_after_its_warning,
];

/// Writes its arguments to `started`. The first start leaves a checkpoint and fails, as when a host is lost; the second
/// one ends well.
const FAILS_ONCE: &str = "echo \"$@\" >> started\n\
    [ -e run/checkpoint.safetensors ] && exit 0\n\
    mkdir -p run; echo 1 > run/checkpoint.safetensors; exit 1\n";

/// Runs until SIGUSR1, and ends as a run that was asked to.
const UNTIL_ASKED: &str =
    "trap 'exit 130' USR1\necho \"$@\" >> started\nwhile :; do sleep 0.05; done\n";

fn a_run_goes_on_where_a_host_is_lost() -> Result<()> {
    let place = place(FAILS_ONCE)?;
    // the second host answers once
    stub(
        place.path(),
        "ssh",
        "case \"$*\" in *one*) ;; *) [ ! -e asked ] && touch asked ;; esac\n",
    )?;
    let status = start(place.path(), "goes_on.sh", "run --epochs 2")?.wait()?;
    let started = fs::read_to_string(place.path().join("started"))?;
    let [first, second] = started.lines().collect::<Vec<_>>()[..] else {
        anyhow::bail!("{started}");
    };
    ensure!(status.success(), "{status}\n{started}");
    ensure!(first.starts_with("-H one:1,two:1 "), "{first}");
    ensure!(
        first.ends_with("program --out run --overwrite --epochs 2"),
        "{first}"
    );
    ensure!(second.starts_with("-H one:1 "), "{second}");
    ensure!(second.ends_with("program --resume run"), "{second}");
    Ok(())
}

fn the_same_hosts_and_checkpoint_are_not_tried_again() -> Result<()> {
    let place = place("echo \"$@\" >> started; exit 1\n")?;
    stub(place.path(), "ssh", "exit 0\n")?;
    let status = start(place.path(), "goes_on.sh", "run")?.wait()?;
    let started = fs::read_to_string(place.path().join("started"))?;
    ensure!(status.code() == Some(1), "{status}\n{started}");
    ensure!(started.lines().count() == 1, "{started}");
    Ok(())
}

fn slurm_starts_the_script_again_after_its_warning() -> Result<()> {
    let place = place(UNTIL_ASKED)?;
    stub(place.path(), "scontrol", "echo \"$@\" > requeued\n")?;
    let mut script = start(place.path(), "slurm.sh", "")?;
    until_there(&place.path().join("started"), &mut script)?;
    signal("-USR1", script.id())?;
    let status = script.wait()?;
    ensure!(status.code() == Some(130), "{status}");
    let requeued = fs::read_to_string(place.path().join("requeued"))?;
    ensure!(requeued == "requeue 17\n", "{requeued}");
    Ok(())
}

/// A folder with a stub of `mpirun`.
fn place(mpirun: &str) -> Result<TempDir> {
    let place = tempfile::tempdir()?;
    stub(place.path(), "mpirun", mpirun)?;
    Ok(place)
}

fn stub(folder: &Path, name: &str, script: &str) -> Result<()> {
    let file = folder.join(name);
    fs::write(&file, format!("#!/bin/sh\n{script}"))?;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// Starts a script of `examples` in this folder, whose programs come before all others.
fn start(folder: &Path, script: &str, args: &str) -> Result<Child> {
    let path = std::env::var("PATH")?;
    let child = Command::new("sh")
        .arg(root().join("examples").join(script))
        .args(args.split_whitespace())
        .current_dir(folder)
        .env("PATH", format!("{}:{path}", folder.display()))
        .env("HOSTS", "one two")
        .env("PROGRAM", "program")
        .env("SLURM_JOB_ID", "17")
        .spawn()?;
    Ok(child)
}
