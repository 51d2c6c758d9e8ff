//! What a replica is told of a minibatch, and what comes of it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use candle_core::Tensor;

use super::examples::LossOver;
use super::loss::Loss;
use super::refusal::Refusal;
use crate::update_rule::StepRule;

/// What all replicas need to know of a minibatch.
pub(crate) struct StepJob {
    pub loss: Arc<Loss>,
    pub loss_over: LossOver,
    pub rule: StepRule,
    /// The number of the trainer among those of the network.
    pub trainer: usize,
    /// The steps before this one.
    pub step: usize,
    /// The minibatches of this step before this one.
    pub minibatches_before: usize,
    /// What the sums of this step are divided by if this is its last minibatch; otherwise the gradients wait.
    pub step_with: Option<f64>,
    /// True if gradients of candle's operations are compared with finite differences, where they are new.
    pub checks_gradients: bool,
    /// True if numbers that are not finite are errors.
    pub checks_numbers: bool,
    /// Set where a replica cannot compute, before it hands in its last gradients: then no replica takes the step.
    pub dropped: AtomicBool,
}

/// What a replica computed of its part of a minibatch.
pub(crate) struct ShardResult {
    /// The sum of the losses of its examples.
    pub loss: Tensor,
    /// The outputs of the network; none where the loss is a function of the network.
    pub outputs: Option<Tensor>,
    /// The first of its targets.
    pub labels: Option<Tensor>,
}

/// What came of a minibatch on one replica.
#[derive(Default)]
pub(crate) struct Trained {
    /// None for a replica without an example, and where another replica could not write the step down.
    pub shard: Option<ShardResult>,
    /// Why no step was taken: what the sums have shown, on all replicas the same.
    pub refused: Option<Refusal>,
}
