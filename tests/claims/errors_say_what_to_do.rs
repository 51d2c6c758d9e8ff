//! Wrong input is an error before any training, with exit status 2 and a message that says what
//! to do; never a panic.

use std::fs;

use anyhow::{Result, ensure};
use candle_core::{DType, Device, Tensor};

use crate::kit::{command, cpus, has, refuses, says, succeeds};

trials![
    options_that_cannot_be_used,
    options_of_concise_alone,
    a_folder_that_holds_a_run_is_refused,
    names_that_no_shell_has_replaced,
    #[cfg(unix)]
    a_link_that_leads_nowhere_is_named,
    processes_of_other_launchers_do_not_train_alone,
    cuda_is_asked_for_and_not_there,
    bf16_is_asked_for_and_not_there,
    x_and_y_of_different_lengths,
    help_is_grouped_and_has_the_statuses_and_the_books_values,
];

const SMALL: &str = "--device cpu --data synthetic --limit-train 40 --limit-test 10 --epochs 1";
/// As `SMALL`, for a case that sets the rest itself.
const BARE: &str = "--device cpu --data synthetic --limit-test 10";

/// Both programs refuse `args`, with all of `words`.
fn refused(args: &str, words: &[&str]) -> Result<()> {
    refuses("scratch", args, words)?;
    refuses("concise", args, words)
}

fn options_that_cannot_be_used() -> Result<()> {
    let cases = [
        ("--gpus 0", "--gpus 0: at least 1 is needed"),
        ("--batch-size 0", "--batch-size 0: at least 1"),
        (
            "--gpus 3 --batch-size 2",
            "a minibatch of 2 examples cannot be split over 3 devices",
        ),
        (
            "--lr NaN",
            "--lr NaN: a learning rate is a finite 32-bit number",
        ),
        ("--epochs 0", "--epochs 0"),
        ("--threads 0", "--threads 0"),
        ("--gpus 18446744073709551615", "at most 1024 are possible"),
        ("--threads 20000", "--threads 20000: at most 1024"),
        ("--limit-train 0", "--limit-train 0"),
    ];
    for (args, words) in cases {
        refused(&format!("{BARE} {args}"), &[words])?;
    }
    Ok(())
}

/// What only the second section has: `scratch` does not know it, and does not train without it in
/// silence; `concise` says what it wants.
fn options_of_concise_alone() -> Result<()> {
    let cases = [
        ("--momentum -1", "--momentum -1: expected a finite number"),
        ("--allreduce rings", "star, owner, ring, tree, nccl, auto"),
        ("--bucket-mb 0", "--bucket-mb 0: expected a number above 0"),
        ("--timeout -1", "--timeout -1: expected a number above 0"),
        ("--accumulate 0", "--accumulate 0: a step has at least 1"),
        ("--split 3,1", "--split: 2 weights for 3 replicas"),
        ("--split 3,0,1", "expected positive numbers such as 3,1"),
        ("--split even", "expected positive numbers such as 3,1"),
        (
            "--allreduce nccl --reduce-on host",
            "--allreduce nccl sums on the devices",
        ),
        #[cfg(not(feature = "nccl"))]
        (
            "--allreduce nccl",
            "error: --allreduce nccl: this program was built without NCCL; \
             rebuild it with --features nccl\n",
        ),
    ];
    for (args, words) in cases {
        let args = format!("{SMALL} --gpus 3 {args}");
        refuses("concise", &args, &[words])?;
        refuses("scratch", &args, &[])?;
    }
    Ok(())
}

fn a_folder_that_holds_a_run_is_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("epochs.csv"), "an earlier run")?;
    let args = format!("{SMALL} --out {}", folder.path().display());
    refused(&args, &["already holds a run", "--overwrite"])?;
    let kept = fs::read_to_string(folder.path().join("epochs.csv"))?;
    ensure!(kept == "an earlier run", "{kept}");
    succeeds("scratch", &format!("{args} --overwrite"))?;
    Ok(())
}

/// Such as `--out=~/run`, where a shell replaces nothing, and words that no shell has read.
fn names_that_no_shell_has_replaced() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for name in ["~/run", "~root/run", "$HOME/run", "${RUNS}/run"] {
        for option in ["--out", "--trace"] {
            let args = format!("{SMALL} {option}={name}");
            for program in ["scratch", "concise"] {
                let run = command(program, &args)?
                    .current_dir(folder.path())
                    .output()?;
                let stderr = String::from_utf8_lossy(&run.stderr);
                ensure!(
                    run.status.code() == Some(2),
                    "{args}: {}\n{stderr}",
                    run.status
                );
                has(&stderr, &format!("{option} {name}: "))?;
                has(&stderr, &format!("or ./{name} if that is its name"))?;
            }
        }
    }
    ensure!(
        fs::read_dir(folder.path())?.count() == 0,
        "a folder was made"
    );
    let mut own = command("scratch", &format!("{SMALL} --out ./~run"))?;
    ensure!(own.current_dir(folder.path()).output()?.status.success());
    ensure!(folder.path().join("~run/steps.csv").exists());
    Ok(())
}

/// As where its disk is not mounted.
#[cfg(unix)]
fn a_link_that_leads_nowhere_is_named() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let link = folder.path().join("runs");
    std::os::unix::fs::symlink("/no/such/disk", &link)?;
    let says = format!(
        "{} is a link to /no/such/disk, which is not there",
        link.display()
    );
    for out in [link.clone(), link.join("new")] {
        refused(&format!("{SMALL} --out {}", out.display()), &[&says])?;
        let trace = format!("{SMALL} --trace {}", out.join("t.json").display());
        refuses("scratch", &trace, &[&says])?;
    }
    Ok(())
}

fn processes_of_other_launchers_do_not_train_alone() -> Result<()> {
    for program in ["scratch", "concise"] {
        let mut torchrun = command(program, SMALL)?;
        let output = torchrun.env("WORLD_SIZE", "2").env("RANK", "1").output()?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.code() == Some(2),
            "{}\n{stderr}",
            output.status
        );
        has(
            &stderr,
            "WORLD_SIZE is 2: a launcher has started 2 processes",
        )?;
    }
    Ok(())
}

fn cuda_is_asked_for_and_not_there() -> Result<()> {
    if !d2l::try_gpu(0).is_cpu() {
        // there is a GPU: then the run trains on it
        let [stdout, _] = succeeds("scratch", &SMALL.replace("cpu", "cuda"))?;
        return has(&stdout, "cuda(0)");
    }
    let args = SMALL.replace("cpu", "cuda");
    refused(&args, &["--device cuda cannot be used: ", "CUDA"])?;
    // one line, also with RUST_BACKTRACE
    let mut command = command("scratch", &args)?;
    let stderr = command.env("RUST_BACKTRACE", "1").output()?.stderr;
    let stderr = String::from_utf8_lossy(&stderr);
    ensure!(stderr.lines().count() == 1, "{stderr}");
    Ok(())
}

/// On the CPU by name it is a mistake; where there turns out to be no GPU, the run says what it computes in.
fn bf16_is_asked_for_and_not_there() -> Result<()> {
    let args = format!("{SMALL} --precision bf16");
    refused(&args, &["--precision bf16: the CPU computes in f32"])?;
    let args = args.replace("--device cpu", "--gpus 1");
    for program in ["scratch", "concise"] {
        let [stdout, _] = succeeds(program, &args)?;
        let line = "--precision bf16 has no effect: the CPU computes in f32";
        let (on_cpu, mut said) = (stdout.contains(" on [cpu(0)]"), stdout.lines());
        ensure!(said.any(|said| said == line) == on_cpu, "{stdout}");
    }
    Ok(())
}

fn x_and_y_of_different_lengths() -> Result<()> {
    let x = Tensor::zeros((256, 1, 28, 28), DType::F32, &Device::Cpu)?;
    let y = Tensor::zeros(255, DType::U32, &Device::Cpu)?;
    let split = scratch::split_batch(&x, &y, &cpus(2));
    says("x has 256 examples, y has 255", split)
}

fn help_is_grouped_and_has_the_statuses_and_the_books_values() -> Result<()> {
    for (program, batch_size, lr) in [("scratch", "256", "0.2"), ("concise", "256·K", "0.1·K")] {
        for (form, columns) in [("-h", 80), ("--help", 80), ("--help", 100)] {
            let mut command = command(program, form)?;
            let output = command.env("COLUMNS", columns.to_string()).output()?;
            let help = String::from_utf8(output.stdout)?;
            ensure!(output.status.success(), "{help}");
            let fits = |line: &str| line.chars().count() <= columns;
            ensure!(help.lines().all(fits), "{help}");
            let mut words = help.split_whitespace();
            for group in ["Training:", "Data:", "Record:", "Devices:"] {
                let in_order = words.any(|word| word == group);
                ensure!(in_order, "{group} has another place in\n{help}");
            }
            let joined = help.split_whitespace().collect::<Vec<_>>().join(" ");
            has(&joined, "on Fashion-MNIST, data-parallel")?;
            for (option, default) in [("--batch-size", batch_size), ("--lr", lr)] {
                let after = joined.split(option).nth(1).unwrap_or_default();
                let said = after.split("[default: ").nth(1).unwrap_or_default();
                let is_the_books = said.starts_with(&format!("{default}]"));
                ensure!(is_the_books, "{option} in\n{help}");
            }
            ensure!(form == "-h" || help.contains("130 Ctrl-C"), "{help}");
        }
    }
    Ok(())
}
