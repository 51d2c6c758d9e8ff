//! Batch norm over the whole minibatch: what its statistics are summed by.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{Error, Result};
use collective::Member;
use functional::Summation;

use crate::cores::Cores;

/// One replica's seat among those who sum the statistics of batch norms.
pub(crate) struct Norms {
    /// Empty once the replica has failed.
    member: Mutex<Option<Member>>,
    cores: Arc<Cores>,
}

impl Norms {
    pub fn new(member: Member, cores: Arc<Cores>) -> Self {
        Self {
            member: Mutex::new(Some(member)),
            cores,
        }
    }

    /// Leaves the others, who need not wait any longer.
    pub fn leave(&self) {
        *self.member.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Summation for Norms {
    /// Sums in rank order, so that all replicas have the same bits.
    fn sum(&self, values: &mut [f64]) -> Result<()> {
        let mut member = self.member.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(member) = member.as_mut() else {
            return Err(Error::msg("it failed before"));
        };
        let gather = || member.all_gather(values.to_vec());
        let all = self.cores.without(gather).map_err(Error::wrap)?;
        values.fill(0.0);
        for other in all {
            if other.len() != values.len() {
                return Err(Error::msg(
                    "the replicas' networks are at different batch norms",
                ));
            }
            values
                .iter_mut()
                .zip(other)
                .for_each(|(sum, value)| *sum += value);
        }
        Ok(())
    }
}
