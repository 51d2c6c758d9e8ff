//! What a run prints and leaves behind.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::kit::{has, small, start, succeeds};

trials![
    the_last_line_is_the_books,
    the_folder_holds_the_run,
    the_loss_grows_while_an_epoch_goes_on,
    a_run_goes_on_from_its_own_parameters,
    nothing_of_the_bar_where_stderr_is_no_terminal,
];

const SMALL: &str =
    "--device cpu --data synthetic --limit-train 50 --limit-test 20 --epochs 2 --batch-size 16";

fn the_last_line_is_the_books() -> Result<()> {
    for program in ["scratch", "concise"] {
        let [stdout, _] = succeeds(program, &format!("{SMALL} --gpus 2"))?;
        let last = stdout.lines().last().context("nothing was printed")?;
        let end = " sec/epoch on [cpu(0), cpu(1)] (synthetic data)";
        let is_the_books = last.starts_with("test acc: 0.") && last.ends_with(end);
        ensure!(is_the_books, "{last}");
        has(&stdout, "\nepoch 2, loss ")?;
    }
    Ok(())
}

fn the_folder_holds_the_run() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("a/new/folder");
    let args = format!("{SMALL} --gpus 3 --out {}", out.display());
    succeeds("scratch", &args)?;
    let steps = fs::read_to_string(out.join("steps.csv"))?;
    let lines: Vec<&str> = steps.lines().collect();
    ensure!(lines[0] == "epoch,step,examples,loss", "{steps}");
    ensure!(lines.len() == 1 + 2 * 4, "{steps}"); // 50 examples by 16: 16, 16, 16, 2
    has(&steps, "\n1,4,2,")?;
    has(&steps, "\n2,5,16,")?;
    let epochs = fs::read_to_string(out.join("epochs.csv"))?;
    has(&epochs, "epoch,loss,test_acc,seconds\n1,")?;
    ensure!(epochs.lines().count() == 3, "{epochs}");
    for (picture, shows) in [
        ("accuracy.svg", "test acc by epoch: "),
        ("loss.svg", "train loss by epoch: "),
    ] {
        let svg = fs::read_to_string(out.join(picture))?;
        has(&svg, &format!("aria-label=\"{shows}"))?;
        ensure!(svg.ends_with("</svg>\n"), "{svg}");
    }
    let mut left: Vec<_> = fs::read_dir(&out)?
        .map(|f| Ok(f?.file_name()))
        .collect::<Result<_>>()?;
    left.sort();
    let expected = [
        "accuracy.svg",
        "epochs.csv",
        "loss.svg",
        "model.safetensors",
        "steps.csv",
    ];
    ensure!(left == expected, "{left:?}");
    Ok(())
}

/// A viewer of the folder sees only whole pictures meanwhile, and none of an earlier run.
fn the_loss_grows_while_an_epoch_goes_on() -> Result<()> {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("loss.svg"), "an earlier run")?;
    let args = "--device cpu --data synthetic --limit-train 8000 --limit-test 20 --batch-size 4 --epochs 1";
    let args = format!("{args} --overwrite --out {}", folder.path().display());
    let mut program = start("concise", &args)?;
    let pictures = watch(folder.path(), 3);
    let epochs = fs::read_to_string(folder.path().join("epochs.csv"));
    program.kill()?;
    program.wait()?;
    let (pictures, epochs) = (pictures?, epochs?);
    ensure!(epochs.lines().count() == 1, "the epoch was over:\n{epochs}");
    let points = |svg: &String| svg.matches(',').count();
    ensure!(points(&pictures[0]) < points(&pictures[2]), "{pictures:?}");
    Ok(())
}

/// So many pictures of the loss, each another than the one before.
fn watch(folder: &Path, count: usize) -> Result<Vec<String>> {
    let start = Instant::now();
    let mut pictures = vec![];
    while pictures.len() < count {
        let seconds = start.elapsed().as_secs();
        ensure!(seconds < 100, "only {pictures:?}");
        // the folder is taken once there is a table
        let taken = folder.join("epochs.csv").exists();
        if let (true, Ok(svg)) = (taken, fs::read_to_string(folder.join("loss.svg"))) {
            ensure!(svg.ends_with("</svg>\n"), "no whole picture: {svg}");
            if pictures.last() != Some(&svg) {
                pictures.push(svg);
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(pictures)
}

/// `model.safetensors` of one run is `--init` of another: nothing of either network is lost.
fn a_run_goes_on_from_its_own_parameters() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for program in ["scratch", "concise"] {
        let first = folder.path().join(program);
        let again = folder.path().join(format!("{program} again"));
        let train = |options: &run::Options| match program {
            "scratch" => scratch::program::train(options),
            _ => concise::train(&options.clone().into()),
        };
        let mut options = small(2);
        options.out = Some(first.clone());
        train(&options)?;
        options.init = Some(first.join("model.safetensors"));
        options.out = Some(again.clone());
        options.lr = Some(0.0);
        train(&options)?;
        let model = |folder: &Path| {
            let model = folder.join("model.safetensors");
            candle_core::safetensors::load(model, &candle_core::Device::Cpu)
        };
        let (first, again) = (model(&first)?, model(&again)?);
        ensure!(first.len() == again.len());
        for (name, tensor) in &first {
            if name.contains("running") || name.contains("tracked") {
                continue; // they follow the data, whatever the learning rate
            }
            let difference = crate::kit::largest_difference(tensor, &again[name])?;
            ensure!(difference == 0.0, "{name}: {difference}");
        }
    }
    Ok(())
}

fn nothing_of_the_bar_where_stderr_is_no_terminal() -> Result<()> {
    let [stdout, stderr] = succeeds("scratch", SMALL)?;
    ensure!(stderr.is_empty(), "{stderr}");
    ensure!(!stdout.contains(['\r', '\u{1b}']), "{stdout:?}");
    Ok(())
}
