//! The command line: shows an exercise, and checks it when its file is saved.

use std::fmt::Display;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::{Parser, Subcommand};
use console::style;
use lab::answer::{Outcome, outcome};
use lab::{ALL, Desk, Exercise};

/// Exercises to fill in: the functions of the book's page, then the parts of a trainer, then puzzles.
///
/// Without a command: the first exercise that is not solved, checked whenever you save its file.
#[derive(Parser)]
#[command(
    bin_name = "cargo run -p lab --",
    disable_help_subcommand = true,
    args_conflicts_with_subcommands = true
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Verb>,
    /// Number of the exercise to begin with [default: the first that is not solved]
    exercise: Option<String>,
}

#[derive(Subcommand)]
enum Verb {
    /// Print a hint
    Hint {
        /// Number of the exercise [default: the first that is not solved]
        exercise: Option<String>,
    },
    /// Print the solution of an exercise that you solved
    Solution {
        /// Number of the exercise
        exercise: String,
        /// Print it although it is not solved
        #[arg(long)]
        insist: bool,
    },
    /// Begin an exercise anew; the old file stays beside it as NAME.rs.old
    Reset {
        /// Number of the exercise
        exercise: String,
    },
    /// Print your schedule of a puzzle as JSON, for the page to play with
    Export {
        /// Number of the puzzle
        puzzle: String,
    },
    /// Check the exercises that you have begun, or one
    Check {
        /// Number of the exercise [default: all that you have begun]
        exercise: Option<String>,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{} {error:#}", style("error:").red().bold());
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    let desk = Desk::open()?;
    match cli.command {
        None => watch(&desk, cli.exercise.as_deref()),
        Some(Verb::Hint { exercise }) => {
            let exercise = match exercise {
                Some(name) => Some(Exercise::find(&name)?),
                None => desk.next()?,
            };
            let hint = exercise.map_or("All exercises are solved.", |exercise| exercise.hint);
            println!("{}", hint.trim_end());
            Ok(())
        }
        Some(Verb::Solution { exercise, insist }) => {
            let exercise = Exercise::find(&exercise)?;
            if !insist && !desk.is_solved(exercise)? {
                let how = "`hint` helps; --insist prints it all the same";
                bail!("{} is not solved yet. {how}", exercise.name);
            }
            print!("{}", exercise.solution);
            Ok(())
        }
        Some(Verb::Reset { exercise }) => {
            let exercise = Exercise::find(&exercise)?;
            if let Some(old) = desk.reset(exercise)? {
                println!("What you had is {}.", shown(&old));
            }
            println!("{} is new.", shown(&desk.copy(exercise)?));
            Ok(())
        }
        Some(Verb::Export { puzzle }) => export(&desk, Exercise::find(&puzzle)?),
        Some(Verb::Check { exercise }) => match exercise {
            Some(name) => match check(&desk, Exercise::find(&name)?)? {
                true => Ok(()),
                false => bail!("not solved"),
            },
            None => check_all(&desk),
        },
    }
}

/// Shows the first exercise that is not solved, and checks it after each change, until all are solved. It reads the small
/// file again and again: a library that waits for changes would change features that the other programs share.
fn watch(desk: &Desk, first: Option<&str>) -> Result<()> {
    let mut next = match first {
        Some(name) => Some(Exercise::find(name)?),
        None => desk.next()?,
    };
    while let Some(exercise) = next {
        let path = desk.copy(exercise)?;
        show(desk, exercise, &path)?;
        let mut checked = exercise.gap.to_owned();
        loop {
            let answer = fs::read_to_string(&path).unwrap_or_default();
            if answer != checked && !answer.is_empty() {
                checked = answer;
                println!("checking …");
                if report(desk, exercise, &path)? {
                    break;
                }
            }
            thread::sleep(Duration::from_millis(100));
        }
        next = desk.after(exercise)?;
    }
    println!("{}", style("All exercises are solved.").green().bold());
    Ok(())
}

/// Prints the schedule of an answer, right or wrong.
fn export(desk: &Desk, puzzle: &Exercise) -> Result<()> {
    let (name, first) = (puzzle.name, SECTIONS[1].1 + 1);
    if puzzle.number() < first {
        bail!("{name} is no puzzle: they are {first} to {}", ALL.len());
    }
    ensure!(desk.has(puzzle), "you have not begun {name}");
    let path = desk.copy(puzzle)?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("schedule.json");
    let wrong = match outcome(puzzle, &path, Some(&file))? {
        Outcome::NotCompiled(said) => {
            eprintln!("{said}");
            "It does not compile.".to_owned()
        }
        Outcome::Wrong(sentence) => sentence,
        Outcome::Right => String::new(),
    };
    match fs::read_to_string(file) {
        Ok(json) => println!("{json}"),
        Err(_) => bail!("{name} gives no schedule. {wrong}"),
    }
    Ok(())
}

/// Checks the exercises that the reader has begun.
fn check_all(desk: &Desk) -> Result<()> {
    let begun: Vec<&Exercise> = ALL.iter().filter(|exercise| desk.has(exercise)).collect();
    let mut open = 0;
    for exercise in &begun {
        open += usize::from(!check(desk, exercise)?);
    }
    ensure!(open == 0, "{open} of {} are not solved", begun.len());
    Ok(())
}

/// Checks an exercise once; whether it is right.
fn check(desk: &Desk, exercise: &Exercise) -> Result<bool> {
    println!("{}", heading(exercise));
    report(desk, exercise, &desk.copy(exercise)?)
}

/// Checks one answer, and says how it is; whether it is right.
fn report(desk: &Desk, exercise: &Exercise, path: &Path) -> Result<bool> {
    let answer = fs::read(path)?;
    let outcome = outcome(exercise, path, None)?;
    match &outcome {
        Outcome::Right => {
            desk.solve(exercise, &answer)?;
            println!("{} Right.", style("✓").green().bold());
            let number = exercise.number();
            println!("  Compare: cargo run -p lab -- solution {number}\n");
        }
        Outcome::Wrong(sentence) => println!("{} {sentence}\n", style("✗").red().bold()),
        Outcome::NotCompiled(said) => {
            println!("{said}");
            if said.contains("checks/") {
                println!("The check needs the names and types of the functions as they were.\n");
            }
        }
    }
    Ok(outcome == Outcome::Right)
}

/// The sections, each with the number of its last exercise.
const SECTIONS: [(&str, usize); 3] = [("section 13.5", 5), ("the trainer", 11), ("puzzles", 21)];

/// How far the reader is, the task, and the file.
fn show(desk: &Desk, exercise: &Exercise, path: &Path) -> Result<()> {
    let mut begin = 0;
    for (section, end) in SECTIONS {
        print!("{section} ");
        for exercise in &ALL[begin..end] {
            let is_solved = desk.is_solved(exercise)?;
            print!("{}", if is_solved { '●' } else { '○' });
        }
        print!("  ");
        begin = end;
    }
    println!("\n\n{}\n", heading(exercise));
    println!("{}\n", exercise.task());
    let file = style(shown(path)).cyan();
    println!("Fill in {file}. It is checked when you save it.");
    println!("A hint: cargo run -p lab -- hint {}\n", exercise.number());
    Ok(())
}

fn heading(exercise: &Exercise) -> impl Display {
    style(format!("{}. {}", exercise.number(), exercise.title())).bold()
}

/// A path as a reader in the repository's folder writes it.
fn shown(path: &Path) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = root.canonicalize().unwrap_or(root);
    let path = path.strip_prefix(&root).unwrap_or(path);
    path.display().to_string()
}
