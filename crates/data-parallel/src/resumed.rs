//! The parameters with which a run goes on. Until its first step no other may be loaded: that would undo in silence what
//! the run has trained.

use std::sync::Mutex;

use candle_core::Result;
use devices::{ensure, lock};

use crate::agreement::checksum;
use crate::network_state::NetworkState;

/// A checksum of the parameters with which a run goes on; none after its first step, and where no run goes on.
#[derive(Default)]
pub(crate) struct Resumed(Mutex<Option<u32>>);

impl Resumed {
    /// A run goes on with these parameters.
    pub fn goes_on(&self, state: &NetworkState) -> Result<()> {
        *lock(&self.0) = Some(checksum(state.named().map(|(_, param)| param))?);
        Ok(())
    }

    /// No run goes on, or it has no step left.
    pub fn ends(&self) {
        *lock(&self.0) = None;
    }

    /// Before a step.
    ///
    /// # Errors
    /// If the first one after a restart is not on the parameters of the run.
    pub fn step_begins(&self, state: &NetworkState) -> Result<()> {
        let mut resumed = lock(&self.0);
        if let Some(expected) = *resumed {
            ensure!(
                checksum(state.named().map(|(_, param)| param))? == expected,
                "the run goes on from a checkpoint, and other parameters were loaded after it: its training would be \
                 lost. A run that begins with a file's parameters has to load parameters before Checkpoints::open"
            );
            *resumed = None;
        }
        Ok(())
    }
}
