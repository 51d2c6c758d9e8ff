//! Batch norm over the whole minibatch: sums its statistics over the replicas (diff 4 of the chapter `seven-diffs`).
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

/// One replica's membership of the group that sums the statistics of batch norms.
pub(crate) struct Norms {
    /// Empty once the replica has failed.
    member: Mutex<Option<Member>>,
    /// Why a sum failed.
    failure: Mutex<Option<collective::Error>>,
    /// True if a norm has summed.
    used: AtomicBool,
    cores: Arc<Cores>,
}

impl Norms {
    pub fn new(member: Member, cores: Arc<Cores>) -> Self {
        Self {
            member: Mutex::new(Some(member)),
            failure: Mutex::default(),
            used: AtomicBool::new(false),
            cores,
        }
    }

    /// Why a sum has failed, if one has.
    pub fn failure(&self) -> Option<collective::Error> {
        lock(&self.failure).clone()
    }

    /// True if a norm of the network has summed here.
    pub fn are_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
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
}

impl Summation for Norms {
    /// Sums in rank order, so that all replicas have the same bits.
    fn sum(&self, values: &mut [f64]) -> Result<()> {
        self.used.store(true, Ordering::Relaxed);
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
