//! The command line: shows an exercise, and checks it when its file is saved.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, Subcommand};
use console::style;
use dataset::Data;
use lab::answer::{self, Outcome, outcome};
use lab::race::{RESNET18, race};
use lab::training::Settings;
use lab::{ALL, Desk, Exercise, FIRST_PUZZLE, FUNCTIONS};

/// Exercises to fill in: the functions of the book's page, then puzzles.
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
    /// Print a hint: a question
    Hint {
        /// Number of the exercise [default: the first that is not solved]
        exercise: Option<String>,
        /// Print the answer to the question
        #[arg(long)]
        answer: bool,
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
    /// Train LeNet with your functions of exercises 1 to 5, beside those of `scratch`
    Train {
        #[command(flatten)]
        settings: Settings,
    },
    /// Run your schedule of a puzzle on threads, in turns with star, owner, ring and tree
    Race {
        /// Number of a puzzle that you solved
        puzzle: String,
    },
}

/// Prints a line. A closed pipe (`… | head`) is no error.
macro_rules! say {
    ($($line:tt)*) => {{
        let _ = writeln!(std::io::stdout(), $($line)*);
    }};
}

/// Time between two looks at the file.
const LOOK: Duration = Duration::from_millis(100);
/// An editor may empty or replace a file for a moment. After this many looks it is missing.
const LOOKS: usize = 10;
/// After this time it is said what a check waits for.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(
                std::io::stderr(),
                "{} {error:#}",
                style("error:").red().bold()
            );
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    let desk = Desk::open();
    match cli.command {
        None => watch(&desk, cli.exercise.as_deref()),
        Some(Verb::Hint { exercise, answer }) => {
            let exercise = match exercise {
                Some(name) => Some(Exercise::find(&name)?),
                None => desk.next()?,
            };
            hint(exercise, answer);
            Ok(())
        }
        Some(Verb::Solution { exercise, insist }) => {
            let exercise = Exercise::find(&exercise)?;
            if !insist && !desk.is_solved(exercise)? {
                let how = "`hint` helps; --insist prints it all the same";
                bail!("{} is not solved yet. {how}", exercise.name);
            }
            say!("{}", exercise.solution.trim_end());
            Ok(())
        }
        Some(Verb::Reset { exercise }) => {
            let exercise = Exercise::find(&exercise)?;
            if let Some(old) = desk.reset(exercise)? {
                say!("What you had is {}.", shown(&old));
            }
            say!("{} is new.", shown(&desk.copy(exercise)?));
            Ok(())
        }
        Some(Verb::Export { puzzle }) => export(&desk, Exercise::find(&puzzle)?),
        Some(Verb::Check { exercise }) => match exercise {
            Some(name) => {
                if check(&desk, Exercise::find(&name)?)? {
                    Ok(())
                } else {
                    bail!("not solved")
                }
            }
            None => check_all(&desk),
        },
        Some(Verb::Train { settings }) => train(&desk, &settings),
        Some(Verb::Race { puzzle }) => {
            let puzzle = Exercise::find(&puzzle)?;
            let (json, outcome) = patiently(|| schedule(&desk, puzzle))?;
            if let Outcome::Wrong(sentence) = outcome {
                bail!("{} is not solved. {sentence}", puzzle.name);
            }
            say!("{}", race(&json, RESNET18)?);
            Ok(())
        }
    }
}

/// Prints a hint: its question, or the answer to it.
fn hint(exercise: Option<&Exercise>, answers: bool) {
    let Some(exercise) = exercise else {
        say!("All exercises are solved.");
        return;
    };
    let (question, answer) = exercise.hints();
    if answers {
        say!("{answer}");
    } else {
        say!("{question}\n");
        say!(
            "The answer: cargo run -p lab -- hint {} --answer",
            exercise.label()
        );
    }
}

/// Trains with the functions that are solved; the others are the solution's.
fn train(desk: &Desk, settings: &Settings) -> Result<()> {
    let mut answers = vec![];
    let mut yours = vec![];
    for exercise in &ALL[..FUNCTIONS] {
        let not_solved = if desk.is_solved(exercise)? {
            None
        } else if desk.has(exercise) {
            say!("{}", heading(exercise)); // changed since its last check, or not right yet
            let is_right = report(desk, exercise, &desk.copy(exercise)?)?;
            (!is_right).then_some("is not right yet")
        } else {
            Some("is not begun")
        };
        match not_solved {
            None => {
                answers.push(desk.copy(exercise)?);
                yours.push(exercise.function());
            }
            Some(why) => {
                let function = exercise.function();
                say!("{function} {why}, so it is the solution's.");
                answers.push(PathBuf::from(exercise.solution_file));
            }
        }
    }
    if yours.is_empty() {
        say!("None of the functions is yours. What is called yours below is the solution's.");
    } else {
        say!("Your functions:\n  {}", yours.join(", "));
    }
    let program = match patiently(|| answer::training(&answers))? {
        Ok(program) => program,
        Err(said) => {
            say!("{said}");
            bail!("the functions do not compile together");
        }
    };
    let mut training = Command::new(program);
    if let Some(data) = &settings.data {
        training.arg("--data").arg(match data {
            Data::Synthetic => OsStr::new("synthetic"),
            Data::Dir(dir) => dir.as_os_str(),
        });
    }
    training.args(["--epochs", &settings.epochs.to_string()]);
    if let Some(limit) = settings.limit_train {
        training.args(["--limit-train", &limit.to_string()]);
    }
    let status = training.status().context("the training")?;
    match status.code() {
        Some(0) => Ok(()),
        Some(code) => std::process::exit(code), // it has said why
        None => bail!("the training ended: {status}"),
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
        let mut checked = exercise.gap.as_bytes().to_vec();
        let mut missed = 0;
        loop {
            match fs::read(&path) {
                Ok(answer) if answer == checked => missed = 0,
                Ok(answer) if answer.is_empty() && missed < LOOKS => missed += 1,
                Ok(answer) => {
                    (checked, missed) = (answer, 0);
                    say!("checking …");
                    if report(desk, exercise, &path)? {
                        break;
                    }
                }
                Err(error) => {
                    missed += 1;
                    if missed == LOOKS {
                        say!("cannot read {}: {error}", shown(&path));
                    }
                }
            }
            thread::sleep(LOOK);
        }
        next = desk.after(exercise)?;
    }
    say!("{}", style("All exercises are solved.").green().bold());
    Ok(())
}

/// Prints the schedule of an answer, right or wrong.
fn export(desk: &Desk, puzzle: &Exercise) -> Result<()> {
    let (json, _) = schedule(desk, puzzle)?;
    say!("{json}");
    Ok(())
}

/// The schedule of an answer as JSON, and whether it is right.
fn schedule(desk: &Desk, puzzle: &Exercise) -> Result<(String, Outcome)> {
    let name = puzzle.name;
    let number = puzzle.number();
    if number < FIRST_PUZZLE {
        let last = ALL[ALL.len() - 1].label();
        bail!("{name} is no puzzle: they are {FIRST_PUZZLE} to {last}");
    }
    ensure!(
        desk.has(puzzle),
        "you have not begun {name}: cargo run -p lab -- {number}"
    );
    let path = desk.copy(puzzle)?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("schedule.json");
    let outcome = outcome(puzzle, &path, Some(&file))?;
    let json = fs::read_to_string(file).ok();
    match (json, outcome) {
        (Some(json), outcome) => Ok((json, outcome)),
        (None, Outcome::NotCompiled(said)) => {
            let _ = writeln!(std::io::stderr(), "{said}");
            bail!("{name} does not compile")
        }
        (None, Outcome::Wrong(sentence)) => bail!("{name} gives no schedule. {sentence}"),
        (None, Outcome::Right) => bail!("{name} gives no schedule"),
    }
}

/// Checks the exercises that the reader has begun.
fn check_all(desk: &Desk) -> Result<()> {
    let begun: Vec<&Exercise> = ALL.iter().filter(|exercise| desk.has(exercise)).collect();
    if begun.is_empty() {
        say!("You have not begun an exercise. This begins the first one: cargo run -p lab");
        return Ok(());
    }
    let mut open = 0;
    for exercise in &begun {
        open += usize::from(!check(desk, exercise)?);
    }
    ensure!(open == 0, "{open} of {} are not solved", begun.len());
    Ok(())
}

/// Checks an exercise once; whether it is right.
fn check(desk: &Desk, exercise: &Exercise) -> Result<bool> {
    say!("{}", heading(exercise));
    report(desk, exercise, &desk.copy(exercise)?)
}

/// Checks one answer, and says how it is; whether it is right.
fn report(desk: &Desk, exercise: &Exercise, path: &Path) -> Result<bool> {
    let answer = fs::read(path).with_context(|| format!("cannot read {}", shown(path)))?;
    let outcome = patiently(|| outcome(exercise, path, None))?;
    match &outcome {
        Outcome::Right => {
            say!("{} Right.", style("✓").green().bold());
            let label = exercise.label();
            say!("  Compare: cargo run -p lab -- solution {label}");
            if exercise.number() >= FIRST_PUZZLE {
                say!("  Run it on threads: cargo run -p lab -- race {label}");
            }
            if exercise.name == ALL[FUNCTIONS - 1].name {
                say!("  Train with your functions: cargo run -p lab -- train");
            }
            say!("");
            if let Err(error) = desk.solve(exercise, &answer) {
                say!("It is not noted: {error:#}\n");
            }
        }
        Outcome::Wrong(sentence) => say!("{} {sentence}\n", style("✗").red().bold()),
        Outcome::NotCompiled(said) => {
            say!("{said}");
            if said.contains("checks/") {
                say!("The check needs the names and types of the functions as they were.\n");
            }
        }
    }
    Ok(outcome == Outcome::Right)
}

/// Runs `check`. Where it takes long, a line says why.
fn patiently<T>(check: impl FnOnce() -> T) -> T {
    let (done, waits) = channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            if waits.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                say!(
                    "still working: cargo may have to compile first, or to wait for another cargo …"
                );
            }
        });
        let checked = check();
        drop(done);
        checked
    })
}

/// Shows how far the reader is, the task, and the file.
fn show(desk: &Desk, exercise: &Exercise, path: &Path) -> Result<()> {
    let first_puzzle = ALL.partition_point(|one| one.number() < FIRST_PUZZLE);
    let (of_section, puzzles) = ALL.split_at(first_puzzle);
    let of_section = marks(desk, of_section)?;
    let puzzles = marks(desk, puzzles)?;
    say!("section 13.5 {of_section}  puzzles {puzzles}\n");
    say!("{}\n", heading(exercise));
    say!("{}\n", exercise.task());
    let file = style(shown(path)).cyan();
    say!("Fill in {file}. It is checked when you save it.");
    say!("A hint: cargo run -p lab -- hint {}\n", exercise.label());
    Ok(())
}

/// A mark for each exercise: full if it is solved.
fn marks(desk: &Desk, exercises: &[Exercise]) -> Result<String> {
    let mut marks = String::new();
    for exercise in exercises {
        let is_solved = desk.is_solved(exercise)?;
        marks.push(if is_solved { '●' } else { '○' });
    }
    Ok(marks)
}

fn heading(exercise: &Exercise) -> impl Display {
    style(format!("{}. {}", exercise.label(), exercise.title())).bold()
}

/// A path as a reader in the repository's folder writes it.
fn shown(path: &Path) -> String {
    let shown = path.strip_prefix(lab::repository()).unwrap_or(path);
    shown.display().to_string()
}
