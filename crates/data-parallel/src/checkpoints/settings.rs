//! The settings on which the result of a run depends, in lines that begin with a name.

use std::borrow::Borrow;
use std::sync::Arc;

use candle_core::Result;
use devices::{bail, ensure};

use crate::trainer::Trainer;
use crate::update_rule::LrSchedule;

/// The settings of the network and of its trainers, without their schedules.
pub(super) fn of_run<T: Borrow<Trainer>>(trainers: &[T]) -> String {
    let mut lines = vec![format!("trainers {}", trainers.len())];
    let net = trainers
        .iter()
        .take(1)
        .map(|trainer| trainer.borrow().net.settings());
    lines.extend(net);
    for (i, trainer) in trainers.iter().enumerate() {
        lines.extend(of_trainer(i, &trainer.borrow().settings()));
    }
    lines.join("\n")
}

/// The values of the schedules, after the steps that each trainer has taken.
pub(super) fn of_schedules<T: Borrow<Trainer>>(trainers: &[T], steps: &[usize]) -> String {
    let mut lines = Vec::new();
    for (i, (trainer, taken)) in trainers.iter().zip(steps).enumerate() {
        lines.extend(of_trainer(i, &trainer.borrow().rule.schedule_line(*taken)));
    }
    lines.join("\n")
}

/// The lines of trainer `i`: the first word of a line says what it is about.
fn of_trainer(i: usize, lines: &str) -> impl Iterator<Item = String> {
    let number = if i == 0 {
        String::new()
    } else {
        format!("-{}", i + 1)
    };
    lines.lines().map(move |line| {
        let (key, rest) = line.split_once(' ').unwrap_or((line, ""));
        format!("{key}{number} {rest}")
    })
}

/// The settings of a trainer that may not change during a run, because no checkpoint can bring them back.
pub(super) struct Fixed {
    settings: String,
    schedule: Option<Arc<LrSchedule>>,
}

impl Fixed {
    pub fn of(trainer: &Trainer) -> Self {
        Self {
            settings: trainer.fixed_settings(),
            schedule: trainer.rule.schedule.clone(),
        }
    }

    /// An error if it has changed.
    pub fn check(&self, now: &Trainer) -> Result<()> {
        let settings = now.fixed_settings();
        let before = lines_without(&self.settings, &settings);
        let after = lines_without(&settings, &self.settings);
        let or_nothing = |lines: String| {
            if lines.is_empty() {
                "nothing of this kind".to_owned()
            } else {
                format!("{lines:?}")
            }
        };
        ensure!(
            before.is_empty() && after.is_empty(),
            "the run began with {}, and the trainer has {} now, which no checkpoint can bring back; set it before \
             Checkpoints::open",
            or_nothing(before),
            or_nothing(after)
        );
        let schedule = &now.rule.schedule;
        let factor = |of: &Option<Arc<LrSchedule>>, step| of.as_ref().map_or(1.0, |of| of(step));
        let differs = |step: &usize| factor(&self.schedule, *step) != factor(schedule, *step);
        if let Some(step) = (0..now.steps()).find(differs) {
            bail!(
                "the schedule is {} at step {step}, and that of the trainer when the run began is {}. No checkpoint can \
                 bring a schedule back; give the trainer one for all steps before Checkpoints::open",
                factor(schedule, step),
                factor(&self.schedule, step)
            )
        }
        ensure!(
            self.schedule.is_some() == schedule.is_some(),
            "the trainer has {} now, and the run began with {}. No checkpoint can bring a schedule back; give the trainer \
             one for all steps before Checkpoints::open",
            a_schedule(schedule),
            a_schedule(&self.schedule)
        );
        Ok(())
    }
}

fn a_schedule(schedule: &Option<Arc<LrSchedule>>) -> &'static str {
    if schedule.is_some() {
        "a schedule"
    } else {
        "no schedule"
    }
}

/// The lines of a text that another has not.
fn lines_without(text: &str, other: &str) -> String {
    let is_new = |line: &&str| !other.lines().any(|other| other == *line);
    let lines = text.lines().filter(is_new);
    lines.collect::<Vec<_>>().join(", ")
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
