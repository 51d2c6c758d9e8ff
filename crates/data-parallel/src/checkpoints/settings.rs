//! What the result of a run depends on, in lines that begin with a name.

use std::borrow::Borrow;

use crate::trainer::Trainer;

/// The settings of the network and of its trainers. `steps` are those that each has taken; without them nothing is said
/// of the values of schedules.
pub(super) fn of_run<T: Borrow<Trainer>>(trainers: &[T], steps: Option<&[usize]>) -> String {
    let mut lines = vec![format!("trainers {}", trainers.len())];
    for (i, trainer) in trainers.iter().enumerate() {
        let trainer = trainer.borrow();
        if i == 0 {
            lines.push(trainer.net.settings());
        }
        let mut of_trainer = trainer.settings();
        if let Some(taken) = steps.and_then(|steps| steps.get(i)) {
            of_trainer += &format!("\n{}", trainer.rule.schedule_line(*taken));
        }
        // the first word of a line says what it is about
        let number = if i == 0 {
            String::new()
        } else {
            format!("-{}", i + 1)
        };
        for line in of_trainer.lines() {
            let (key, rest) = line.split_once(' ').unwrap_or((line, ""));
            lines.push(format!("{key}{number} {rest}"));
        }
    }
    lines.join("\n")
}

/// Pairs of texts as one text.
pub(super) fn pairs_text(pairs: &[(String, String)]) -> String {
    let lines = pairs.iter().map(|(key, value)| format!("{key}\t{value}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// What [`pairs_text`] had.
pub(super) fn pairs(text: &str) -> Vec<(String, String)> {
    let pairs = text.lines().filter_map(|line| line.split_once('\t'));
    pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}
