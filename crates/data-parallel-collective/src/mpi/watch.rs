//! Detects processes that do not arrive. MPI has no timeout: it waits for ever for a process that is alive
//! but does not make the call of the others, because it loops or is stopped.
//!
//! Each process has a thread that polls how long its calls have taken. If one takes longer than its limit,
//! the thread asks these threads of the other processes how many calls they have begun on that channel. It
//! names those that have begun fewer and are in no call at all, or do not answer, and ends all processes. A process in
//! an earlier call waits there for the same culprit. Probably one on another channel does too: it is named only if there
//! is no other. A call costs a few atomic operations more; without a late call, the watches send nothing.

use crate::end::last_words;
use crate::error::names;
use ::mpi::request::StaticScope;
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{Communicator, Destination, MatchedReceiveVec, Source};
use devices::lock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// Time between two polls of the calls.
const TICK: Duration = Duration::from_millis(100);
/// The longest time that the watch waits for answers.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time between two polls for answers.
const POLL: Duration = Duration::from_millis(2);

/// The calls that all processes make together.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(u8)]
pub enum Call {
    AllReduce,
    ReduceScatter,
    AllGather,
    Duplicate,
    Finish,
}

const NAMES: [&str; 5] = [
    "all-reduce",
    "reduce-scatter",
    "all-gather",
    "new channel",
    "end of MPI",
];

/// The calls of one channel.
pub struct Calls {
    channel: u64,
    /// The longest time that a call may take.
    pub limit: Option<Duration>,
    /// Counts the beginning and the end of each call, so it is odd during a call.
    progress: AtomicU64,
    call: AtomicU8,
    /// The progress when the watch looked last, and at how many of its ticks in a row. The ticks pause while the
    /// whole process is stopped, as by Ctrl-Z.
    seen: [AtomicU64; 2],
}

impl Calls {
    /// Counts a call; it lasts until the result is dropped.
    pub fn enter(&self, call: Call) -> InCall<'_> {
        self.call.store(call as u8, SeqCst);
        self.progress.fetch_add(1, SeqCst);
        InCall(self)
    }

    /// A tick of the watch: the present call, if it has taken longer than its limit.
    fn overdue(self: &Arc<Self>) -> Option<Overdue> {
        let progress = self.progress.load(SeqCst);
        let [last, ticks] = &self.seen;
        if last.swap(progress, SeqCst) != progress {
            ticks.store(0, SeqCst);
        }
        let ticks = 1 + ticks.fetch_add(1, SeqCst);
        let taken = TICK.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX));
        let limit = self.limit.filter(|limit| taken > *limit)?;
        let calls = self.clone();
        (progress % 2 == 1).then_some(Overdue {
            calls,
            limit,
            progress,
        })
    }
}

/// A call in progress; dropping it ends the call.
pub struct InCall<'a>(&'a Calls);

impl Drop for InCall<'_> {
    fn drop(&mut self) {
        self.0.progress.fetch_add(1, SeqCst);
    }
}

/// A call that has taken longer than its limit.
struct Overdue {
    calls: Arc<Calls>,
    limit: Duration,
    progress: u64,
}

impl Overdue {
    fn goes_on(&self) -> bool {
        self.calls.progress.load(SeqCst) == self.progress
    }
}

/// The channels of this process.
#[derive(Default)]
pub struct Channels {
    open: Mutex<Vec<Weak<Calls>>>,
    opened: AtomicU64,
}

impl Channels {
    /// A number that this process has given to no channel.
    pub fn unused(&self) -> u64 {
        1 + self.opened.fetch_add(1, SeqCst)
    }

    pub fn open(&self, channel: u64, limit: Option<Duration>) -> Arc<Calls> {
        let calls = Arc::new(Calls {
            channel,
            limit,
            progress: AtomicU64::new(0),
            call: AtomicU8::new(0),
            seen: Default::default(),
        });
        lock(&self.open).push(Arc::downgrade(&calls));
        calls
    }

    /// The number of channels that still exist.
    pub fn in_use(&self) -> usize {
        let mut open = lock(&self.open);
        open.retain(|calls| calls.strong_count() > 0);
        open.len()
    }

    /// The first answer of a channel.
    fn find<T>(&self, ask: impl FnMut(Arc<Calls>) -> Option<T>) -> Option<T> {
        let open = lock(&self.open);
        open.iter().filter_map(Weak::upgrade).find_map(ask)
    }
}

/// A message between watches: the channel, the progress of the late call, and in an answer the progress of the process
/// that answers, plus 1, and whether it is in a call on any channel; in a question zeros.
type Message = [u64; 4];

/// The place of a process when a call is late.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    /// It has come to the call, or waits in an earlier one on the same channel.
    Here,
    /// It waits in a call on another channel.
    Elsewhere,
    /// It is in no call, or does not answer.
    Nowhere,
}

/// True if a process with the progress `there` has come to the call with the progress `here`, or waits in an earlier
/// one.
fn has_come(there: u64, here: u64) -> bool {
    let waits_earlier = there % 2 == 1;
    there.div_ceil(2) >= here.div_ceil(2) || waits_earlier
}

pub struct Watch {
    /// Only the watches use it.
    pub comm: SimpleCommunicator,
    pub channels: Arc<Channels>,
}

impl Watch {
    fn rank(&self) -> usize {
        self.comm.rank() as usize
    }

    /// Watches until the sender of `ended` is dropped.
    pub fn until(&self, ended: &Receiver<()>) {
        while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
            self.listen(|_, _| ());
            if let Some(call) = self.channels.find(|calls| calls.overdue()) {
                self.look_into(&call);
            }
        }
    }

    /// Answers the questions of the other watches, and passes their answers to `answered`.
    fn listen(&self, mut answered: impl FnMut(usize, Message)) {
        while let Some(message) = self.comm.any_process().immediate_matched_probe() {
            let (words, status) = message.matched_receive_vec::<u64>();
            let from = status.source_rank() as usize;
            match Message::try_from(words) {
                Ok([channel, progress, 0, _]) => {
                    let of_channel = |calls: Arc<Calls>| {
                        (calls.channel == channel).then(|| calls.progress.load(SeqCst))
                    };
                    let here = self.channels.find(of_channel).unwrap_or(0); // not opened yet, or dropped
                    let in_call =
                        |calls: Arc<Calls>| (calls.progress.load(SeqCst) % 2 == 1).then_some(());
                    let waits = self.channels.find(in_call).is_some();
                    self.send(from, [channel, progress, 1 + here, u64::from(waits)]);
                }
                Ok(answer) => answered(from, answer),
                Err(_) => (),
            }
        }
    }

    /// Sends without waiting for the arrival. It leaks the message, because MPI may read it later.
    fn send(&self, to: usize, message: Message) {
        let message: &'static Message = Box::leak(Box::new(message));
        let process = self.comm.process_at_rank(to as i32);
        std::mem::forget(process.immediate_send(StaticScope, &message[..]));
    }

    /// Asks all processes whether they have arrived at the call; ends all if one has not.
    fn look_into(&self, call: &Overdue) {
        let places = self.ask(call);
        let at = |place: Place| -> Vec<usize> {
            let ranks = 0..places.len();
            ranks.filter(|rank| places[*rank] == place).collect()
        };
        let mut missing = at(Place::Nowhere);
        if missing.is_empty() {
            missing = at(Place::Elsewhere); // they wait for this process, and it waits for them
        }
        if missing.is_empty() {
            return; // the last one has just arrived, or the data is large
        }
        // the first process that arrived reports; the others do so only if it does not
        let first = at(Place::Here).first().copied();
        let end = Instant::now() + 2 * PATIENCE;
        while first != Some(self.rank()) && call.goes_on() && Instant::now() < end {
            self.listen(|_, _| ());
            std::thread::sleep(POLL);
        }
        if call.goes_on() {
            let name = NAMES[usize::from(call.calls.call.load(SeqCst))];
            let ranks = names("rank", &missing);
            let limit = call.limit;
            last_words(&format!("{name}: {ranks} did not arrive within {limit:?}"));
            self.comm.abort(1);
        }
    }

    /// Asks for the place of each process.
    fn ask(&self, call: &Overdue) -> Vec<Place> {
        let channel = call.calls.channel;
        let progress = call.progress;
        let mut answers = vec![None; self.comm.size() as usize];
        answers[self.rank()] = Some(Place::Here);
        for other in (0..answers.len()).filter(|rank| *rank != self.rank()) {
            self.send(other, [channel, progress, 0, 0]);
        }
        let end = Instant::now() + PATIENCE;
        while answers.contains(&None) && Instant::now() < end {
            self.listen(|from, [of, number, there, waits]| {
                if (of, number) == (channel, progress) {
                    answers[from] = Some(if has_come(there - 1, progress) {
                        Place::Here
                    } else if waits == 1 {
                        Place::Elsewhere
                    } else {
                        Place::Nowhere
                    });
                }
            });
            std::thread::sleep(POLL);
        }
        answers
            .into_iter()
            .map(|place| place.unwrap_or(Place::Nowhere))
            .collect()
    }
}
