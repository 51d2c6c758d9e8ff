//! The settings of a trainer that a program may change during a run. They are state: a checkpoint brings them back.

use candle_core::Result;
use devices::Context;

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
        let settings = Self::read(line).filter(|settings| settings.fit(trainer));
        settings.with_context(|| format!("the settings of a trainer cannot be read: {line:?}"))
    }

    fn read(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        Some(Self {
            accumulate: words.next()?.parse().ok()?,
            max_norm: match words.next()? {
                NO_NORM => None,
                norm => Some(norm.parse().ok()?),
            },
            rates: words.map(|word| word.parse().ok()).collect::<Option<_>>()?,
        })
    }

    fn fit(&self, trainer: &Trainer) -> bool {
        self.accumulate > 0
            && self.max_norm.is_none_or(|norm| norm > 0.0)
            && self
                .rates
                .iter()
                .all(|rate| rate.is_finite() && *rate >= 0.0)
            && self.rates.len() == trainer.rule.rates.len()
    }
}
