//! What goes wrong in a long run is said, and costs no more than it has to: a loss that is no number, replicas
//! that drift apart, a full disk, a dataset that vanishes.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor, Var};
use candle_nn::VarBuilder;
use concise::layers::Linear;
use concise::{DataParallel, Initializer};
use libtest_mimic::Trial;

use crate::kit::{Test, command, cpus, has, idx_files, refuses, run, signal, succeeds};
use crate::kit::{trial, trial_if, until_there};

pub fn trials() -> Vec<Trial> {
    let always: [(&str, Test); 5] = [
        (
            "a_loss_that_is_no_number_ends_the_run",
            a_loss_that_is_no_number,
        ),
        (
            "parameters_that_overflow_are_not_kept",
            parameters_that_overflow,
        ),
        ("replicas_that_differ_are_named", replicas_that_differ),
        ("a_dataset_may_vanish", a_dataset_may_vanish),
        (
            "what_cannot_be_written_costs_nothing_else",
            what_cannot_be_written,
        ),
    ];
    let on_a_small_disk: [(&str, Test); 2] = [
        (
            "a_full_disk_costs_a_checkpoint_and_not_the_run",
            a_full_disk,
        ),
        ("a_disk_that_cannot_be_written_is_named", a_read_only_disk),
    ];
    let disk = with_disk("size=64k", "true").is_ok_and(|output| output.status.success());
    let always = always.map(|(name, test)| trial(module_path!(), name, test));
    let on_a_small_disk = on_a_small_disk
        .map(|(name, test)| trial_if(disk, "mount namespaces", module_path!(), name, test));
    always.into_iter().chain(on_a_small_disk).collect()
}

const SMALL: &str =
    "--device cpu --data synthetic --limit-train 320 --limit-test 50 --batch-size 16 --gpus 2";

fn a_loss_that_is_no_number() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for (program, lr) in [("scratch", "1e9"), ("concise", "1e12")] {
        let out = folder.path().join(program);
        let args = format!(
            "{SMALL} --lr {lr} --checkpoint-every 1 --out {}",
            out.display()
        );
        let (status, _, stderr) = run(program, &args)?;
        ensure!(status == 1, "{program}: status {status}\n{stderr}");
        let first = "error: the loss is ";
        ensure!(
            stderr.starts_with(first) && stderr.lines().count() == 1,
            "{stderr}"
        );
        for words in [
            " in step ",
            "(epoch 1, lr 1000000000",
            "gradient",
            "try a smaller --lr",
        ] {
            has(&stderr, words)?;
        }
        let steps = fs::read_to_string(out.join("steps.csv"))?;
        let last = steps.lines().last().context("no step")?;
        ensure!(last.ends_with("NaN") || last.ends_with("inf"), "{steps}");
        let checkpoint = out.join("checkpoint.safetensors");
        for (name, tensor) in candle_core::safetensors::load(checkpoint, &Device::Cpu)? {
            let tensor = tensor.to_dtype(candle_core::DType::F32)?;
            let sum = tensor.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
            ensure!(sum.is_finite(), "{program} kept {name} with {sum}");
        }
        ensure!(!out.join("model.safetensors").exists());
    }
    Ok(())
}

/// The loss of the last step was fine, and the parameters after it are not.
fn parameters_that_overflow() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("run");
    let args = format!(
        "{SMALL} --limit-train 16 --epochs 1 --lr 1e300 --out {}",
        out.display()
    );
    let args = args.replacen("--limit-train 320 ", "", 1);
    let (status, _, stderr) = run("scratch", &args)?;
    ensure!(
        status == 1 && stderr.contains("NaN or infinity"),
        "{status}\n{stderr}"
    );
    ensure!(!out.join("model.safetensors").exists());
    Ok(())
}

fn replicas_that_differ() -> Result<()> {
    let weights: Arc<Mutex<Vec<Tensor>>> = Arc::default();
    let kept = weights.clone();
    let network = move |vb: VarBuilder<'_>| {
        let weight = vb.pp("fc").get((2, 3), "weight")?;
        kept.lock().expect("no thread panicked").push(weight);
        Linear::new(3, 2, vb.pp("fc"))
    };
    let net = DataParallel::new(&cpus(3), Initializer::Normal(0.1), 0, network)?;
    net.check_replicas()?;
    // the third replica's own memory
    let weight = &weights.lock().expect("no thread panicked")[2];
    let mut values = weight.to_vec2::<f32>()?;
    let was = std::mem::replace(&mut values[1][2], 7.0);
    Var::from_tensor(weight)?.set(&Tensor::new(values, &Device::Cpu)?)?;
    let error = net.check_replicas().unwrap_err().to_string();
    let expected =
        format!("the replicas differ: fc.weight[1, 2] is {was} on cpu(0) and 7 on cpu(2)");
    ensure!(error == expected, "{error}");
    Ok(())
}

fn write_dataset(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    for (name, bytes) in idx_files(64, 16) {
        fs::write(folder.join(name), bytes)?;
    }
    Ok(())
}

/// In the middle of a run, which goes on; a run that is to go on says what is missing, and goes on when it is back.
fn a_dataset_may_vanish() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (data, out) = (folder.path().join("data"), folder.path().join("run"));
    write_dataset(&data)?;
    let args = format!(
        "--device cpu --data {} --batch-size 4 --epochs 40 --out {}",
        data.display(),
        out.display()
    );
    let mut child = command("scratch", &args)?.stdout(Stdio::null()).spawn()?;
    until_there(&out.join("checkpoint.previous.safetensors"), &mut child)?;
    fs::remove_dir_all(&data)?;
    ensure!(child.wait()?.success());
    let model = out.join("model.safetensors");
    let whole = fs::read(&model)?;
    fs::remove_file(&model)?; // as if it had been ended before
    let resume = format!("--resume {}", out.display());
    refuses("scratch", &resume, &[&data.display().to_string()])?;
    write_dataset(&data)?;
    succeeds("scratch", &resume)?;
    ensure!(fs::read(&model)? == whole, "another model");
    Ok(())
}

/// Folders that stand where the files are written beside their names.
#[cfg(unix)]
fn what_cannot_be_written() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (out, trace) = (folder.path().join("run"), folder.path().join("trace.json"));
    for picture in [".loss.svg", ".accuracy.svg"] {
        fs::create_dir_all(out.join(picture))?;
    }
    std::os::unix::fs::symlink("/dev/full", &trace)?;
    let args = format!(
        "{SMALL} --epochs 200 --checkpoint-every 1 --overwrite --trace {} --out {}",
        trace.display(),
        out.display()
    );
    let mut child = command("scratch", &args)?
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let beside = out.join(".checkpoint.safetensors.partial");
    while !out.join("epochs.csv").exists() || fs::create_dir(&beside).is_err() {
        ensure!(child.try_wait()?.is_none(), "it ended before its end");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(300)); // some dozen steps
    signal("-TERM", child.id())?;
    let mut stdout = String::new();
    child
        .stdout
        .take()
        .context("stdout")?
        .read_to_string(&mut stdout)?;
    let output = child.wait_with_output()?;
    let stderr = String::from_utf8(output.stderr)?;
    for words in [
        "loss.svg: ",
        "checkpoint.safetensors: ",
        "--trace: cannot write ",
    ] {
        let said = stderr
            .lines()
            .filter(|line| line.starts_with("warning: ") && line.contains(words));
        ensure!(said.count() == 1, "{words}\n{stderr}");
    }
    ensure!(
        output.status.code() == Some(130),
        "{}\n{stderr}",
        output.status
    );
    let end = stdout
        .lines()
        .find(|line| line.starts_with("interrupted in epoch"));
    let end = end.context("no end")?;
    let steps: Vec<usize> = end
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|word| word.parse().ok())
        .collect();
    ensure!(
        end.contains(" continues after step ") && steps.last() < steps.get(2),
        "{end}"
    );
    ensure!(out.join("model.safetensors").exists(), "no model");
    Ok(())
}

#[cfg(not(unix))]
fn what_cannot_be_written() -> Result<()> {
    Ok(())
}

/// Runs a script with a disk of a few MB, in a mount namespace, in its folder `$DISK`; `$PROGRAM` is `scratch`.
fn with_disk(options: &str, script: &str) -> std::io::Result<std::process::Output> {
    let folder = tempfile::tempdir()?;
    let mount = format!("mount -t tmpfs -o {options} none \"$DISK\" || exit 99\n{script}");
    let program = std::env::current_exe()?;
    Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", &mount])
        .env("DISK", folder.path())
        .env("PROGRAM", format!("{} --as scratch", program.display()))
        .stdin(Stdio::null())
        .output()
}

/// The disk is filled while the run goes on, and emptied when it complains.
fn a_full_disk() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let whole = folder.path().join("whole");
    let args =
        "--device cpu --data synthetic --limit-train 64 --limit-test 16 --batch-size 4 --epochs 60";
    succeeds("scratch", &format!("{args} --out {}", whole.display()))?;
    let kept = folder.path().join("kept");
    let script = format!(
        "$PROGRAM {args} --out $DISK/run 2> {kept}.stderr & run=$!\n\
         until [ -e $DISK/run/checkpoint.previous.safetensors ]; do sleep 0.01; done\n\
         cat /dev/zero > $DISK/filler 2> /dev/null\n\
         until grep -q warning {kept}.stderr; do kill -0 $run || exit 98; sleep 0.01; done\n\
         $PROGRAM --resume $DISK/run > /dev/null 2>&1; [ $? = 2 ] || exit 97\n\
         rm $DISK/filler; wait $run || exit 96\n\
         cp -r $DISK/run {kept}",
        kept = kept.display()
    );
    let start = Instant::now();
    let output = with_disk("size=4m", &script)?;
    let said = fs::read_to_string(kept.with_extension("stderr"))?;
    ensure!(
        output.status.success(),
        "{} after {:?}\n{said}",
        output.status,
        start.elapsed()
    );
    let words = "No space left on device (os error 28); the run goes on";
    ensure!(
        said.starts_with("warning: cannot write ") && said.contains(words),
        "{said}"
    );
    for file in ["model.safetensors", "steps.csv"] {
        let read = |folder: &Path| fs::read(folder.join(file));
        ensure!(read(&whole)? == read(&kept)?, "another {file}");
    }
    Ok(())
}

fn a_read_only_disk() -> Result<()> {
    let output = with_disk("ro", &format!("$PROGRAM {SMALL} --out $DISK/run"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let words = "Read-only file system";
    ensure!(
        output.status.code() == Some(2) && stderr.contains(words),
        "{output:?}"
    );
    Ok(())
}
