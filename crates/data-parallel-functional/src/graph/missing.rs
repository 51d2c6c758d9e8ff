//! Trained variables without a gradient, although the result of one of candle's modules depends on them.
//! [`super::checked`] says which variables have none.

use candle_core::{Result, Var, bail};
use std::panic::Location;

/// The change in the result of a module when variables move.
pub(crate) type Change = Box<dyn Fn(&[&Var]) -> Result<f64>>;

/// A module that is new, or is called in a new way.
pub(crate) struct New {
    pub made: &'static Location<'static>,
    pub change: Change,
}

/// An error where the result of a new call depends on one of these variables, given with their names.
pub(crate) fn check(unseen: &[(&str, &Var)], new: Vec<New>) -> Result<()> {
    for New { made, change } in new {
        let mut missing = Missing {
            change,
            runs: 0,
            names: Vec::new(),
        };
        missing.look(unseen)?;
        let names = &missing.names;
        if names.is_empty() {
            continue;
        }
        let layer = layer_of(names);
        let (gradients_are, it_is) = if names.len() == 1 && !missing.has_stopped() {
            ("gradient", "is missing, although the result depends on it")
        } else {
            (
                "gradients",
                "are missing, although the result depends on them",
            )
        };
        let freeze = if missing.has_stopped() {
            "Trainer::rate with their names and 0.0".to_owned()
        } else if layer.is_empty() {
            "Trainer::rate with each of these names and 0.0".to_owned()
        } else {
            format!("Trainer::rate({layer:?}, 0.0)")
        };
        let names = some_of(names, missing.has_stopped());
        bail!(
            "candle ({made}): the {gradients_are} of {names} {it_is}. What is cut off on purpose, as by detach, has to be \
             frozen: {freeze}. If it is to be trained, the page \"What trains in candle\" says what to use instead"
        )
    }
    Ok(())
}

/// The variables without a gradient on which the result of a call depends.
struct Missing<'a> {
    change: Change,
    /// The number of runs of the call so far.
    runs: usize,
    names: Vec<&'a str>,
}

impl<'a> Missing<'a> {
    /// The runs after which no further names are looked for: a network may have hundreds.
    const RUNS: usize = 24;

    fn has_stopped(&self) -> bool {
        self.runs >= Self::RUNS
    }

    /// Moves the variables together. If the result changes, it looks at both halves.
    fn look(&mut self, variables: &[(&'a str, &Var)]) -> Result<()> {
        if variables.is_empty() || self.has_stopped() && !self.names.is_empty() {
            return Ok(());
        }
        self.runs += 1;
        let all: Vec<&Var> = variables.iter().map(|(_, var)| *var).collect();
        if (self.change)(&all)? == 0. {
            return Ok(());
        }
        if let [(name, _)] = variables {
            self.names.push(name);
            return Ok(());
        }
        let found = self.names.len();
        let (first, second) = variables.split_at(variables.len() / 2);
        self.look(first)?;
        self.look(second)?;
        if self.names.len() == found && !self.has_stopped() {
            // neither half changes the result alone, as of a product of zeros
            self.names.extend(variables.iter().map(|(name, _)| *name));
        }
        Ok(())
    }
}

/// The first names, and how many others there are, or that there may be others.
fn some_of(names: &[&str], may_have_others: bool) -> String {
    match names {
        names if may_have_others => {
            format!(
                "{} and perhaps others",
                names[..names.len().min(3)].join(", ")
            )
        }
        [a, b, c, _, ..] => format!("{a}, {b}, {c} and {} more", names.len() - 3),
        [a, b] => format!("{a} and {b}"),
        _ => names.join(", "),
    }
}

/// The layer of which all of these are, or their only name; empty where they have none in common.
fn layer_of<'a>(names: &[&'a str]) -> &'a str {
    let [first, others @ ..] = names else {
        return "";
    };
    if others.is_empty() {
        return first;
    }
    let ends = first.match_indices('.').map(|(end, _)| end);
    let is_common = |end: &usize| {
        let layer = &first[..=*end];
        others.iter().all(|name| name.starts_with(layer))
    };
    ends.take_while(is_common)
        .last()
        .map_or("", |end| &first[..end])
}
