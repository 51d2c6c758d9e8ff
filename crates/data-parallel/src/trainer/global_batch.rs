//! The minibatch of all processes, on which they agree before the replicas begin: of each process it has a part.
//!
//! Each process counts its part on the host. The counts are gathered with the numbers of examples. So each process
//! knows the divisor of the step before its replicas compute, and a part that is bad in one process is an error in all
//! of them. A checksum of the settings travels with the counts: with another learning rate in one process, the replicas
//! would drift apart without an error.

use candle_core::{Device, Result, Tensor};
use training::BatchLoss;

use crate::batch_tensors::{BatchTensors, first_twins};
use crate::error::Kind;
use crate::processes::Processes;

/// What the minibatch has in all processes together.
#[derive(Clone, Copy)]
pub(crate) struct GlobalCounts {
    pub examples: usize,
    /// What it counts in the mean of its step: its examples, or what
    /// [`Trainer::mean_over`](crate::Trainer::mean_over) says.
    pub divisor: f64,
}

/// The part of this process, and what it counts.
pub(crate) struct LocalBatch {
    pub data: BatchTensors,
    pub count: f64,
}

/// What the processes agree on.
pub(crate) struct Agreed {
    /// The part of this process.
    pub data: BatchTensors,
    pub global: GlobalCounts,
    /// True if one of the processes wants to stop: then all do so after this step.
    pub stops: bool,
}

/// Adds up the parts of all processes. `settings` has what has to be the same in all of them, a line each.
///
/// # Errors
/// In all processes, if the part of one is bad, or the settings differ.
pub(crate) fn agree(
    processes: &Processes,
    own: Result<LocalBatch>,
    wants_to_stop: bool,
    settings: &str,
) -> Result<Agreed> {
    let (examples, count) = match &own {
        Ok(part) => (part.data.examples, part.count),
        Err(_) => (0, 0.0),
    };
    let [wants_to_stop, is_bad] =
        [wants_to_stop, own.is_err()].map(|flag| f64::from(u8::from(flag)));
    let numbers = [examples as f64, count, wants_to_stop, is_bad];
    let all = gather(processes, "counts of minibatches", numbers, settings)?;
    let sum = |i: usize| all.iter().map(|numbers| numbers[i]).sum::<f64>();
    if sum(3) > 0.0 {
        return Err(Kind::Refused.of(processes.why(own.err())?));
    }
    Ok(Agreed {
        data: own?.data,
        global: GlobalCounts {
            examples: sum(0) as usize,
            divisor: sum(1),
        },
        stops: sum(2) > 0.0,
    })
}

/// An error in all processes, if the settings of one differ from those of another.
pub(crate) fn check_settings(processes: &Processes, settings: &str) -> Result<()> {
    gather(processes, "settings of steps", [], settings).map(drop)
}

/// The numbers of each process, and an error if the settings differ. All processes see the same checksums, so all of them
/// compare the settings or none.
fn gather<const N: usize>(
    processes: &Processes,
    what: &str,
    own: [f64; N],
    settings: &str,
) -> Result<Vec<Vec<f64>>> {
    let own = [&own[..], &[checksum(settings)]].concat();
    let all = processes.gather_numbers(what, &own)?;
    if all.iter().any(|numbers| numbers[N] != all[0][N]) {
        processes.agree("settings", settings)?;
    }
    Ok(all)
}

fn checksum(settings: &str) -> f64 {
    let mut sum = crc32fast::Hasher::new();
    for line in settings.lines() {
        if line.starts_with("optimizer ") {
            sum.update(in_one_order(line).as_bytes());
        } else {
            sum.update(line.as_bytes());
        }
    }
    f64::from(sum.finalize())
}

/// What the `Debug` of an optimizer shows in every process: a `HashMap` shows its entries in an order of each process, and
/// a function its address.
fn in_one_order(debug: &str) -> String {
    let entries = debug.split(['{', '}', ',']).map(str::trim);
    let mut entries: Vec<&str> = entries.filter(|entry| !entry.contains("0x")).collect();
    entries.sort_unstable();
    entries.join(",")
}

/// An error in all processes, if two have the same part. Then the data was not cut, and each example would be trained
/// once in each process.
pub(crate) fn check_parts_differ(processes: &Processes, data: &BatchTensors) -> Result<()> {
    let all = processes.gather("fingerprints of minibatches", &data.fingerprint()?)?;
    if let Some((first, other)) = first_twins(&all) {
        return Err(Kind::Refused.says(format!(
            "processes {first} and {other} train on the same minibatch: net.part(data) makes the part of a process, and \
             so does Checkpoints::minibatches"
        )));
    }
    Ok(())
}

impl GlobalCounts {
    /// The loss of the shards that are here, from the sum of each.
    pub fn loss_here(self, sums: Vec<Tensor>) -> BatchLoss {
        BatchLoss::new(sums, self.examples).divided_by(self.divisor)
    }

    /// The loss of the shards of all processes, from the sums of those that are here. They are added in the order in which
    /// one process would have them, so the loss has its bits.
    pub fn loss(self, processes: &Processes, sums: Vec<Tensor>) -> Result<BatchLoss> {
        if processes.are_one() {
            return Ok(self.loss_here(sums)); // they may stay where they are
        }
        let bytes = |sum: &Tensor| Ok(sum.to_scalar::<f32>()?.to_le_bytes());
        let here = sums.iter().map(bytes).collect::<Result<Vec<_>>>()?;
        let all = processes.gather("losses", &here.concat())?.concat();
        let sum = |bytes: &[u8; 4]| Tensor::new(f32::from_le_bytes(*bytes), &Device::Cpu);
        let all = all.as_chunks().0.iter().map(sum).collect::<Result<_>>()?;
        Ok(self.loss_here(all))
    }
}
