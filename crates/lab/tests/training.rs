//! The five functions together: the solutions are `scratch`, and what is wrong in one of them shows.

use std::process::Command;

use anyhow::{Result, bail, ensure};
use lab::training::{Functions, agree};
use lab::{ALL, FUNCTIONS, answer};

/// Five functions that train together.
struct Set {
    /// What is wrong in one of them; empty for the solutions.
    title: &'static str,
    functions: Functions,
}

/// A module for each set, in which the functions of five files are put together as in the program `train`, and all sets.
macro_rules! sets {
    ($($set:ident $title:literal: $one:literal $two:literal $three:literal $four:literal $five:literal;)*) => {
        $(mod $set {
            mod page {
                pub use super::{exercise_2::allreduce, exercise_3::split_batch};
                pub use scratch::{lenet, loss};
            }
            sets!(exercise_1 $one);
            sets!(exercise_2 $two);
            sets!(exercise_3 $three);
            sets!(exercise_4 $four);
            sets!(exercise_5 $five);
            pub const SET: super::Set = super::Set {
                title: $title,
                functions: lab::training::Functions {
                    get_params: exercise_1::get_params,
                    train_batch: exercise_4::train_batch,
                    accuracy: exercise_5::evaluate_accuracy_on_all,
                },
            };
        })*
        const SETS: &[Set] = &[$($set::SET),*];
    };
    ($module:ident $file:literal) => {
        #[allow(unused, clippy::all)]
        mod $module {
            use super::page as scratch;
            include!($file);
        }
    };
}

// the call of `sets!`
include!(concat!(env!("OUT_DIR"), "/sets.rs"));

/// These are wrong by their checks, and train like the solution.
const TRAIN_THE_SAME: [&str; 2] = [
    "The last device gets the whole remainder",
    "Different numbers of examples and labels",
];

#[test]
fn what_is_wrong_in_one_function_shows_when_all_train() -> Result<()> {
    for Set { title, functions } in SETS {
        let is_same = title.is_empty() || TRAIN_THE_SAME.contains(title);
        match agree(functions) {
            Ok(worst) => ensure!(is_same && worst < 1e-6, "{title:?} differs by {worst}"),
            Err(error) => ensure!(!is_same, "{title:?}: {error:#}"),
        }
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
