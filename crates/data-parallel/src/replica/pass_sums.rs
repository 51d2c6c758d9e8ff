//! Sums over the replicas within a pass: the statistics of batch norms over the whole minibatch (diff 4 of the chapter
//! `seven-diffs`), and the outputs that a loss of the whole minibatch needs.
//!
//! A backward pass gets it as the `Summation` of its norms. On the CPU a split batch has the statistics of the whole
//! batch to the bit, and gradients differ by rounding.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use candle_core::{Error, Result};
use collective::Member;
use devices::lock;
use functional::Summation;

use super::cores::Cores;

/// One replica's membership of the group that sums within a pass.
pub(crate) struct PassSums {
    /// Empty once the replica has failed.
    member: Mutex<Option<Member>>,
    /// Why a sum failed.
    failure: Mutex<Option<collective::Error>>,
    /// True if a norm has summed, or has nothing to sum because its statistics are frozen.
    norms_used: AtomicBool,
    cores: Arc<Cores>,
}

impl PassSums {
    pub fn new(member: Member, cores: Arc<Cores>) -> Self {
        Self {
            member: Mutex::new(Some(member)),
            failure: Mutex::default(),
            norms_used: AtomicBool::new(false),
            cores,
        }
    }

    /// Why a sum has failed, if one has.
    pub fn failure(&self) -> Option<collective::Error> {
        lock(&self.failure).clone()
    }

    /// True if a norm of the network has run that can sum here.
    pub fn are_norms_used(&self) -> bool {
        self.norms_used.load(Ordering::Relaxed)
    }

    /// Joins a new group, after a step that was dropped.
    pub fn join(&self, member: Member) {
        *lock(&self.member) = Some(member);
        *lock(&self.failure) = None;
    }

    /// Leaves the group: the other replicas no longer wait for this one.
    pub fn leave(&self) {
        *lock(&self.member) = None;
    }

    /// Sums in rank order, so that all replicas have the same bits.
    pub fn sum_values(&self, values: &mut [f64]) -> Result<()> {
        let mut member = lock(&self.member);
        let Some(member) = member.as_mut() else {
            return Err(Error::msg("an earlier step failed; build the network anew"));
        };
        self.cores.without(|| member.sum(values)).map_err(|error| {
            *lock(&self.failure) = Some(error.clone());
            Error::wrap(error)
        })
    }
}

/// The sums of norms.
impl Summation for PassSums {
    fn sum(&self, values: &mut [f64]) -> Result<()> {
        self.norms_used.store(true, Ordering::Relaxed);
        self.sum_values(values)
    }

    fn note_frozen(&self) {
        self.norms_used.store(true, Ordering::Relaxed);
    }
}

/// The sums of outputs.
pub(crate) struct OutputSums(pub Arc<PassSums>);

impl Summation for OutputSums {
    fn sum(&self, values: &mut [f64]) -> Result<()> {
        self.0.sum_values(values)
    }
}
