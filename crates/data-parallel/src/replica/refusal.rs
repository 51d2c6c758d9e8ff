//! Why a step was refused: a loss or a gradient is not finite, or nothing that is trained was used.

use candle_core::Error;

/// Why a step was refused.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{what}")]
pub(crate) struct Refusal {
    what: String,
    advice: &'static str,
}

/// Where a loss has become too large.
const SMALLER_RATE: &str = "try a smaller rate, or clip_norm";

impl Refusal {
    pub fn loss(loss: f32) -> Self {
        Self {
            what: format!("the loss is {loss}"),
            advice: SMALLER_RATE,
        }
    }

    pub fn gradient(name: &str, value: f32) -> Self {
        Self {
            what: format!("the gradient of {name} is {value}"),
            advice: "something may have no derivative there, as the root of 0; or try a smaller rate",
        }
    }

    pub fn nothing_is_used() -> Self {
        Self {
            what: "the loss depends on no parameter that is trained".to_owned(),
            advice: "with allow_unused a step may leave out some of them, but not all",
        }
    }

    /// As a sentence of a step; `lost` says what of it is lost. Before the first step no rate can be the cause.
    pub fn sentence(&self, lost: &str, is_first: bool) -> String {
        let Self { what, advice } = self;
        let advice = if is_first && *advice == SMALLER_RATE {
            "look at the data and the loss, such as a logarithm of 0"
        } else {
            advice
        };
        format!("{what}. No step was taken{lost}; {advice}")
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        devices::wrap(refusal)
    }
}
