//! Every solution is right, every gap and every wrong answer is told by a sentence of its own.

use std::collections::BTreeSet;

use lab::{ALL, Check, judge};

struct Variant {
    kind: &'static str,
    exercise: &'static str,
    /// Words of the sentence.
    says: &'static str,
    check: Check,
}

// the modules, and `const VARIANTS: &[Variant]`
include!(concat!(env!("OUT_DIR"), "/variants.rs"));

/// The sentences for the answers of a kind, by exercise.
fn sentences(kind: &str) -> Vec<(&'static Variant, Option<String>)> {
    let variants = VARIANTS.iter().filter(|variant| variant.kind == kind);
    let judged = variants.map(|v| (v, judge(v.check).err().map(|error| format!("{error:#}"))));
    judged.collect()
}

#[test]
fn every_solution_is_right() {
    let judged = sentences("solution");
    assert_eq!(judged.len(), ALL.len());
    for (variant, sentence) in judged {
        assert_eq!(sentence, None, "{}", variant.exercise);
    }
}

#[test]
fn every_gap_is_told_by_its_own_sentence() {
    let judged = sentences("gap");
    assert_eq!(judged.len(), ALL.len());
    let mut all = BTreeSet::new();
    for (variant, sentence) in judged {
        let sentence = sentence.unwrap_or_else(|| panic!("{} is right", variant.exercise));
        assert!(
            sentence.starts_with("Still to do: "),
            "{}: {sentence}",
            variant.exercise
        );
        assert!(all.insert(sentence.clone()), "twice: {sentence}");
    }
}

#[test]
fn every_wrong_answer_is_named() {
    for (variant, sentence) in sentences("wrong") {
        let sentence =
            sentence.unwrap_or_else(|| panic!("{}: {} is right", variant.exercise, variant.says));
        assert!(
            sentence.contains(variant.says),
            "{}: {sentence}",
            variant.exercise
        );
    }
}

#[test]
fn every_exercise_has_a_title_a_task_and_a_hint() {
    for (number, exercise) in (1..).zip(ALL) {
        assert_eq!(exercise.number(), number);
        let texts = [exercise.title(), &exercise.task(), exercise.hint];
        assert!(
            texts.iter().all(|text| text.len() > 10),
            "{}: {texts:?}",
            exercise.name
        );
        let lines = exercise.gap.lines().count();
        assert!(
            (10..=60).contains(&lines),
            "{}: {lines} lines",
            exercise.name
        );
    }
}
