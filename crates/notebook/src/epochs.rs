//! Numbers that a program printed of its epochs, read from a recorded block.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

/// The epochs of one run, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Epochs {
    /// Test accuracy after each epoch, from 0 to 1.
    pub accuracies: Vec<f64>,
    /// Seconds of each epoch, without its evaluation.
    pub seconds: Vec<f64>,
}

impl Epochs {
    /// The epochs of a command among the recorded blocks of [`Book::recorded`](crate::book::Book::recorded).
    ///
    /// # Errors
    /// If the command has no block, or as [`of`](Self::of).
    pub fn of_command(recorded: &BTreeMap<String, String>, command: &str) -> Result<Self> {
        let text = recorded
            .get(command)
            .with_context(|| format!("no page has <!-- recorded: {command} -->"))?;
        Self::of(text).with_context(|| command.to_owned())
    }

    /// Reads lines such as `epoch 2, loss 1.469, test acc 0.654, 1.3 sec, 46603 examples/sec`.
    ///
    /// # Errors
    /// If there is no such line, or one lacks a number.
    pub fn of(text: &str) -> Result<Self> {
        let mut accuracies = Vec::new();
        let mut seconds = Vec::new();
        for line in text.lines().filter(|line| line.starts_with("epoch ")) {
            let (_, rest) = line.split_once("test acc ").context("no accuracy")?;
            let (accuracy, rest) = rest.split_once(", ").context("no seconds")?;
            let (time, _) = rest.split_once(" sec").context("no seconds")?;
            accuracies.push(accuracy.parse()?);
            seconds.push(time.parse()?);
        }
        ensure!(!seconds.is_empty(), "no epoch is recorded");
        Ok(Self {
            accuracies,
            seconds,
        })
    }
}
