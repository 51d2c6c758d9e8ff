//! Every solution is right, every gap and every wrong answer is told by a sentence of its own.

extern crate data_parallel_collective as collective;

use std::collections::BTreeSet;
use std::env;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use lab::{ALL, Check, Exercise, FIRST_PUZZLE, judge};

/// The page about the lab.
const PAGE: &str = include_str!("../../../notebooks-md/lab.md");

struct Variant {
    kind: &'static str,
    exercise: &'static str,
    /// Words of the sentence.
    says: &'static str,
    check: Check,
}

// the modules, and `const VARIANTS: &[Variant]`
include!(concat!(env!("OUT_DIR"), "/variants.rs"));

/// The answers of a kind, each with the sentence of its check. A test returns its error: `judge` hides panics.
fn judged(kind: &str) -> impl Iterator<Item = (&'static Variant, Option<String>)> {
    let variants = VARIANTS.iter().filter(move |variant| variant.kind == kind);
    variants.map(|variant| {
        let sentence = judge(variant.check).err();
        (variant, sentence.map(|error| format!("{error:#}")))
    })
}

#[test]
fn every_solution_is_right() -> Result<()> {
    for (variant, sentence) in judged("solution") {
        ensure!(sentence.is_none(), "{}: {sentence:?}", variant.exercise);
    }
    Ok(())
}

#[test]
fn every_gap_is_told_by_its_own_sentence() -> Result<()> {
    let mut all = BTreeSet::new();
    for (Variant { exercise, .. }, sentence) in judged("gap") {
        let sentence = sentence.context(*exercise)?;
        let is_to_do = sentence.starts_with("Still to do: ");
        ensure!(is_to_do, "{exercise}: {sentence}");
        all.insert(sentence);
    }
    let differ = all.len() == ALL.len();
    ensure!(differ, "two gaps have the same sentence: {all:#?}");
    Ok(())
}

#[test]
fn every_wrong_answer_is_named() -> Result<()> {
    let mut named = BTreeSet::new();
    for (Variant { exercise, says, .. }, sentence) in judged("wrong") {
        let sentence = sentence.context(*says)?;
        let in_one_line = sentence.replace("\n  ", " ");
        ensure!(in_one_line.contains(*says), "{exercise}: {sentence}");
        ensure!(
            !sentence.contains("\n   0: "),
            "a backtrace in {exercise}: {sentence}"
        );
        named.insert(*exercise);
    }
    let all = named.len() == ALL.len();
    ensure!(all, "not each exercise has a wrong answer: {named:?}");
    Ok(())
}

/// candle's errors have a backtrace then, which would hide the sentence.
#[test]
fn sentences_have_no_backtrace() -> Result<()> {
    let output = Command::new(env::current_exe()?)
        .args(["--exact", "every_wrong_answer_is_named"])
        .env("RUST_BACKTRACE", "1")
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
    Ok(())
}

#[test]
fn every_exercise_has_a_title_a_task_and_a_hint() -> Result<()> {
    let mut last = 0;
    for exercise in ALL {
        let (name, number) = (exercise.name, exercise.number());
        let has_letter = exercise.label() != number.to_string();
        let expected = if has_letter { last } else { last + 1 };
        ensure!(number == expected, "{name} comes after {last}");
        ensure!(Exercise::find(exercise.label())?.name == name, "{name}");
        let row = format!("| {} | {} |", exercise.label(), exercise.title());
        let is_puzzle = number >= FIRST_PUZZLE;
        let is_named_so = exercise.title().starts_with("Puzzle: ");
        ensure!(is_named_so == is_puzzle, "{name}: the title");
        ensure!(is_puzzle || PAGE.contains(&row), "lab.md has no {row:?}");
        last = number;
        let (question, answer) = exercise.hints();
        ensure!(
            question.ends_with('?') && !answer.contains("\n\n"),
            "{name}: the hint"
        );
        let texts = [exercise.title(), &exercise.task(), question, answer];
        let are_there = texts.iter().all(|text| text.len() > 10);
        ensure!(are_there, "{name}: {texts:?}");
        let lines = exercise.gap.lines().count();
        ensure!((10..=60).contains(&lines), "{name}: {lines} lines");
    }
    Ok(())
}
