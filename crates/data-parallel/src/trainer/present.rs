//! The settings of a trainer that a program may change during a run. They are state: a checkpoint brings them back.

use candle_core::Result;
use devices::{Context, ensure};

use super::trainer::Trainer;

/// The settings of [`Trainer::accumulate`], [`Trainer::clip_norm`] and [`Trainer::rate`].
pub(crate) struct PresentSettings {
    accumulate: usize,
    max_norm: Option<f64>,
    /// Of each parameter.
    rates: Vec<f64>,
}

const NO_NORM: &str = "none";

impl PresentSettings {
    /// Those of a trainer.
    pub fn of(trainer: &Trainer) -> Self {
        Self {
            accumulate: trainer.accumulate,
            max_norm: trainer.rule.max_norm,
            rates: trainer.rule.rates.clone(),
        }
    }

    /// For each parameter, true if it is trained.
    pub fn trained(&self) -> Vec<bool> {
        self.rates.iter().map(|rate| *rate != 0.0).collect()
    }

    /// Gives them to a trainer.
    pub fn set(self, trainer: &mut Trainer) {
        trainer.accumulate = self.accumulate;
        trainer.rule.max_norm = self.max_norm;
        trainer.rule.rates = self.rates;
    }

    /// As one line.
    pub fn to_line(&self) -> String {
        let accumulate = self.accumulate.to_string();
        let max_norm = self
            .max_norm
            .map_or(NO_NORM.to_owned(), |norm| format!("{norm:?}"));
        let rates = self.rates.iter().map(|rate| format!("{rate:?}"));
        let words = [accumulate, max_norm].into_iter().chain(rates);
        words.collect::<Vec<_>>().join(" ")
    }

    /// From its line, for a trainer.
    ///
    /// # Errors
    /// If they are not those of such a trainer.
    pub fn from_line(line: &str, trainer: &Trainer) -> Result<Self> {
        let cannot = || format!("the settings of a trainer cannot be read: {line:?}");
        let mut words = line.split(' ');
        let accumulate = words.next().and_then(|word| word.parse().ok());
        let accumulate: usize = accumulate.with_context(cannot)?;
        let norm = words.next().with_context(cannot)?;
        let max_norm = if norm == NO_NORM {
            None
        } else {
            Some(norm.parse().ok().with_context(cannot)?)
        };
        let rates: Option<Vec<f64>> = words.map(|word| word.parse().ok()).collect();
        let rates = rates.with_context(cannot)?;
        let are_rates = rates.iter().all(|rate| rate.is_finite() && *rate >= 0.0);
        ensure!(
            accumulate > 0
                && max_norm.is_none_or(|norm| norm > 0.0)
                && are_rates
                && rates.len() == trainer.rule.rates.len(),
            "{}",
            cannot()
        );
        Ok(Self {
            accumulate,
            max_norm,
            rates,
        })
    }
}
