//! The all-reduce of one replica, on a thread of its own: it goes on while the replica computes (diff 3 of the chapter
//! `seven-diffs`). A replica that is the only one has nothing to sum, and no such thread.
//!
//! It sums a bucket that is complete with those of the other replicas. All replicas hand in the buckets in the same
//! order. The step is taken when all sums are complete: as a whole, or not at all.
//!
//! Within a process, gradients on the CPU are summed in shared memory, by default with the algorithm owner
//! (`collective::Member::all_reduce_finite`). On a GPU a bucket moves to the communication stream with its memory,
//! without a copy, and its sum comes back in that memory. So a sum waits only for its own bucket, and the optimizer's
//! step for the sums.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use candle_core::{Device, Result, Tensor};
use collective::{CommunicationStream, Member, Taken};
use devices::{Context, WorkSoFar, message, or_panic, retry_with_empty_cache};
use functional::{Bucket, BucketMemory};

use super::receive::receive;
use crate::replication::ReduceOn;

/// Takes buckets of gradients, and gives them back with the sums over all replicas, in the order in
/// which they came. Dropped, it leaves the others when it is through with what it was given.
pub(crate) struct Reducer {
    /// None when it is to end.
    buckets: Option<Sender<HandedIn>>,
    sums: SumsFrom,
    thread: Option<JoinHandle<()>>,
    /// None for a replica that is the only one.
    stream: Option<CommunicationStream>,
}

/// Where sums come from.
enum SumsFrom {
    OfAll(Receiver<Result<Summed>>),
    /// The buckets that were handed in.
    OfOne(Receiver<HandedIn>),
}

struct HandedIn {
    bucket: Bucket,
    /// The work that has written it.
    written: Option<WorkSoFar>,
}

/// A bucket with the sums of all replicas.
pub(crate) struct Summed {
    pub bucket: Bucket,
    /// Its values, as long as they are on the communication stream.
    taken: Option<Taken>,
    /// True if all are known to be finite.
    pub is_finite: bool,
}

impl Reducer {
    /// The sums of `member`, on a communication stream of `device`.
    pub fn start(
        name: &str,
        mut member: Member,
        device: &Device,
        reduce_on: ReduceOn,
    ) -> Result<Self> {
        let (buckets, inbox) = channel();
        if member.size() == 1 {
            return Ok(Self {
                buckets: Some(buckets),
                sums: SumsFrom::OfOne(inbox),
                thread: None,
                stream: None,
            });
        }
        let stream = CommunicationStream::beside(device)?;
        let sums_on = stream.clone();
        let (outbox, sums) = channel();
        let serve = move || {
            while let Ok(handed_in) = receive(&inbox) {
                let sum = or_panic(|| all_reduce(&mut member, &sums_on, handed_in, reduce_on));
                let failed = sum.is_err();
                if outbox.send(sum).is_err() || failed {
                    return;
                }
            }
        };
        let name = format!("{name}, all-reduce");
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(serve)
            .context("a thread could not be started")?;
        Ok(Self {
            buckets: Some(buckets),
            sums: SumsFrom::OfAll(sums),
            thread: Some(thread),
            stream: Some(stream),
        })
    }

    /// Begins to sum a bucket that this thread's work has written.
    pub fn hand_in(&self, bucket: Bucket) -> Result<()> {
        let index = bucket.index;
        // recorded here: when the other thread gets there, more work is in the stream
        let written = match &self.stream {
            Some(stream) => Some(stream.written()?),
            None => None,
        };
        let buckets = self.buckets.as_ref().expect("it has not ended");
        let ended = |_| {
            message(format!(
                "cannot hand in bucket {index}: the reducer has ended"
            ))
        };
        buckets.send(HandedIn { bucket, written }).map_err(ended)
    }

    /// Leaves the others as [`drop`] does, but does not wait for that: they may be in trouble.
    pub fn leave(mut self) {
        self.thread = None;
    }

    /// Why there are no more sums, if a sum has failed; those before it are lost.
    pub fn failure(&self) -> Option<candle_core::Error> {
        match &self.sums {
            SumsFrom::OfAll(sums) => sums.try_iter().find_map(Result::err),
            SumsFrom::OfOne(_) => None,
        }
    }

    /// The next sum, in the order in which the buckets were handed in. Later work of this replica comes after it.
    pub fn sum(&self) -> Result<Summed> {
        match &self.sums {
            SumsFrom::OfAll(sums) => {
                let mut sum = receive(sums).ok().context(ENDED)??;
                if let Some(taken) = sum.taken.take() {
                    sum.bucket.values = BucketMemory::Tensor(taken.give_back()?);
                }
                Ok(sum)
            }
            SumsFrom::OfOne(buckets) => Ok(Summed {
                bucket: buckets.recv().ok().context(ENDED)?.bucket,
                taken: None,
                is_finite: false, // the trainer looks at them with all its threads
            }),
        }
    }
}

const ENDED: &str = "the thread of the all-reduce has ended";

impl Drop for Reducer {
    fn drop(&mut self) {
        self.buckets = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic has come as a sum
        }
    }
}

#[tracing::instrument(skip_all, name = "all-reduce")]
fn all_reduce(
    member: &mut Member,
    stream: &CommunicationStream,
    handed_in: HandedIn,
    reduce_on: ReduceOn,
) -> Result<Summed> {
    let mut bucket = handed_in.bucket;
    let mut taken = None;
    let mut is_finite = false;
    bucket.values = match bucket.values {
        BucketMemory::Floats(floats) => {
            let (sums, are_finite) = member.all_reduce_finite(floats)?;
            is_finite = are_finite;
            BucketMemory::Floats(sums)
        }
        BucketMemory::Tensor(tensor) => {
            let written = handed_in.written.expect("this replica is not the only one");
            let values = taken.insert(stream.take(tensor, &written)?).tensor();
            match reduce_on {
                ReduceOn::Device => member.all_reduce_tensor(values)?,
                ReduceOn::Host => {
                    let sum = member.all_reduce(values.to_vec1()?)?;
                    retry_with_empty_cache(|| {
                        let sum = Tensor::from_slice(&sum, values.shape(), values.device())?;
                        values.slice_set(&sum, 0, 0)
                    })?;
                }
            }
            BucketMemory::Floats(Vec::new()) // until they are given back
        }
    };
    Ok(Summed {
        bucket,
        taken,
        is_finite,
    })
}
