//! The processes that `mpirun` started, as a [`ProcessGroup`].
//!
//! MPI does not compare calls or lengths: if two processes differ, it overwrites memory and then hangs. So
//! the processes first exchange their call and its length, and fail all together. The owners compute a sum,
//! in the order that they are given. MPI's own sum has the same bits in all processes, but its order depends on the length.
//!
//! If one process fails, all end. A panic ends all, and so does [`abort`], which a program calls instead of
//! an exit with an error. `mpirun` handles a process that is killed, or ends without [`finish`]. The watch
//! detects and names a process that is alive but does not arrive.
//!
//! The first call of [`process_group`] initializes MPI; a program without such a call never uses MPI.

#![allow(unsafe_code)]

mod watch;

use crate::end::last_words;
use crate::error::Error;
use crate::order::{SumOrder, parts};
use crate::process_group::ProcessGroup;
use ::mpi::Threading;
use ::mpi::datatype::{Partition, PartitionMut};
use ::mpi::environment::{is_finalized, is_initialized};
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{Communicator, CommunicatorCollectives};
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use watch::{Call, Calls, Channels, Watch};

/// The processes that `mpirun` started; without `mpirun`, this process alone.
///
/// All processes must make their process groups in the same order; each is a new channel. If a call waits for other
/// processes longer than `timeout`, a line on stderr names those that did not arrive, and all processes
/// end with status 1. From the first call on, a panic in any thread ends all processes too.
///
/// ```no_run
/// # fn main() -> Result<(), data_parallel_collective::Error> {
/// let all = data_parallel_collective::mpi::process_group(None)?;
/// let mut members = data_parallel_collective::group_in(all, 1, Default::default())?;
/// let sum = members[0].all_reduce(vec![1.0])?; // as many as there are processes
/// drop(members);
/// data_parallel_collective::mpi::finish()
/// # }
/// ```
///
/// # Errors
/// [`Error::Process`]: MPI does not start, does not allow calls from several threads, or has ended.
pub fn process_group(timeout: Option<Duration>) -> Result<Box<dyn ProcessGroup>, Error> {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    if is_finalized() {
        let why = "MPI has ended, and cannot start again in the same process";
        return Err(error(0, why));
    }
    let running = match &mut *running {
        Some(running) => running,
        none => none.insert(start(timeout)?),
    };
    Ok(Box::new(running.base.another(timeout)?))
}

/// Ends MPI in order, once all processes call it. A program that made a process group calls it at its end;
/// otherwise `mpirun` treats the end as a failure and ends the other processes.
///
/// # Errors
/// [`Error::Process`]: a process group of this process still exists. [`Error::KindMismatch`]: another process
/// makes a process group instead.
pub fn finish() -> Result<(), Error> {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(Running { base, .. }) = &*running else {
        return Ok(());
    };
    if base.channels.in_use() > 1 {
        let why = "MPI cannot end yet: drop all process groups first";
        return Err(error(base.rank, why));
    }
    // once all processes are here, MPI ends without waiting
    let in_call = base.calls.enter(Call::Finish);
    base.meet(Call::Finish, 0, &[])?;
    drop(in_call);
    if let Some(Running { end, keeper, .. }) = running.take() {
        drop(end);
        keeper.join().expect("a panic would have ended the process");
    }
    Ok(())
}

/// Ends all processes at once, and the job with `status`; a line on stderr names this process. Without MPI,
/// only this process ends.
///
/// For a program that gives up while others may wait for it: [`finish`] would wait for them.
pub fn abort(status: i32) -> ! {
    abort_because(status, "gives up")
}

/// Like [`abort`]; the line says `rank 1`, and then `why`.
pub fn abort_because(status: i32, why: &str) -> ! {
    if is_running() {
        end_all(status, why);
    }
    std::process::exit(status)
}

/// Ends all processes, and names this one on stderr, because `mpirun` does not always name it.
fn end_all(status: i32, why: &str) -> ! {
    let all = SimpleCommunicator::world();
    last_words(&format!("rank {} {why}, and all processes end", all.rank()));
    all.abort(status)
}

fn is_running() -> bool {
    is_initialized() && !is_finalized()
}

fn error(rank: usize, why: &str) -> Error {
    let why = why.to_owned();
    Error::Process { rank, why }
}

static RUNNING: Mutex<Option<Running>> = Mutex::new(None);

struct Running {
    /// Never returned to a caller; other channels are made from it.
    base: MpiProcesses,
    /// Dropped to end MPI.
    end: Sender<()>,
    keeper: JoinHandle<()>,
}

/// Starts the thread that initializes MPI. Only this thread may end MPI; until then it is the watch.
fn start(timeout: Option<Duration>) -> Result<Running, Error> {
    let (started, base) = channel();
    let (end, ended) = channel();
    let keeper = std::thread::Builder::new()
        .name("mpi".to_owned())
        .spawn(move || keep(&started, &ended, timeout))
        .map_err(|e| error(0, &e.to_string()))?;
    let base = base
        .recv()
        .map_err(|_| error(0, "MPI cannot be started"))??;
    end_all_on_a_panic();
    Ok(Running { base, end, keeper })
}

fn keep(
    started: &Sender<Result<MpiProcesses, Error>>,
    ended: &Receiver<()>,
    timeout: Option<Duration>,
) {
    let failed = |why| drop(started.send(Err(error(0, why))));
    let Some((universe, threading)) = ::mpi::initialize_with_threading(Threading::Multiple) else {
        return failed("MPI is initialized already");
    };
    if threading != Threading::Multiple {
        return failed("this MPI has no MPI_THREAD_MULTIPLE; use one that was built with it");
    }
    let channels = Arc::new(Channels::default());
    let base = Comm(ManuallyDrop::new(universe.world().duplicate()));
    let watch = Watch {
        comm: universe.world().duplicate(),
        channels: channels.clone(),
    };
    let _ = started.send(Ok(MpiProcesses::new(base, channels, 0, timeout)));
    watch.until(ended);
    drop(watch);
    drop(universe); // finalizes
}

/// Without this, a panic would unwind into destructors that wait for processes that wait for this one.
fn end_all_on_a_panic() {
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        previous(panic);
        if is_running() {
            let why = panic.to_string().replace('\n', " ");
            end_all(101, &format!("has {why}"));
        }
    }));
}

/// A communicator that is never freed: all processes must free it together, but one may drop its group alone.
struct Comm(ManuallyDrop<SimpleCommunicator>);

// Safety: a `Comm` exists only if MPI has granted MPI_THREAD_MULTIPLE, so any thread may use it. Its owner, a
// process group, is used by one thread at a time.
unsafe impl Send for Comm {}

/// All processes, on one channel.
struct MpiProcesses {
    comm: Comm,
    channels: Arc<Channels>,
    calls: Arc<Calls>,
    rank: usize,
    size: usize,
    /// The chunk that this process sums, of the vectors of all processes.
    parts: Vec<f32>,
}

/// The size of the note that a process sends before a call: the call, a length, and its data, if that is
/// little.
const NOTE: usize = 128;
const LITTLE: usize = NOTE - 16;
type Note = [u8; NOTE];

fn length(note: &Note) -> usize {
    u64::from_le_bytes(note[8..16].try_into().expect("eight bytes")) as usize
}

/// The number of elements that are summed at a time. Received data is still in the cache when it is added,
/// and counts are far below MPI's limit of `i32`.
const PIECE: usize = 1 << 18;

impl MpiProcesses {
    fn new(
        comm: Comm,
        channels: Arc<Channels>,
        channel: u64,
        timeout: Option<Duration>,
    ) -> MpiProcesses {
        let rank = comm.0.rank() as usize;
        let size = comm.0.size() as usize;
        MpiProcesses {
            comm,
            calls: channels.open(channel, timeout),
            channels,
            rank,
            size,
            parts: Vec::new(),
        }
    }

    /// Another channel.
    fn another(&self, timeout: Option<Duration>) -> Result<MpiProcesses, Error> {
        let _in_call = self.calls.enter(Call::Duplicate);
        let notes = self.meet(Call::Duplicate, self.channels.unused(), &[])?;
        let channel = length(&notes[0]) as u64; // the number that process 0 chose
        let comm = Comm(ManuallyDrop::new(self.comm.0.duplicate()));
        let channels = self.channels.clone();
        Ok(MpiProcesses::new(comm, channels, channel, timeout))
    }

    /// Waits until all processes are at a call, and returns their notes; fails if the calls differ.
    fn meet(&self, call: Call, length: u64, brought: &[u8]) -> Result<Vec<Note>, Error> {
        let mut mine = [0; NOTE];
        mine[0] = call as u8;
        mine[8..16].copy_from_slice(&length.to_le_bytes());
        if brought.len() <= LITTLE {
            mine[16..][..brought.len()].copy_from_slice(brought);
        }
        let mut all = vec![0; NOTE * self.size];
        self.comm.0.all_gather_into(&mine[..], &mut all[..]);
        let (notes, _) = all.as_chunks::<NOTE>();
        if notes.iter().any(|note| note[0] != notes[0][0]) {
            return Err(Error::KindMismatch);
        }
        Ok(notes.to_vec())
    }

    /// Waits until all processes are at a call; fails if the calls or their lengths differ.
    fn same_length(&self, call: Call, mine: usize) -> Result<(), Error> {
        let notes = self.meet(call, mine as u64, &[])?;
        let expected = length(&notes[0]);
        match notes.iter().position(|note| length(note) != expected) {
            None => Ok(()),
            Some(rank) => Err(Error::LengthMismatch {
                rank,
                found: length(&notes[rank]),
                expected,
            }),
        }
    }

    /// Sums a chunk of all vectors, one for each process; the chunks have the same ranges in all processes. The sum of
    /// its own chunk is then in the first vector of a process.
    fn sum(&mut self, vectors: &mut [&mut [f32]], order: &SumOrder, chunks: &[Range<usize>]) {
        let total = order.vectors.iter().sum::<usize>();
        let own = chunks[self.rank].clone();
        self.parts.resize(total * own.len(), 0.0);
        // first one vector of each process, then the second of those that have two, and so on
        for i in 0..order.vectors.iter().copied().max().unwrap_or(0) {
            let place = |rank| (order.first(rank) + i) * own.len();
            let has = |rank: &usize| order.vectors[*rank] > i;
            let others = |rank: &usize| *rank != self.rank && has(rank);
            let mine: &[f32] = vectors.get(i).map_or(&[], |vector| vector);
            if has(&self.rank) {
                self.parts[place(self.rank)..][..own.len()].copy_from_slice(&mine[own.clone()]);
            }
            // this process sends nothing to itself
            let sent = chunks.iter().enumerate().map(|(rank, chunk)| {
                if rank == self.rank || mine.is_empty() {
                    (0, 0)
                } else {
                    (chunk.len() as i32, chunk.start as i32)
                }
            });
            let (sent, from): (Vec<i32>, Vec<i32>) = sent.unzip();
            let received = (0..self.size).map(|rank| {
                if others(&rank) {
                    (own.len() as i32, place(rank) as i32)
                } else {
                    (0, 0)
                }
            });
            let (received, to): (Vec<i32>, Vec<i32>) = received.unzip();
            self.comm.0.all_to_all_varcount_into(
                &Partition::new(mine, sent, from),
                &mut PartitionMut::new(&mut self.parts[..], received, to),
            );
        }
        order.sum(&mut self.parts, own.len());
        vectors[0][own.clone()].copy_from_slice(&self.parts[..own.len()]);
    }

    /// Sends the sum of each chunk to all processes.
    fn gather(&mut self, vector: &mut [f32], chunks: &[Range<usize>]) {
        let counts: Vec<i32> = chunks.iter().map(|chunk| chunk.len() as i32).collect();
        let starts = starts(&counts);
        let mut whole = PartitionMut::new(vector, counts, starts);
        let sum = &self.parts[..chunks[self.rank].len()];
        self.comm.0.all_gather_varcount_into(sum, &mut whole);
    }
}

/// The start of each part, if they follow each other.
fn starts(counts: &[i32]) -> Vec<i32> {
    let ends = counts.iter().scan(0, |end, count| {
        *end += count;
        Some(*end - count)
    });
    ends.collect()
}

impl ProcessGroup for MpiProcesses {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_reduce(&mut self, vectors: &mut [&mut [f32]], order: &SumOrder) -> Result<(), Error> {
        let calls = self.calls.clone();
        let _in_call = calls.enter(Call::AllReduce);
        let len = vectors[0].len();
        self.same_length(Call::AllReduce, len)?;
        let owners = parts(self.size);
        for start in (0..len).step_by(PIECE) {
            let piece = start..len.min(start + PIECE);
            let mut pieces: Vec<_> = vectors.iter_mut().map(|v| &mut v[piece.clone()]).collect();
            let chunks: Vec<Range<usize>> = (0..self.size)
                .map(|rank| owners.chunk(rank, piece.len()))
                .collect();
            self.sum(&mut pieces, order, &chunks);
            self.gather(pieces[0], &chunks);
        }
        Ok(())
    }

    fn reduce_scatter(
        &mut self,
        vectors: &mut [&mut [f32]],
        order: &SumOrder,
    ) -> Result<(), Error> {
        let calls = self.calls.clone();
        let _in_call = calls.enter(Call::ReduceScatter);
        let len = vectors[0].len();
        self.same_length(Call::ReduceScatter, len)?;
        if i32::try_from(len).is_err() {
            let why = format!("{len} elements to scatter; MPI counts to {}", i32::MAX);
            return Err(error(self.rank, &why));
        }
        let parts: Vec<_> = (0..self.size).map(|rank| order.part(rank, len)).collect();
        let longest = parts.iter().map(Range::len).max().unwrap_or(0);
        let step = PIECE.div_ceil(self.size);
        for start in (0..longest).step_by(step) {
            // the same piece of each part
            let piece = |part: &Range<usize>| {
                let at = |i: usize| part.end.min(part.start + i);
                at(start)..at(start + step)
            };
            let chunks: Vec<_> = parts.iter().map(piece).collect();
            self.sum(vectors, order, &chunks);
        }
        Ok(())
    }

    fn all_gather(&mut self, data: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let _in_call = self.calls.enter(Call::AllGather);
        let notes = self.meet(Call::AllGather, data.len() as u64, data)?;
        let lengths = notes.iter().map(length);
        if lengths.clone().all(|length| length <= LITTLE) {
            let brought = notes.iter().map(|note| note[16..][..length(note)].to_vec());
            return Ok(brought.collect());
        }
        let total: usize = lengths.clone().sum();
        if i32::try_from(total).is_err() {
            let most = i32::MAX;
            let why = format!("{total} bytes to gather; MPI gathers at most {most} at once");
            return Err(error(self.rank, &why));
        }
        let counts: Vec<i32> = lengths.map(|length| length as i32).collect();
        let starts = starts(&counts);
        let mut all = vec![0u8; total];
        let mut places = PartitionMut::new(&mut all[..], &counts[..], &starts[..]);
        self.comm.0.all_gather_varcount_into(data, &mut places);
        Ok(starts
            .iter()
            .zip(&counts)
            .map(|(start, len)| all[*start as usize..][..*len as usize].to_vec())
            .collect())
    }

    fn duplicate(&self) -> Result<Box<dyn ProcessGroup>, Error> {
        Ok(Box::new(self.another(self.calls.limit)?))
    }
}
