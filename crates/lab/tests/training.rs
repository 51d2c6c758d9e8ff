//! The five functions together: the solutions are `scratch`, and what is wrong in a step, in the copies or in the accuracy
//! shows.

use std::process::Command;
use std::slice::from_ref;

use anyhow::{Result, bail, ensure};
use lab::steps::{RIGHT, WRONG};
use lab::training::{Functions, SCRATCH, agree};
use lab::{ALL, FUNCTIONS, answer};

#[test]
fn what_is_wrong_in_one_function_shows_when_all_train() -> Result<()> {
    let with = |train_batch| Functions {
        train_batch,
        ..SCRATCH
    };
    let worst = agree(&with(RIGHT))?;
    ensure!(worst < 1e-6, "it differs by {worst}");
    let mut wrong: Vec<(&str, Functions)> = WRONG
        .iter()
        .map(|(title, step)| (*title, with(*step)))
        .collect();
    let other_params = Functions {
        get_params: |params, device| (SCRATCH.get_params)(&params[..1], device),
        ..SCRATCH
    };
    let mean_of_minibatches = Functions {
        accuracy: |replicas, devices, minibatches| {
            let of_one = |one| (SCRATCH.accuracy)(replicas, devices, from_ref(one));
            let parts: Vec<f64> = minibatches.iter().map(of_one).collect::<Result<_, _>>()?;
            Ok(parts.iter().sum::<f64>() / parts.len() as f64)
        },
        ..SCRATCH
    };
    wrong.push(("Only the first parameter gets a copy", other_params));
    wrong.push((
        "The mean of the accuracies of the minibatches",
        mean_of_minibatches,
    ));
    for (title, functions) in wrong {
        ensure!(agree(&functions).is_err(), "{title}");
    }
    Ok(())
}

/// The program trains with the solutions: a row for each epoch, and the last table. Data that cannot be read is an error
/// in a line.
#[test]
fn solutions_train() -> Result<()> {
    let files: Vec<_> = ALL[..FUNCTIONS]
        .iter()
        .map(|exercise| exercise.solution_file.into())
        .collect();
    let program = match answer::training(&files)? {
        Ok(program) => program,
        Err(said) => bail!(said),
    };
    let output = Command::new(&program)
        .args(["--data", "/nowhere"])
        .output()?;
    let said = String::from_utf8(output.stderr)?;
    let is_named = said.starts_with("error: cannot load fashion-mnist from /nowhere");
    ensure!(!output.status.success() && is_named, "{said}");
    ensure!(said.lines().count() == 1, "{said}");

    let mut command = Command::new(program);
    command.args([
        "--data",
        "synthetic",
        "--limit-train",
        "600",
        "--epochs",
        "2",
    ]);
    let output = command.output()?;
    let said = String::from_utf8(output.stdout)?;
    ensure!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    for line in [
        "are those of `scratch`, bit for bit",
        "\nAll epochs take about ",
        "0.100 is right at first",
        "\n    2 ",
        "\nyours ",
        "\nscratch ",
        "book, PyTorch",
    ] {
        ensure!(said.contains(line), "{line:?} is missing in\n{said}");
    }
    ensure!(!said.contains('✗'), "{said}");
    let accuracies = |name: &str| {
        let row = said.lines().find(|line| line.starts_with(name));
        let cells = row.into_iter().flat_map(str::split_whitespace);
        cells.skip(1).take(2).map(str::to_owned).collect::<Vec<_>>()
    };
    ensure!(accuracies("yours") == accuracies("scratch"), "{said}");
    let widest = said.lines().map(|line| line.chars().count()).max();
    ensure!(widest <= Some(80), "{widest:?} columns:\n{said}");
    Ok(())
}
