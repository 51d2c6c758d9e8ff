//! What a run keeps in checkpoints, and compares.

use anyhow::Result;
use candle_core::Tensor;
use data_parallel::{DataParallel, Trainer};
use run::TrainState;

/// The network and the trainer: what the checkpoints of this program keep.
pub(crate) struct State<'a>(pub &'a DataParallel, pub &'a Trainer);

impl TrainState for State<'_> {
    fn tensors(&self) -> Result<Vec<Tensor>> {
        let state = self.0.state_dict()?;
        Ok(state.into_iter().map(|(_, tensor)| tensor).collect())
    }

    fn extra_state(&self) -> Result<Vec<(String, Tensor)>> {
        Ok(self.1.state_dict()?)
    }

    fn is_between_steps(&self) -> bool {
        self.1.is_between_steps()
    }

    fn check_replicas(&self, _: &[String]) -> Result<()> {
        Ok(self.0.check_replicas()?)
    }
}
