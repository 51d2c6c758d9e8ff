//! An answer is compiled and runs as a process: right, wrong, ended early, not compiled. And the folder with the answers.

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use lab::answer::{Outcome, outcome};
use lab::{ALL, Desk, Exercise};

#[test]
fn answers_run_as_processes() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let desk = Desk::in_folder(folder.path().to_owned())?;
    let exercise = Exercise::find("12")?;
    let (path, gap) = (desk.copy(exercise)?, exercise.gap);
    ensure!(fs::read_to_string(&path)? == gap, "the copy");
    let ends = gap.replace("todo!", "std::process::exit(0); todo!");
    for (answer, compiles, says) in [
        (gap, true, "Still to do"),
        (ends.as_str(), true, "ended the process"),
        ("pub fn schedule() {}", false, "mismatched types"),
    ] {
        fs::write(&path, answer)?;
        let (compiled, said) = match outcome(exercise, &path, None)? {
            Outcome::Right => bail!("this is right:\n{answer}"),
            Outcome::Wrong(sentence) => (true, sentence),
            Outcome::NotCompiled(said) => (false, said),
        };
        ensure!(compiled == compiles && said.contains(says), "{said}");
    }
    fs::write(&path, exercise.solution)?;
    let json = folder.path().join("schedule.json");
    let solution = outcome(exercise, &path, Some(&json))?;
    ensure!(solution == Outcome::Right, "{solution:?}");
    let json = fs::read_to_string(json)?;
    let begin = r#"{"members":2,"chunks":2,"rounds":[["#;
    ensure!(json.starts_with(begin), "{json}");
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
    let next = desk.next()?.context("all are solved")?;
    ensure!(next.name == ALL[1].name, "{next:?}");
    fs::write(&path, "two")?;
    ensure!(!desk.is_solved(&ALL[0])?, "it was changed");
    let old = desk.reset(&ALL[0])?.context("nothing was kept")?;
    ensure!(fs::read_to_string(old)? == "two", "what was kept");
    ensure!(desk.reset(&ALL[0])?.is_none(), "the gap was kept");
    ensure!(fs::read_to_string(&path)? == ALL[0].gap, "the new file");
    fs::write(&path, "three")?;
    let old = desk.reset(&ALL[0])?.context("nothing was kept")?;
    ensure!(old.ends_with("01_get_params.rs.old2"), "{old:?}");
    Ok(())
}
