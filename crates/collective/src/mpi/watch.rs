//! Detects processes that do not arrive. MPI has no timeout: it waits for ever for a process that is alive
//! but does not make the call of the others, because it loops or is stopped.
//!
//! Each process has a thread that polls how long its calls have taken. If one takes longer than its limit,
//! the thread asks these threads of the other processes how many calls they have begun on that channel. It
//! names the processes that have begun fewer calls, or do not answer, and ends all processes. A call costs a
//! few atomic operations more; without a late call, the watches send nothing.

use ::mpi::request::StaticScope;
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{Communicator, Destination, MatchedReceiveVec, Source};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How often the watch polls the calls.
const TICK: Duration = Duration::from_millis(100);
/// How long the watch waits for answers.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often the watch polls for answers.
const POLL: Duration = Duration::from_millis(2);

/// The calls that all processes make together.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(u8)]
pub enum Call {
    AllReduce,
    AllGather,
    Duplicate,
    Finish,
}

const NAMES: [&str; 4] = ["all-reduce", "all-gather", "new channel", "end of MPI"];

/// The ticks of the watch. They pause while the whole process is stopped, as by Ctrl-Z.
type Clock = Arc<AtomicU64>;

/// The calls of one channel.
pub struct Calls {
    channel: u64,
    /// How long a call may take.
    pub limit: Option<Duration>,
    /// How many calls have begun.
    begun: AtomicU64,
    /// The tick at which the present call began, plus 1; 0 between calls.
    since: AtomicU64,
    clock: Clock,
    call: AtomicU8,
}

impl Calls {
    /// Counts a call; it lasts until the result is dropped.
    pub fn enter(&self, call: Call) -> InCall<'_> {
        self.call.store(call as u8, SeqCst);
        self.begun.fetch_add(1, SeqCst);
        self.since.store(self.clock.load(SeqCst) + 1, SeqCst);
        InCall(self)
    }

    /// The present call, if it has taken longer than its limit.
    fn overdue(self: &Arc<Self>) -> Option<Overdue> {
        let (since, number) = (self.since.load(SeqCst), self.begun.load(SeqCst));
        let limit = self.limit.filter(|_| since > 0)?;
        let ticks = (self.clock.load(SeqCst) + 1).saturating_sub(since);
        let taken = TICK.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX));
        let overdue = Overdue {
            calls: self.clone(),
            limit,
            number,
            since,
        };
        (taken > limit && overdue.goes_on()).then_some(overdue)
    }
}

/// A call in progress; dropping it ends the call.
pub struct InCall<'a>(&'a Calls);

impl Drop for InCall<'_> {
    fn drop(&mut self) {
        self.0.since.store(0, SeqCst);
    }
}

/// A call that has taken longer than its limit.
struct Overdue {
    calls: Arc<Calls>,
    limit: Duration,
    number: u64,
    since: u64,
}

impl Overdue {
    fn goes_on(&self) -> bool {
        let Calls { since, begun, .. } = &*self.calls;
        (since.load(SeqCst), begun.load(SeqCst)) == (self.since, self.number)
    }
}

/// The channels of this process.
#[derive(Default)]
pub struct Channels {
    open: Mutex<Vec<Weak<Calls>>>,
    opened: AtomicU64,
    clock: Clock,
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
            begun: AtomicU64::new(0),
            since: AtomicU64::new(0),
            clock: self.clock.clone(),
            call: AtomicU8::new(0),
        });
        self.lock().push(Arc::downgrade(&calls));
        calls
    }

    /// The number of channels that still exist.
    pub fn in_use(&self) -> usize {
        let mut open = self.lock();
        open.retain(|calls| calls.strong_count() > 0);
        open.len()
    }

    fn overdue(&self) -> Option<Overdue> {
        let open = self.lock();
        let mut calls = open.iter().filter_map(Weak::upgrade);
        calls.find_map(|calls| calls.overdue())
    }

    /// How many calls have begun on a channel; 0, if this process does not have the channel.
    fn begun(&self, channel: u64) -> u64 {
        let open = self.lock();
        let mut calls = open.iter().filter_map(Weak::upgrade);
        let calls = calls.find(|calls| calls.channel == channel);
        calls.map_or(0, |calls| calls.begun.load(SeqCst))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Calls>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message between watches: its kind, the channel, the number of the late call, and in an answer how
/// many calls have begun.
type Message = [u64; 4];
const QUESTION: u64 = 0;
const ANSWER: u64 = 1;

pub struct Watch {
    /// Only the watches use it.
    comm: SimpleCommunicator,
    channels: Arc<Channels>,
    rank: usize,
    size: usize,
}

impl Watch {
    pub fn new(comm: SimpleCommunicator, channels: Arc<Channels>) -> Self {
        let (rank, size) = (comm.rank() as usize, comm.size() as usize);
        Self {
            comm,
            channels,
            rank,
            size,
        }
    }

    /// Watches until the sender of `ended` is dropped.
    pub fn until(&mut self, ended: &Receiver<()>) {
        while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
            self.channels.clock.fetch_add(1, SeqCst);
            self.listen(|_, _| ());
            if let Some(call) = self.channels.overdue() {
                self.look_into(&call);
            }
        }
    }

    /// Answers the questions of the other watches, and passes their answers to `answered`.
    fn listen(&self, mut answered: impl FnMut(usize, Message)) {
        while let Some(message) = self.comm.any_process().immediate_matched_probe() {
            let (words, status) = message.matched_receive_vec::<u64>();
            let Ok([kind, channel, number, begun]) = Message::try_from(words) else {
                continue;
            };
            let from = status.source_rank() as usize;
            match kind {
                QUESTION => {
                    let begun = self.channels.begun(channel);
                    self.send(from, [ANSWER, channel, number, begun]);
                }
                _ => answered(from, [kind, channel, number, begun]),
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
        let came = self.ask(call);
        let missing: Vec<usize> = (0..self.size).filter(|r| came[*r] != Some(true)).collect();
        if missing.is_empty() {
            return; // the last one has just arrived, or the data is large
        }
        // the first process that arrived reports; the others do so only if it does not
        let first = came.iter().position(|came| *came == Some(true));
        let end = Instant::now() + 2 * PATIENCE;
        while first != Some(self.rank) && call.goes_on() && Instant::now() < end {
            self.listen(|_, _| ());
            std::thread::sleep(POLL);
        }
        if call.goes_on() {
            let names: Vec<String> = missing.iter().map(usize::to_string).collect();
            let (s, names) = (if names.len() == 1 { "" } else { "s" }, names.join(", "));
            let name = NAMES[usize::from(call.calls.call.load(SeqCst))];
            let limit = call.limit;
            eprintln!("error: {name}: rank{s} {names} did not arrive within {limit:?}");
            self.comm.abort(1);
        }
    }

    /// Whether each process has arrived at the call; `None`, if it does not answer.
    fn ask(&self, call: &Overdue) -> Vec<Option<bool>> {
        let channel = call.calls.channel;
        let mut came = vec![None; self.size];
        came[self.rank] = Some(true);
        for other in (0..self.size).filter(|rank| *rank != self.rank) {
            self.send(other, [QUESTION, channel, call.number, 0]);
        }
        let end = Instant::now() + PATIENCE;
        while came.contains(&None) && Instant::now() < end {
            self.listen(|from, [_, of, number, begun]| {
                if (of, number) == (channel, call.number) {
                    came[from] = Some(begun >= call.number);
                }
            });
            std::thread::sleep(POLL);
        }
        came
    }
}
