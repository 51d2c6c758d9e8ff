//! What goes wrong in a long run is said, and costs no more than it has to: a loss that is no number, replicas
//! that drift apart, a full disk, a dataset that vanishes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor, Var};
use candle_nn::VarBuilder;
use concise::layers::Linear;
use concise::{DataParallel, Initializer};
use libtest_mimic::Trial;

#[cfg(unix)]
use crate::kit::{command, signal, until_there};
use crate::kit::{cpus, has, largest, refuses, run, start, succeeds, until_two_checkpoints};
use crate::kit::{in_a_namespace, write_idx};

pub fn trials() -> Vec<Trial> {
    let disk = with_disk("size=64k", "true").is_ok_and(|output| output.status.success());
    let mut trials = listed!(
        true,
        "",
        a_loss_that_is_no_number_ends_the_run,
        parameters_that_overflow_are_told,
        replicas_that_differ_are_named,
        a_dataset_may_vanish,
        #[cfg(unix)]
        what_cannot_be_written_costs_nothing_else,
    );
    trials.extend(listed!(
        disk,
        "mount namespaces",
        a_full_disk_costs_a_checkpoint_and_not_the_run,
        a_disk_that_cannot_be_written_is_named,
    ));
    trials
}

const SMALL: &str =
    "--device cpu --data synthetic --limit-train 320 --limit-test 50 --batch-size 16 --gpus 2";

fn a_loss_that_is_no_number_ends_the_run() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let ends = |program: &str, args: &str, words: &[&str]| -> Result<PathBuf> {
        let out = folder.path().join(program);
        let args = format!("{SMALL} {args} --out {}", out.display());
        let (status, _, stderr) = run(program, &args)?;
        ensure!(status == 1, "{program}: status {status}\n{stderr}");
        ensure!(stderr.lines().count() == 1, "{stderr}");
        words.iter().try_for_each(|words| has(&stderr, words))?;
        ensure!(!out.join("model.safetensors").exists());
        Ok(out)
    };
    let words = [
        "error: the loss is ",
        " in step ",
        "(epoch 1, lr 1000000000",
        "try a smaller --lr",
    ];
    let out = ends("scratch", "--lr 1e9", &words)?;
    let steps = fs::read_to_string(out.join("steps.csv"))?;
    let last = steps.lines().last().context("no step")?;
    ensure!(last.ends_with("NaN") || last.ends_with("inf"), "{steps}");
    // the library refuses the step
    let words = [
        "error: step ",
        "at learning rate 1000000000000.0: ",
        "No step was taken",
        " holds the checkpoint of step ",
    ];
    let out = ends("concise", "--lr 1e12 --checkpoint-every 1", &words)?;
    let checkpoint = out.join("checkpoint.safetensors");
    for (name, tensor) in candle_core::safetensors::load(checkpoint, &Device::Cpu)? {
        if tensor.elem_count() > 0 {
            let most = largest(&tensor.to_dtype(candle_core::DType::F32)?)?;
            ensure!(most.is_finite(), "it kept {name} with {most}");
        }
    }
    Ok(())
}

/// The loss of the last step was fine, and the parameters after it are not.
fn parameters_that_overflow_are_told() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let model = folder.path().join("model.safetensors");
    let args = SMALL.replace("--limit-train 320", "--limit-train 16 --epochs 1");
    let kept = format!("--out {}", folder.path().display());
    for (out, words) in [
        (
            "",
            ["A step has made the parameter", "lost", "a smaller rate"],
        ),
        (
            &kept,
            [
                "A step has made the parameter",
                "a smaller rate",
                "the checkpoint of step 0",
            ],
        ),
    ] {
        let args = format!("{args} --lr 3e38 --weight-decay 10 {out}");
        let (status, _, stderr) = run("concise", &args)?;
        ensure!(status == 1, "{args}: {status}\n{stderr}");
        for words in words {
            has(&stderr, words)?;
        }
        ensure!(!model.exists());
    }
    refuses("scratch", &format!("{args} --lr 1e39"), &["--lr 1e39"])
}

fn replicas_that_differ_are_named() -> Result<()> {
    let weights: Arc<Mutex<Vec<Tensor>>> = Arc::default();
    let kept = weights.clone();
    let network = move |vb: VarBuilder<'_>| {
        let fc = Linear::new(3, 2, vb.pp("fc"))?;
        let weight = vb.get_unchecked("fc.weight")?;
        kept.lock().expect("no thread panicked").push(weight);
        Ok(fc)
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

/// In the middle of a run, which goes on; a run that is to go on says what is missing, and goes on when it is back.
fn a_dataset_may_vanish() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (data, out) = (folder.path().join("data"), folder.path().join("run"));
    write_idx(&data, 16, 8, "")?;
    let args = format!("--device cpu --data {} --batch-size 4", data.display());
    let args = format!("{args} --epochs 6 --out {}", out.display());
    let mut child = start("concise", &args)?;
    until_two_checkpoints(&out, &mut child)?;
    fs::remove_dir_all(&data)?;
    ensure!(child.wait()?.success());
    let model = out.join("model.safetensors");
    let whole = fs::read(&model)?;
    fs::remove_file(&model)?; // as if it had been ended before
    let resume = format!("--resume {}", out.display());
    refuses("concise", &resume, &[&data.display().to_string()])?;
    write_idx(&data, 16, 8, "")?;
    succeeds("concise", &resume)?;
    ensure!(fs::read(&model)? == whole, "another model");
    Ok(())
}

/// Folders that stand where the files are written.
#[cfg(unix)]
fn what_cannot_be_written_costs_nothing_else() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (out, trace) = (folder.path().join("run"), folder.path().join("trace.json"));
    let args = format!("{SMALL} --epochs 200 --checkpoint-every 1 --overwrite");
    let args = format!("{args} --trace {} --out {}", trace.display(), out.display());
    let mut child = command("concise", &args)?
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    until_there(&out.join("epochs.csv"), &mut child)?;
    for name in ["loss.svg", "accuracy.svg", ".checkpoint.next.safetensors"] {
        let occupied = folder.path().join("occupied");
        fs::create_dir_all(occupied.join("by a folder"))?;
        // the run may write the file once more before the folder is there
        while fs::rename(&occupied, out.join(name)).is_err() {
            ensure!(child.try_wait()?.is_none(), "it ended before its end");
            let _ = fs::remove_file(out.join(name));
        }
    }
    fs::create_dir(&trace)?;
    std::thread::sleep(std::time::Duration::from_secs(2)); // some steps
    signal("-TERM", child.id())?;
    let output = child.wait_with_output()?;
    let [stdout, stderr] = [output.stdout, output.stderr].map(String::from_utf8);
    let (stdout, stderr, status) = (stdout?, stderr?, output.status);
    for words in [
        ".svg: ", // the first that cannot be written
        ".checkpoint.next.safetensors: ",
        "--trace: cannot write ",
    ] {
        let said = |line: &&str| line.starts_with("warning: ") && line.contains(words);
        let times = stderr.lines().filter(said).count();
        ensure!(times == 1, "{words}\n{stderr}");
    }
    ensure!(status.code() == Some(130), "{status}\n{stderr}");
    let mut lines = stdout.lines();
    let end = lines.find(|line| line.starts_with("interrupted in epoch"));
    let end = end.context("no end")?;
    has(end, " continues after step ")?;
    let numbers = end.split(|c: char| !c.is_ascii_digit());
    let steps: Vec<usize> = numbers.filter_map(|word| word.parse().ok()).collect();
    ensure!(steps.last() < steps.get(2), "{end}");
    ensure!(out.join("model.safetensors").exists(), "no model");
    Ok(())
}

/// Runs a script with a small disk, in a mount namespace, in its folder `$DISK`; `$PROGRAM` is `concise`.
fn with_disk(options: &str, script: &str) -> Result<std::process::Output> {
    let folder = tempfile::tempdir()?;
    let mount = format!("mount -t tmpfs -o {options} none \"$DISK\" || exit 99\n{script}");
    let mut script = in_a_namespace("concise", &mount)?;
    Ok(script.env("DISK", folder.path()).output()?)
}

/// The disk is filled while the run goes on, and emptied when it complains.
fn a_full_disk_costs_a_checkpoint_and_not_the_run() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let whole = folder.path().join("whole");
    let args =
        "--device cpu --data synthetic --limit-train 8 --limit-test 4 --batch-size 4 --epochs 15";
    succeeds("concise", &format!("{args} --out {}", whole.display()))?;
    let kept = folder.path().join("kept");
    let script = format!(
        "$PROGRAM {args} --out $DISK/run 2> {kept}.stderr & run=$!\n\
         until ls $DISK/run/checkpoint-*.safetensors > /dev/null 2>&1; do sleep 0.01; done\n\
         cat /dev/zero > $DISK/filler 2> /dev/null\n\
         until grep -q warning {kept}.stderr; do kill -0 $run || exit 98; sleep 0.01; done\n\
         $PROGRAM --resume $DISK/run > /dev/null 2>&1; [ $? = 2 ] || exit 97\n\
         rm $DISK/filler; wait $run || exit 96\n\
         cp -r $DISK/run {kept}",
        kept = kept.display()
    );
    let status = with_disk("size=400m", &script)?.status;
    let said = fs::read_to_string(kept.with_extension("stderr"))?;
    ensure!(status.success(), "{status}\n{said}");
    ensure!(said.starts_with("warning: cannot write "), "{said}");
    let words = "No space left on device (os error 28); the run goes on";
    has(&said, words)?;
    for file in ["model.safetensors", "steps.csv"] {
        let read = |folder: &Path| fs::read(folder.join(file));
        ensure!(read(&whole)? == read(&kept)?, "another {file}");
    }
    Ok(())
}

fn a_disk_that_cannot_be_written_is_named() -> Result<()> {
    let output = with_disk("ro", &format!("$PROGRAM {SMALL} --out $DISK/run"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(2), "{output:?}");
    has(&stderr, "Read-only file system")
}
