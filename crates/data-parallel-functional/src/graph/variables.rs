//! The variables of a network: trained, frozen, or buffers.

use candle_core::{Tensor, Var};

/// The variables of a network, by what becomes of them.
#[derive(Default)]
pub struct Variables {
    /// With their names for messages. They need right gradients.
    pub trained: Vec<(String, Var)>,
    /// Parameters that are not trained. Their gradients may be wrong or missing, and they may be integers.
    pub frozen: Vec<Var>,
    /// Variables that modules may change in training, such as running statistics.
    pub buffers: Vec<Var>,
}

impl Variables {
    /// True for a variable that is trained.
    pub(crate) fn trains(&self, x: &Tensor) -> bool {
        self.trained.iter().any(|(_, var)| var.id() == x.id())
    }
}
