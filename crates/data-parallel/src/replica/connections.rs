//! How a replica communicates with the others: they agree on a step, sum gradients, and sum within a pass.

use std::sync::Arc;

use candle_core::{Device, Error, Result, Tensor};
use collective::Member;
use functional::{Bucket, BucketMemory, Summation};

use super::cores::Cores;
use super::pass_sums::PassSums;
use super::reducer::{Reducer, Summed};
use super::slot::Slot;
use crate::processes::Processes;
use crate::replication::Replication;

/// The memberships of a replica, before its threads are started.
pub(crate) struct Memberships {
    /// With the replicas of this process, which agree that a step can begin.
    pub agreement: Member,
    /// With all replicas, for the sums of gradients.
    pub gradients: Member,
    /// With all replicas, for sums within a pass.
    pub within_pass: Member,
}

impl Memberships {
    /// Those of each of `k` replicas. All but the one that agrees have the replicas of other processes as well.
    pub fn of_each(processes: &Processes, how: &Replication, k: usize) -> Result<Vec<Self>> {
        let options = |link| how.group_options(link);
        let of_all = || {
            let members = match processes.channel()? {
                None => collective::group(k, options(how.link)),
                Some(world) => collective::group_in(world, k, options(how.link))?,
            };
            Result::Ok(members.into_iter())
        };
        let within_pass = of_all()?;
        let gradients = of_all()?;
        let agreement = collective::group(k, options(None));
        let members = within_pass.zip(gradients).zip(agreement);
        let memberships = members.map(|((within_pass, gradients), agreement)| Self {
            agreement,
            gradients,
            within_pass,
        });
        Ok(memberships.collect())
    }
}

/// The connections of a replica to the others. It loses them when it fails in a step.
pub(crate) struct Connections {
    agreement: Member,
    reducer: Reducer,
    pub pass_sums: Arc<PassSums>,
    /// True if batch norm is over the whole minibatch.
    sync_bn: bool,
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
        Ok(Self {
            agreement: memberships.agreement,
            reducer: Reducer::start(name, memberships.gradients, device, how.reduce_on)?,
            pass_sums: Arc::new(PassSums::new(memberships.within_pass, cores.clone())),
            sync_bn: how.sync_bn,
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
        self.reducer.hand_in(bucket)
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
            let Summed {
                bucket, is_finite, ..
            } = self.reducer.sum()?;
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

    /// The sums of batch norms, if they are over the whole minibatch.
    pub fn norms(&self) -> Option<Arc<dyn Summation>> {
        let sums = || self.pass_sums.clone() as Arc<dyn Summation>;
        self.sync_bn.then(sums)
    }

    /// An error where norms have to be synchronized and none can be. A norm with frozen statistics can.
    pub fn check_norms_are_used(&self) -> Result<()> {
        if self.sync_bn && !self.pass_sums.are_norms_used() {
            candle_core::bail!(
                "sync_bn: the network has no synchronized batch norm; use layers::BatchNorm2d or \
                 functional's batch_norm2d, because candle-nn's takes the statistics of one replica's \
                 part"
            )
        }
        Ok(())
    }

    /// A new membership for sums within a pass, after a step that was dropped.
    pub fn join_pass(&self, member: Option<Member>) {
        if let Some(member) = member {
            self.pass_sums.join(member);
        }
    }

    /// The other replicas no longer wait for this one in a pass.
    pub fn leave_pass(&self) {
        self.pass_sums.leave();
    }

    /// The other replicas no longer wait for this one.
    pub fn leave(self) {
        self.reducer.leave();
        self.pass_sums.leave();
    }

    /// Why a sum has failed, if one has.
    pub fn failure(&self) -> Option<Error> {
        let of_pass = self.pass_sums.failure();
        of_pass.map(Error::from).or_else(|| self.reducer.failure())
    }
}
