//! An answer is compiled and runs as a process: right, wrong, ended early, not compiled. And the folder with the answers.

use std::fs;

use anyhow::{Result, ensure};
use lab::answer::{Outcome, outcome};
use lab::{ALL, Desk, Exercise};

#[test]
fn answers_run_as_processes() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let desk = Desk::in_folder(folder.path().to_owned())?;
    let exercise = Exercise::find("12")?;
    let path = desk.copy(exercise)?;
    let gap = outcome(exercise, &path, None)?;
    ensure!(
        matches!(&gap, Outcome::Wrong(sentence) if sentence.starts_with("Still to do")),
        "{gap:?}"
    );
    let ends = exercise
        .gap
        .replace("todo!", "std::process::exit(0); todo!");
    fs::write(&path, ends)?;
    let ended = outcome(exercise, &path, None)?;
    ensure!(
        matches!(&ended, Outcome::Wrong(sentence) if sentence.contains("ended the process")),
        "{ended:?}"
    );
    fs::write(&path, "pub fn schedule() {}")?;
    let types = outcome(exercise, &path, None)?;
    ensure!(
        matches!(&types, Outcome::NotCompiled(said) if said.contains("mismatched types")),
        "{types:?}"
    );
    fs::write(&path, exercise.solution)?;
    let json = folder.path().join("schedule.json");
    ensure!(
        outcome(exercise, &path, Some(&json))? == Outcome::Right,
        "the solution"
    );
    ensure!(
        fs::read_to_string(json)?.starts_with(r#"{"members":2,"chunks":2,"rounds":[["#),
        "the schedule"
    );
    Ok(())
}

#[test]
fn solved_is_what_was_right_and_is_still_there() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let desk = Desk::in_folder(folder.path().to_owned())?;
    let path = desk.copy(&ALL[0])?;
    fs::write(&path, "one")?;
    desk.solve(&ALL[0], b"one")?;
    ensure!(desk.is_solved(&ALL[0])?, "it was right");
    ensure!(
        desk.next()?.map(|next| next.name) == Some(ALL[1].name),
        "the next one"
    );
    fs::write(&path, "two")?;
    ensure!(!desk.is_solved(&ALL[0])?, "it was changed");
    let kept = [desk.reset(&ALL[0])?, desk.reset(&ALL[0])?];
    ensure!(
        kept[0]
            .as_ref()
            .map(fs::read_to_string)
            .transpose()?
            .as_deref()
            == Some("two"),
        "{kept:?}"
    );
    ensure!(
        kept[1].is_none() && fs::read_to_string(&path)? == ALL[0].gap,
        "{kept:?}"
    );
    fs::write(&path, "three")?;
    ensure!(
        desk.reset(&ALL[0])?
            .is_some_and(|old| old.ends_with("01_get_params.rs.old2")),
        "a second one"
    );
    Ok(())
}
