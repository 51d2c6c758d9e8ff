//! Wrong input is an error before any training, with exit status 2 and a message that says what
//! to do; never a panic.

use std::fs;
#[cfg(unix)]
use std::process::Command;

use anyhow::{Result, ensure};
use candle_core::{DType, Device, Tensor};

use crate::kit::{command, cpus, run, until_there};

trials![
    options_that_cannot_be_used,
    options_of_concise_alone,
    data_that_was_named_and_cannot_be_used,
    parameters_that_were_named_and_cannot_be_used,
    a_folder_that_holds_a_run_is_refused,
    cuda_is_asked_for_and_not_there,
    bf16_is_asked_for_and_not_there,
    what_goes_wrong_later_is_status_1,
    x_and_y_of_different_lengths,
    help_says_the_exit_statuses,
    help_is_grouped_and_has_the_books_values,
    a_shell_completes_the_options,
];

const SMALL: &str = "--device cpu --data synthetic --limit-train 40 --limit-test 10 --epochs 1";
/// As `SMALL`, for a case that sets the rest itself.
const BARE: &str = "--device cpu --data synthetic --limit-test 10";

/// Both programs refuse `args` with status 2 and a line on stderr that has all of `words`.
fn refused(args: &str, words: &[&str]) -> Result<()> {
    for program in ["scratch", "concise"] {
        let (status, stdout, stderr) = run(program, args)?;
        ensure!(
            status == 2,
            "{program} {args}: status {status}\n{stdout}{stderr}"
        );
        for word in words {
            ensure!(
                stderr.contains(word),
                "{program} {args}: no {word:?} in\n{stderr}"
            );
        }
        ensure!(!stderr.contains("panicked"), "{stderr}");
        ensure!(!stdout.contains("epoch 1"), "it trained:\n{stdout}");
    }
    Ok(())
}

fn options_that_cannot_be_used() -> Result<()> {
    let cases = [
        ("--gpus 0", "--gpus 0: at least 1 is needed"),
        ("--batch-size 0", "--batch-size 0: at least 1"),
        (
            "--gpus 3 --batch-size 2",
            "a minibatch of 2 examples cannot be split over 3 devices",
        ),
        ("--lr NaN", "--lr NaN: a learning rate is a finite number"),
        ("--lr inf", "--lr inf"),
        ("--lr -0.1", "--lr -0.1"),
        ("--epochs 0", "--epochs 0"),
        ("--threads 0", "--threads 0"),
        ("--gpus 18446744073709551615", "at most 1024 are possible"),
        ("--threads 20000", "--threads 20000: at most 1024"),
        ("--limit-train 0", "--limit-train 0"),
        ("--gpus two", "two"),
        ("--dataset imagenet", "imagenet"),
        ("--no-such-option", "--no-such-option"),
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
        ("--weight-decay inf", "--weight-decay inf"),
        ("--allreduce rings", "star, owner, ring, tree, auto"),
        ("--reduce-on moon", "moon"),
        ("--bucket-mb 0", "--bucket-mb 0: expected a number above 0"),
        ("--timeout -1", "--timeout -1: expected a number above 0"),
        ("--accumulate 0", "--accumulate 0: a step has at least 1"),
        ("--split 3,1", "--split 3,1: 2 weights for 3 replicas"),
        ("--split 3,0,1", "positive numbers"),
        ("--split measured --sync-bn", "give weights"),
        (
            "--backend nccl --reduce-on host",
            "--backend nccl sums on the devices",
        ),
        #[cfg(not(feature = "nccl"))]
        (
            "--backend nccl",
            "error: --backend nccl: this program was built without MPI and NCCL; \
             rebuild it with --features mpi,nccl\n",
        ),
    ];
    for (args, words) in cases {
        let args = format!("{SMALL} --gpus 3 {args}");
        let (status, stdout, stderr) = run("concise", &args)?;
        ensure!(status == 2, "{args}: status {status}\n{stderr}");
        ensure!(stderr.contains(words), "no {words:?} in\n{stderr}");
        ensure!(!stdout.contains("epoch 1"), "it trained:\n{stdout}");
        let (status, _, _) = run("scratch", &args)?;
        ensure!(status == 2, "scratch {args}: status {status}");
    }
    Ok(())
}

fn data_that_was_named_and_cannot_be_used() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().display().to_string();
    refused("--data /no/such/folder", &["/no/such/folder"])?;
    refused(
        &format!("--data {path}"),
        &[&path, "train-images-idx3-ubyte"],
    )?;
    fs::write(folder.path().join("train-images-idx3-ubyte"), [0, 0, 8, 3])?;
    refused(&format!("--data {path}"), &["train-"])
}

fn parameters_that_were_named_and_cannot_be_used() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("init.safetensors");
    let args = format!("{SMALL} --init {}", path.display());
    refused(&args, &["init.safetensors"])?; // it is not there
    fs::write(&path, "no tensors")?;
    refused(&args, &["init.safetensors"])?;
    let one = [("W1".to_owned(), Tensor::zeros(1, DType::F32, &Device::Cpu)?)];
    run::weights::save(&path, &one)?;
    let (status, _, stderr) = run("scratch", &args)?;
    ensure!(
        status == 2 && stderr.contains("\"W1\" has shape [1]"),
        "{stderr}"
    );
    let (status, _, stderr) = run("concise", &args)?;
    ensure!(
        status == 2 && stderr.contains("no tensor \"0.weight\""),
        "{stderr}"
    );
    Ok(())
}

fn a_folder_that_holds_a_run_is_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("epochs.csv"), "an earlier run")?;
    let args = format!("{SMALL} --out {}", folder.path().display());
    refused(&args, &["already holds a run", "--overwrite"])?;
    let kept = fs::read_to_string(folder.path().join("epochs.csv"))?;
    ensure!(kept == "an earlier run", "{kept}");
    let (status, _, stderr) = run("scratch", &format!("{args} --overwrite"))?;
    ensure!(status == 0, "{stderr}");
    Ok(())
}

fn cuda_is_asked_for_and_not_there() -> Result<()> {
    if !d2l::try_gpu(0).is_cpu() {
        // there is a GPU: then the run trains on it
        let (status, stdout, _) = run("scratch", &SMALL.replace("cpu", "cuda"))?;
        ensure!(status == 0 && stdout.contains("cuda(0)"), "{stdout}");
        return Ok(());
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
    for program in ["scratch", "concise"] {
        let args = args.replace("--device cpu", "--gpus 1");
        said_on_the_cpu(
            program,
            &args,
            "--precision bf16 has no effect: the CPU computes in f32",
        )?;
    }
    Ok(())
}

/// A run with one replica says the line if it is on the CPU, and not on a GPU.
fn said_on_the_cpu(program: &str, args: &str, line: &str) -> Result<()> {
    let (status, stdout, stderr) = run(program, args)?;
    let says = stdout.lines().any(|said| said == line);
    let on_cpu = stdout.contains(" on [cpu(0)]");
    ensure!(status == 0 && says == on_cpu, "{stdout}{stderr}");
    Ok(())
}

fn what_goes_wrong_later_is_status_1() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("run");
    let args = format!(
        "{BARE} --limit-train 400 --epochs 20 --out {}",
        out.display()
    );
    let mut child = command("scratch", &args)?
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()?;
    until_there(&out.join("steps.csv"), &mut child)?;
    // the parameters cannot take their name at the end: a folder has it
    fs::create_dir_all(out.join("model.safetensors").join("in the way"))?;
    let status = child.wait()?;
    ensure!(status.code() == Some(1), "{status}");
    Ok(())
}

fn x_and_y_of_different_lengths() -> Result<()> {
    let x = Tensor::zeros((256, 1, 28, 28), DType::F32, &Device::Cpu)?;
    let y = Tensor::zeros(255, DType::U32, &Device::Cpu)?;
    let error = scratch::split_batch(&x, &y, &cpus(2))
        .unwrap_err()
        .to_string();
    ensure!(error.contains("x has 256 examples, y has 255"), "{error}");
    Ok(())
}

fn help_says_the_exit_statuses() -> Result<()> {
    for program in ["scratch", "concise"] {
        let (status, stdout, _) = run(program, "--help")?;
        ensure!(status == 0 && stdout.contains("130 Ctrl-C"), "{stdout}");
        let first = stdout.lines().next().unwrap_or_default();
        ensure!(first.contains("on Fashion-MNIST, data-parallel"), "{first}");
        ensure!(
            stdout.lines().all(|line| line.chars().count() <= 100),
            "{stdout}"
        );
    }
    Ok(())
}

fn help_is_grouped_and_has_the_books_values() -> Result<()> {
    for (program, batch_size, lr) in [("scratch", "256", "0.2"), ("concise", "256·K", "0.1·K")] {
        for short_or_long in ["-h", "--help"] {
            let output = command(program, short_or_long)?
                .env("COLUMNS", "80")
                .output()?;
            let help = String::from_utf8(output.stdout)?;
            ensure!(output.status.success(), "{help}");
            ensure!(help.lines().all(|l| l.chars().count() <= 80), "{help}");
            let mut words = help.split_whitespace();
            for group in ["Training:", "Data:", "Record:", "Devices:", "--completions"] {
                ensure!(
                    words.any(|word| word == group),
                    "{group} has another place in\n{help}"
                );
            }
            let joined = help.split_whitespace().collect::<Vec<_>>().join(" ");
            for (option, default) in [("--batch-size", batch_size), ("--lr", lr)] {
                let after = joined.split(option).nth(1).unwrap_or_default();
                let said = after.split("[default: ").nth(1).unwrap_or_default();
                ensure!(
                    said.starts_with(&format!("{default}]")),
                    "{option} in\n{help}"
                );
            }
        }
    }
    Ok(())
}

/// What `--completions bash` prints, in a real bash.
#[cfg(unix)]
fn a_shell_completes_the_options() -> Result<()> {
    let (status, script, _) = run("concise", "--completions bash")?;
    ensure!(status == 0);
    for (typed, completed) in [
        ("--batch", "--batch-size"),
        ("--allreduce r", "ring"),
        ("--dataset mn", "mnist"),
    ] {
        let last = typed.split(' ').next_back().unwrap_or_default();
        let line = format!("concise {typed}");
        let before = line.split(' ').nth_back(1).unwrap_or_default();
        let asks = format!(
            "{script}\nCOMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
             _concise concise '{last}' '{before}'; echo \"${{COMPREPLY[@]}}\""
        );
        let output = Command::new("bash")
            .args(["--norc", "-c", &asks])
            .output()?;
        let answer = String::from_utf8_lossy(&output.stdout);
        ensure!(answer.trim() == completed, "{typed}: {answer:?}");
    }
    let (status, _, stderr) = run("scratch", "--completions cobol")?;
    ensure!(
        status == 2 && stderr.contains("bash, elvish, fish"),
        "{stderr}"
    );
    Ok(())
}

/// Without a bash, that there is a script.
#[cfg(not(unix))]
fn a_shell_completes_the_options() -> Result<()> {
    let (status, script, _) = run("concise", "--completions powershell")?;
    ensure!(status == 0 && script.contains("--batch-size"), "{script}");
    Ok(())
}
