//! Whose running statistics the replicas have: a network's state gives all of them those of the first replica, a
//! trainer's state gives each its own. So the order in which both are loaded matters, and is checked here.

use std::sync::Mutex;

use candle_core::Result;
use devices::{ensure, lock};

/// What has set the running statistics since the last step.
#[derive(Default)]
pub(crate) struct Statistics(Mutex<SetBy>);

#[derive(Default, PartialEq)]
enum SetBy {
    /// Steps, or the network's state.
    #[default]
    Network,
    /// A trainer's state.
    Trainer,
    /// The network's state after a trainer's, of which they are lost.
    NetworkAfterTrainer,
}

impl Statistics {
    /// The network's state was loaded.
    pub fn network_is_loaded(&self) {
        let mut set_by = lock(&self.0);
        if *set_by == SetBy::Trainer {
            *set_by = SetBy::NetworkAfterTrainer;
        }
    }

    /// A trainer's state was loaded, which may have running statistics of each replica.
    pub fn trainer_is_loaded(&self, has_statistics: bool) {
        *lock(&self.0) = if has_statistics {
            SetBy::Trainer
        } else {
            SetBy::Network
        };
    }

    /// A new trainer begins with the network as it is: what an earlier one has lost is not its own.
    pub fn trainer_is_new(&self) {
        let mut set_by = lock(&self.0);
        if *set_by == SetBy::NetworkAfterTrainer {
            *set_by = SetBy::Network;
        }
    }

    /// Before a step.
    ///
    /// # Errors
    /// If the running statistics that a trainer's state had set are lost.
    pub fn step_begins(&self) -> Result<()> {
        let mut set_by = lock(&self.0);
        ensure!(
            *set_by != SetBy::NetworkAfterTrainer,
            "the network's state was loaded after a trainer's, so all replicas have the running statistics of the first; \
             load the network's state first, then the trainer's"
        );
        *set_by = SetBy::Network;
        Ok(())
    }
}
