//! An answer is compiled and runs as a process: right, wrong, ended early, not compiled. And the folder with the answers,
//! and races of schedules.

extern crate data_parallel_collective as collective;

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use collective::{Algorithm, Schedule};
use lab::answer::{Outcome, outcome};
use lab::race::race;
use lab::{ALL, Desk, Exercise};

#[test]
fn answers_run_as_processes() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let desk = Desk::in_folder(folder.path().to_owned());
    let exercise = Exercise::find("6")?;
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
    // more than is kept
    let loud = "for _ in 0..300_000 { println!(\"a line\"); }";
    let body = exercise.solution.find("{\n").context("no function")? + 2;
    let (begin, end) = exercise.solution.split_at(body);
    fs::write(&path, format!("{begin}{loud}\n{end}"))?;
    let solution = outcome(exercise, &path, None)?;
    ensure!(solution == Outcome::Right, "{solution:?}");
    fs::write(&path, exercise.solution)?;
    let json = folder.path().join("schedule.json");
    let solution = outcome(exercise, &path, Some(&json))?;
    ensure!(solution == Outcome::Right, "{solution:?}");
    let json = fs::read_to_string(json)?;
    let begin = r#"{"members":2,"chunks":2,"rounds":[["#;
    ensure!(json.starts_with(begin), "{json}");
    Ok(())
}

/// One byte of Latin-1, as an old editor writes it.
#[test]
fn a_file_may_have_any_bytes() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let desk = Desk::in_folder(folder.path().join("lab"));
    let path = desk.copy(&ALL[0])?;
    fs::write(&path, b"// caf\xe9")?;
    ensure!(!desk.is_solved(&ALL[0])?);
    let old = desk.reset(&ALL[0])?.context("nothing was kept")?;
    ensure!(fs::read(old)? == b"// caf\xe9", "what was kept");
    fs::write(folder.path().join("lab/solved.txt"), b"caf\xe9\n")?;
    desk.solve(&ALL[0], &fs::read(&path)?)?;
    ensure!(desk.is_solved(&ALL[0])?, "it is noted");
    fs::remove_file(folder.path().join("lab/solved.txt"))?;
    fs::create_dir(folder.path().join("lab/solved.txt"))?;
    let error = desk.solve(&ALL[0], b"").unwrap_err();
    ensure!(format!("{error:#}").contains("solved.txt"), "{error:#}");
    Ok(())
}

/// `… | head` closes the pipe.
#[test]
fn a_closed_pipe_is_no_error() -> Result<()> {
    for args in ["hint 3", "solution 3 --insist"] {
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let mut program = Command::new(env!("CARGO_BIN_EXE_lab"));
        let output = program.args(args.split(' ')).stdout(writer).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && said.is_empty(), "{args}: {said}");
    }
    Ok(())
}

#[test]
fn solved_is_what_was_right_and_is_still_there() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let desk = Desk::in_folder(folder.path().to_owned());
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

#[test]
fn a_race_has_a_row_for_each_all_reduce() -> Result<()> {
    for k in [2, 5] {
        let said = race(&Schedule::new(Algorithm::Ring, k).json(), 400_000)?;
        let (mut models, mut moved) = (vec![], vec![]);
        for name in ["yours", "star", "owner", "ring", "tree"] {
            let row = said
                .lines()
                .find(|line| line.starts_with(&format!("{name} ")));
            let cells: Vec<&str> = row.context(name)?.split_whitespace().collect();
            // name, median, lowest – highest, model, moved, N
            let [_, median, low, _, high, model, times, _] = cells[..] else {
                bail!("{cells:?}");
            };
            let [median, low, high, model] = [median, low, high, model].map(str::parse::<f64>);
            let (median, low, high) = (median?, low?, high?);
            ensure!(0.0 < low && low <= median && median <= high, "{said}");
            models.push(model?);
            moved.push(times.parse::<f64>()?);
        }
        let [yours, star, _, ring, _] = models[..] else {
            bail!("{said}");
        };
        ensure!(yours == ring && star >= ring && ring > 0.0, "{said}");
        let n = k as f64;
        let right = [
            5.0 * n - 5.0,
            3.0 * n - 1.0,
            2.0 * n,
            5.0 * n - 5.0,
            5.0 * n - 5.0,
        ];
        ensure!(moved == right, "{said}");
        let widest = said.lines().map(|line| line.chars().count()).max();
        ensure!(widest <= Some(90), "{widest:?} columns:\n{said}");
    }
    Ok(())
}

#[test]
fn what_is_no_all_reduce_does_not_run() {
    let half = Schedule::reduce_scatter(Algorithm::Ring, 3).json();
    let error = race(&half, 1000).unwrap_err();
    assert!(
        error.to_string().contains("each has to be there once"),
        "{error}"
    );
}
