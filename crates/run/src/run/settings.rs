//! What the result of a run depends on, in lines: `batch size 256`.

use std::path::Path;

use anyhow::{Result, bail};
use dataset::Name;

use super::chosen::Chosen;
use crate::options::Options;

/// The settings of a run. In which processes the replicas are is not a setting.
pub(super) fn settings_of(chosen: &Chosen, options: &Options) -> String {
    let (precision, deterministic) = (options.precision, options.deterministic);
    let device = if chosen.devices[0].is_cpu() {
        "cpu".to_owned()
    } else {
        format!("cuda, {precision:?}, deterministic: {deterministic}").to_lowercase()
    };
    let init = options
        .init
        .as_deref()
        .map(Path::display)
        .map_or("random".to_owned(), |file| file.to_string());
    let order = if options.no_shuffle {
        "as in the file"
    } else {
        "shuffled"
    };
    let drawn = if chosen.data.source.is_synthetic {
        "synthetic "
    } else {
        ""
    };
    let [train, test] = [&chosen.data.train, &chosen.data.test].map(|split| split.checksum());
    let lines = [
        format!("network {}", chosen.network),
        format!("replicas {}", chosen.replicas),
        format!("device {device}"),
        format!("batch size {}", chosen.sizes.batch),
        format!("lr {}", chosen.lr),
        format!("epochs {}", options.epochs),
        format!("seed {}", options.seed),
        format!("init {init}"),
        format!("training examples {}", chosen.sizes.train),
        format!("test examples {}", chosen.sizes.test),
        format!("order {order}"),
        format!("images {drawn}{} {train:08x} {test:08x}", options.dataset),
    ];
    lines.join("\n")
}

/// An error that names the first setting of the other run which this one does not have. The number of epochs may be
/// another one, unless a schedule of the learning rate depends on it, which is a setting then.
pub(super) fn check_same(own: &str, other: &str) -> Result<()> {
    let other: Vec<&str> = other.lines().filter(|line| !is_epochs(line)).collect();
    let Some((instead, line)) = training::difference(own, &other.join("\n")) else {
        return Ok(());
    };
    let key = line.split(' ').next().unwrap_or_default();
    let why = match line.as_str() {
        "summed in the order of ranks" => {
            "its sums have the order of the star: resume with --allreduce star"
        }
        _ if key == "replicas" => {
            "each minibatch is split over the replicas, so another number is another run. Resume with as many --gpus, in \
             any processes; or begin a new run with its parameters: --init FILE"
        }
        _ if key == "schedule" && name(&instead) == name(&line) => {
            "the learning rate of each step depends on the number of all steps, so with other --epochs it is another run \
             from its first step on. Resume with the same --epochs; or begin a new run with its parameters: --init FILE"
        }
        _ if key == "images" => &which_images(&instead, &line),
        _ => "resume with the same options",
    };
    bail!("the run there has {line:?}, this one has {instead:?}; {why}")
}

/// What to do where a run had other images.
fn which_images(own: &str, other: &str) -> String {
    let name = other.split(' ').find_map(|word| word.parse().ok());
    let variable = name.unwrap_or(Name::FashionMnist).env_var();
    let is_synthetic = |line: &str| line.starts_with("images synthetic");
    if is_synthetic(other) {
        "that run had synthetic images: resume with --data synthetic".to_owned()
    } else if is_synthetic(own) {
        format!(
            "that run read its images from files, and none are named here: set {variable}, or give --data DIR"
        )
    } else {
        format!(
            "the images are others: name the folder that the run had, with {variable} or --data DIR"
        )
    }
}

fn is_epochs(line: &str) -> bool {
    line.starts_with("epochs ")
}

/// The name in a line such as `schedule cosine in 470 steps`.
fn name(schedule: &str) -> Option<&str> {
    schedule.split(' ').nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_go_on_says_why_and_what_to_do() {
        for (own, other, words) in [
            ("replicas 2", "replicas 4", "Resume with as many --gpus"),
            (
                "summed in the order of pairs",
                "summed in the order of ranks",
                "resume with --allreduce star",
            ),
            (
                "seed 1",
                "seed 2",
                "this one has \"seed 1\"; resume with the same options",
            ),
            (
                "schedule cosine in 20 steps",
                "schedule cosine in 10 steps",
                "with other --epochs it is another run",
            ),
            (
                "images synthetic mnist 1 2",
                "images mnist 3 4",
                "none are named here: set MNIST_DIR, or give --data DIR",
            ),
            (
                "images fashion-mnist 1 2",
                "images synthetic fashion-mnist 3 4",
                "that run had synthetic images: resume with --data synthetic",
            ),
            (
                "images fashion-mnist 1 2",
                "images fashion-mnist 3 4",
                "name the folder that the run had, with FASHION_MNIST_DIR or --data DIR",
            ),
            (
                "schedule cosine in 20 steps",
                "schedule constant",
                "; resume with the same options",
            ),
        ] {
            let error = check_same(own, other).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        assert!(check_same("seed 1\nreplicas 4", "replicas 4\nseed 1").is_ok());
        assert!(check_same("seed 1\nepochs 4", "seed 1\nepochs 2").is_ok());
    }
}
