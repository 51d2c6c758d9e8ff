//! Tells others on which tensors the trainers of a network take their steps. It knows no trainer, and nothing of those
//! that it tells.

use std::sync::{Arc, Mutex, Weak};

use candle_core::TensorId;
use devices::lock;

/// Sees each minibatch on which a trainer of a network is called, before its step.
pub(crate) trait Watcher: Send + Sync {
    /// A step begins. These are the inputs and targets that the program gives it.
    fn step_on(&self, tensors: &[TensorId]);
}

/// The watchers of a network. One that was dropped sees nothing more.
#[derive(Default)]
pub(crate) struct Watchers(Mutex<Vec<Weak<dyn Watcher>>>);

impl Watchers {
    pub fn add(&self, watcher: Weak<dyn Watcher>) {
        let mut all = lock(&self.0);
        all.retain(|watcher| watcher.strong_count() > 0);
        all.push(watcher);
    }

    /// Tells all watchers of a step.
    pub fn step_on(&self, tensors: &[TensorId]) {
        let all: Vec<Arc<dyn Watcher>> = lock(&self.0).iter().filter_map(Weak::upgrade).collect();
        for watcher in all {
            watcher.step_on(tensors);
        }
    }
}
