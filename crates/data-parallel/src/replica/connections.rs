//! How a replica communicates with the others: they agree on a step, sum gradients, and sum statistics of batch norms.

use std::sync::Arc;

use candle_core::{Device, Error, Result, Tensor};
use collective::Member;
use devices::message;
use functional::{Bucket, BucketMemory};

use super::cores::Cores;
use super::norms::Norms;
use super::reducer::{Reducer, Summed};
use super::slot::Slot;
use crate::replication::Replication;

/// The memberships of a replica, before its threads are started.
pub(crate) struct Memberships {
    /// With the replicas of this process, which agree that a step can begin.
    pub agreement: Member,
    /// With all replicas, for the sums of gradients.
    pub gradients: Member,
    /// With all replicas, if batch norm is over the whole minibatch.
    pub norms: Option<Member>,
}

/// The connections of a replica to the others. It loses them when it fails in a step.
pub(crate) struct Connections {
    agreement: Member,
    reducer: Reducer,
    /// If batch norm is over the whole minibatch.
    pub norms: Option<Arc<Norms>>,
    device: Device,
    /// True if a step may leave parameters out.
    allow_unused: bool,
}

/// The sums of the gradients of all replicas.
pub(crate) struct GradientSums {
    pub buckets: Vec<Bucket>,
    /// True if all are known to be finite.
    pub are_finite: bool,
    /// For each parameter that is trained, true if any replica used it.
    pub used: Vec<bool>,
}

impl Connections {
    /// Starts the thread that sums the gradients of the replica `name` on `device`.
    pub fn new(
        name: &str,
        memberships: Memberships,
        how: &Replication,
        device: &Device,
        cores: &Arc<Cores>,
    ) -> Result<Self> {
        let norms = |member| Arc::new(Norms::new(member, cores.clone()));
        Ok(Self {
            agreement: memberships.agreement,
            reducer: Reducer::start(name, memberships.gradients, device, how.reduce_on)?,
            norms: memberships.norms.map(norms),
            device: device.clone(),
            allow_unused: how.allow_unused,
        })
    }

    /// True if all replicas of this process say yes.
    pub fn all_agree(&mut self, yes: bool) -> Result<bool> {
        let answers = self.agreement.all_gather(yes)?;
        Ok(answers.into_iter().all(|yes| yes))
    }

    /// Begins to sum one bucket of gradients.
    pub fn hand_in_bucket(&self, bucket: Bucket) -> Result<()> {
        self.reducer.buckets().send(bucket).map_err(|unsent| {
            let index = unsent.0.index;
            message(format!(
                "cannot hand in bucket {index}: the reducer has ended"
            ))
        })
    }

    /// Begins to sum the gradients of a slot, from bucket number `from` on; those before it are dropped. Without a
    /// backward pass they are zeros.
    pub fn hand_in(&self, slot: &mut Slot, from: usize) -> Result<()> {
        slot.gradients.give(&mut |bucket| {
            if bucket.index < from {
                Ok(())
            } else {
                self.hand_in_bucket(bucket)
            }
        })?;
        self.hand_in_used(slot)
    }

    /// Behind the gradients, where a step may leave parameters out: on how many replicas each was used.
    pub fn hand_in_used(&self, slot: &Slot) -> Result<()> {
        if !self.allow_unused {
            return Ok(());
        }
        let used = slot.gradients.used().map(|used| f32::from(u8::from(used)));
        let used: Vec<f32> = used.collect();
        self.hand_in_bucket(Bucket {
            index: slot.gradients.layout().len(),
            parts: [].into(),
            values: if self.device.is_cpu() {
                BucketMemory::Floats(used)
            } else {
                BucketMemory::Tensor(Tensor::new(used, &self.device)?)
            },
        })
    }

    /// Waits for the sums of all gradients of a slot.
    pub fn sums(&self, slot: &Slot) -> Result<GradientSums> {
        let mut buckets = Vec::new();
        let mut are_finite = true;
        for _ in slot.gradients.layout() {
            let Summed { bucket, is_finite } = self.reducer.sum()?;
            buckets.push(bucket);
            are_finite &= is_finite;
        }
        let used = if self.allow_unused {
            let replicas: Vec<f32> = match self.reducer.sum()?.bucket.values {
                BucketMemory::Floats(replicas) => replicas,
                BucketMemory::Tensor(replicas) => replicas.to_vec1()?,
            };
            let is_used = |replicas| replicas > 0.0;
            replicas.into_iter().map(is_used).collect()
        } else {
            vec![true; slot.gradients.used().count()]
        };
        Ok(GradientSums {
            buckets,
            are_finite,
            used,
        })
    }

    /// An error where norms have to be synchronized and none was.
    pub fn check_norms_are_used(&self) -> Result<()> {
        if self.norms.as_ref().is_some_and(|norms| !norms.are_used()) {
            candle_core::bail!(
                "sync_bn: the network has no synchronized batch norm; use layers::BatchNorm2d or \
                 functional's batch_norm2d, because candle-nn's takes the statistics of one replica's \
                 part"
            )
        }
        Ok(())
    }

    /// New memberships for the norms, after a step that was dropped.
    pub fn join_norms(&self, member: Option<Member>) {
        if let (Some(norms), Some(member)) = (&self.norms, member) {
            norms.join(member);
        }
    }

    /// The other replicas no longer wait for this one in a norm.
    pub fn leave_norms(&self) {
        if let Some(norms) = &self.norms {
            norms.leave();
        }
    }

    /// The other replicas no longer wait for this one.
    pub fn leave(self) {
        let Self { reducer, norms, .. } = self;
        reducer.leave();
        norms.iter().for_each(|norms| norms.leave());
    }

    /// Why a sum has failed, if one has.
    pub fn failure(&self) -> Option<Error> {
        let of_norms = self.norms.as_ref().and_then(|norms| norms.failure());
        of_norms.map(Error::from).or_else(|| self.reducer.failure())
    }
}
