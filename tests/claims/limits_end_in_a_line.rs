//! What the machine or a limit does not give ends a run in a line that says so: memory, threads, the size of a file.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::kit::{command, ended, has};

trials![
    a_step_that_does_not_fit_is_refused,
    replicas_that_do_not_fit_are_refused,
    memory_that_is_not_there_is_an_error,
    a_thread_that_cannot_be_started_is_an_error,
    a_file_that_may_not_grow_is_as_a_full_disk,
    more_threads_than_cores_are_not_started,
];

const SMALL: &str = "--device cpu --data synthetic --limit-test 20 --epochs 1";

/// Runs `program SMALL args…` behind `limit` of the shell, which ends by itself: exit status and what it printed.
fn limited(limit: &str, program: &str, args: &str) -> Result<(i32, String)> {
    let command = command(program, &format!("{SMALL} {args}"))?;
    let script = format!("{limit} \"$0\" \"$@\"");
    let mut shell = Command::new("timeout");
    shell.args(["100", "sh", "-c", &script]);
    shell.arg(command.get_program()).args(command.get_args());
    let (status, stdout, stderr) = ended(shell.env_remove("RUST_BACKTRACE").output()?)?;
    let text = stdout + &stderr;
    ensure!(!text.contains("panicked"), "{limit} {args}: {text}");
    Ok((status, text))
}

/// Checks how `program SMALL args…` ends behind a limit, and that it prints all of `words`.
fn ends(limit: &str, program: &str, args: &str, status: i32, words: &[&str]) -> Result<()> {
    let (ended, text) = limited(limit, program, args)?;
    ensure!(ended == status, "{program} {args}: {ended}\n{text}");
    words.iter().try_for_each(|words| has(&text, words))
}

/// LeNet's step on 30,000 images needs 971 MiB at least. The same limit leaves enough for one on 6,000.
fn a_step_that_does_not_fit_is_refused() -> Result<()> {
    let limit = "ulimit -v 900000;";
    let words = [
        "out of memory on the CPU: a step needs at least ",
        " MiB are left; choose a smaller --batch-size or fewer --gpus",
    ];
    for gpus in ["1", "2"] {
        let args = format!("--limit-train 30000 --batch-size 30000 --gpus {gpus}");
        ends(limit, "scratch", &args, 2, &words)?;
    }
    let args = "--limit-train 6000 --batch-size 6000 --gpus 2";
    ends(limit, "scratch", args, 0, &["epoch 1"])
}

/// 1,024 replicas of ResNet-18 and their gradients need 85 GiB.
fn replicas_that_do_not_fit_are_refused() -> Result<()> {
    let args = "--limit-train 1024 --batch-size 1024 --gpus 1024";
    let words = [
        "out of memory on the CPU: a network on 1024 devices needs",
        "--gpus",
    ];
    ends("ulimit -v 20000000;", "concise", args, 2, &words)
}

/// 1,024 replicas of LeNet take 1 GB, replica by replica.
fn memory_that_is_not_there_is_an_error() -> Result<()> {
    let args = "--limit-train 1024 --batch-size 1024 --gpus 1024";
    let words = [
        "error: out of memory: ",
        " bytes more were needed; choose a smaller --batch-size or fewer --gpus",
    ];
    ends("ulimit -v 700000;", "scratch", args, 1, &words)
}

/// No limit of threads binds root, so a user without a name tries it, if root runs the test. With each thread more
/// that it may start, the run comes to another place.
fn a_thread_that_cannot_be_started_is_an_error() -> Result<()> {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| {
        use std::os::unix::fs::MetadataExt;
        own.uid() == 0
    });
    let id = 1_000_000 + std::process::id();
    let user = match is_root {
        true => format!("setpriv --clear-groups --reuid {id}"),
        false => String::new(),
    };
    for (program, args) in [
        ("scratch", "--limit-train 32 --batch-size 16 --gpus 1"),
        ("scratch", "--limit-train 32 --batch-size 16 --gpus 2"),
        ("concise", "--limit-train 8 --batch-size 4 --gpus 2"),
    ] {
        let mut failed = 0;
        for threads in 1..10 {
            let limit = format!("exec {user} prlimit --nproc={threads}");
            let (status, text) = limited(&limit, program, args)?;
            ensure!([0, 1].contains(&status), "{limit} {args}: {status}, {text}");
            if status == 1 {
                failed += 1;
                has(&text, "error: ")?;
                has(&text, "a thread could not be started: Resource temp")?;
                has(&text, "choose fewer --gpus or fewer --threads")?;
            }
        }
        ensure!(failed >= 2, "{program} {args}: {failed} failed");
    }
    Ok(())
}

/// A checkpoint has 4 bytes more for each step: that of 100 steps is not written.
fn a_file_that_may_not_grow_is_as_a_full_disk() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let out = |name: &str| folder.path().join(name);
    let args = |steps: usize, name: &str| {
        let out = out(name);
        let out = out.display();
        format!("--limit-train {steps} --batch-size 1 --gpus 1 --out {out}")
    };
    ends("true;", "concise", &args(2, "one"), 0, &["test acc: "])?;
    let size = std::fs::metadata(out("one").join("checkpoint.safetensors"))?.len();
    let limit = format!("exec prlimit --fsize={}", size + 200);
    let words = [
        ".checkpoint.next.safetensors: File too large (os error 27); the run goes on",
        "test acc: ",
    ];
    ends(&limit, "concise", &args(100, "two"), 0, &words)
}

fn more_threads_than_cores_are_not_started() -> Result<()> {
    let args = "--limit-train 32 --batch-size 16 --threads 1024";
    let words = ["1 of 1 cores each"];
    ends("taskset -c 0", "scratch", args, 0, &words)
}
