//! Which example comes when: the order of an epoch, and the part of a minibatch that a process makes.

use std::ops::Range;

use rand::seq::SliceRandom;

use crate::random::generator;

/// The order of the examples in each epoch. It depends on the seed and on the epoch's number alone, so a run that
/// starts again at epoch 5 sees what it would have seen.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) examples: usize,
    /// Without a seed, the order is the files'.
    pub(crate) seed: Option<u64>,
    /// An epoch, and how many of its examples are left out: an interrupted run has had them.
    pub(crate) begun: (usize, usize),
}

impl Order {
    /// The indices of the examples of epoch `epoch` that are still to come.
    pub(crate) fn epoch(&self, epoch: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.examples as u32).collect();
        if let Some(seed) = self.seed {
            order.shuffle(&mut generator(seed, b"shuf", epoch as u32));
        }
        let (begun, had) = self.begun;
        if epoch == begun {
            order.drain(..had);
        }
        order
    }
}

/// The shards of a minibatch that this process makes, of all into which a minibatch is split.
#[derive(Clone, Debug)]
pub(crate) struct Shard {
    pub(crate) own: Range<usize>,
    pub(crate) of: usize,
}

impl Shard {
    /// The examples of a minibatch that are this process's. The first shards have one more where the split is uneven.
    pub(crate) fn part<'a>(&self, minibatch: &'a [u32]) -> &'a [u32] {
        let n = minibatch.len();
        let first = |shard: usize| shard * (n / self.of) + shard.min(n % self.of);
        &minibatch[first(self.own.start)..first(self.own.end)]
    }
}
