//! The processes that `mpirun` started, as a [`World`].
//!
//! MPI does not compare calls or lengths: if two processes differ, it overwrites memory and then hangs. So
//! the processes first exchange their call and its length, and fail all together. The owners compute a sum,
//! in rank order. MPI's own sum has the same bits in all processes, but its order depends on the length.
//!
//! If one process fails, all end. A panic ends all, and so does [`abort`], which a program calls instead of
//! an exit with an error. `mpirun` handles a process that is killed, or ends without [`finish`]. The watch
//! detects and names a process that is alive but does not arrive.
//!
//! The first call of [`world`] initializes MPI; a program without such a call never uses MPI.

#![allow(unsafe_code)]

mod watch;

use crate::algorithm::{Algorithm, Schedule};
use crate::error::Error;
use crate::world::World;
use ::mpi::Threading;
use ::mpi::datatype::{Partition, PartitionMut};
use ::mpi::environment::{is_finalized, is_initialized};
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{Communicator, CommunicatorCollectives};
use pulp::Arch;
use std::mem::ManuallyDrop;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use watch::{Call, Calls, Channels, Watch};

/// The processes that `mpirun` started; without `mpirun`, this process alone.
///
/// All processes must make their worlds in the same order; each world is a new channel. If a call waits for
/// other processes longer than `timeout`, a line on stderr names those that did not arrive, and all processes
/// end with status 1. From the first call on, a panic in any thread ends all processes too.
///
/// ```no_run
/// # fn main() -> Result<(), collective::Error> {
/// let world = collective::mpi::world(None)?;
/// let mut members = collective::group_in(world, 1, Default::default());
/// let sum = members[0].all_reduce(vec![1.0])?; // as many as there are processes
/// drop(members);
/// collective::mpi::finish()
/// # }
/// ```
///
/// # Errors
/// [`Error::World`]: MPI does not start, does not allow calls from several threads, or has ended.
pub fn world(timeout: Option<Duration>) -> Result<Box<dyn World>, Error> {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    if let State::Before = *state {
        *state = State::Running(start(timeout)?);
    }
    match &*state {
        State::Running(running) => Ok(Box::new(running.base.another(timeout)?)),
        _ => Err(error(
            0,
            "MPI has ended, and cannot start again in the same process",
        )),
    }
}

/// Ends MPI in order, once all processes call it. A program that made a world calls it at its end;
/// otherwise `mpirun` treats the end as a failure and ends the other processes.
///
/// # Errors
/// [`Error::World`]: a world of this process still exists. [`Error::KindMismatch`]: another process makes
/// a world instead.
pub fn finish() -> Result<(), Error> {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let State::Running(running) = &*state else {
        return Ok(());
    };
    let base = &running.base;
    if base.channels.in_use() > 1 {
        return Err(error(
            base.rank,
            "MPI cannot end yet: drop all worlds first",
        ));
    }
    // once all processes are here, MPI ends without waiting
    let in_call = base.calls.enter(Call::Finish);
    base.meet(Call::Finish, 0, &[])?;
    drop(in_call);
    if let State::Running(Running { end, keeper, .. }) = std::mem::replace(&mut *state, State::Over)
    {
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
    if is_running() {
        end_all(status, "gives up");
    }
    std::process::exit(status)
}

/// Ends all processes, and names this one on stderr, because `mpirun` does not always name it.
fn end_all(status: i32, why: &str) -> ! {
    let all = SimpleCommunicator::world();
    eprintln!("error: rank {} {why}, and all processes end", all.rank());
    all.abort(status)
}

fn is_running() -> bool {
    is_initialized() && !is_finalized()
}

fn error(rank: usize, why: &str) -> Error {
    let why = why.to_owned();
    Error::World { rank, why }
}

static STATE: Mutex<State> = Mutex::new(State::Before);

enum State {
    Before,
    Running(Running),
    Over,
}

struct Running {
    /// Never returned to a caller; other channels are made from it.
    base: Processes,
    /// Dropped to end MPI.
    end: Sender<()>,
    keeper: JoinHandle<()>,
}

/// Starts the thread that initializes MPI. Only this thread may end MPI; until then it is the watch.
fn start(timeout: Option<Duration>) -> Result<Running, Error> {
    let (started, base) = channel();
    let (end, ended) = channel();
    let keeper = std::thread::Builder::new().name("mpi".to_owned());
    let keeper = keeper.spawn(move || keep(&started, &ended, timeout));
    let keeper = keeper.map_err(|e| error(0, &e.to_string()))?;
    let base = base
        .recv()
        .map_err(|_| error(0, "MPI cannot be started"))??;
    end_all_on_a_panic();
    Ok(Running { base, end, keeper })
}

fn keep(
    started: &Sender<Result<Processes, Error>>,
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
    let mut watch = Watch::new(universe.world().duplicate(), channels.clone());
    let _ = started.send(Ok(Processes::new(base, channels, 0, timeout)));
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

/// A communicator that is never freed: all processes must free it together, but one may drop its world alone.
struct Comm(ManuallyDrop<SimpleCommunicator>);

// Safety: a `Comm` exists only if MPI has granted MPI_THREAD_MULTIPLE, so any thread may use it. Its owner, a
// world, is used by one thread at a time.
unsafe impl Send for Comm {}

/// All processes, on one channel.
struct Processes {
    comm: Comm,
    channels: Arc<Channels>,
    calls: Arc<Calls>,
    rank: usize,
    size: usize,
    /// Which process sums which chunk.
    owners: Schedule,
    /// The others' values of the chunk that this process sums, in rank order.
    parts: Vec<f32>,
    /// The sum of that chunk.
    sum: Vec<f32>,
}

/// The size of the note that a process sends before a call: the call, a length, and its data, if that is
/// little.
const NOTE: usize = 128;
const LITTLE: usize = NOTE - 16;

/// The number of elements that are summed at a time. Received data is still in the cache when it is added,
/// and counts are far below MPI's limit of `i32`.
const PIECE: usize = 1 << 18;

/// The number of elements that are added at a time; they stay in the first-level cache.
const BLOCK: usize = 2048;

impl Processes {
    fn new(
        comm: Comm,
        channels: Arc<Channels>,
        channel: u64,
        timeout: Option<Duration>,
    ) -> Processes {
        let (rank, size) = (comm.0.rank() as usize, comm.0.size() as usize);
        Processes {
            comm,
            calls: channels.open(channel, timeout),
            channels,
            rank,
            size,
            owners: Schedule::new(Algorithm::Owner, size),
            parts: Vec::new(),
            sum: Vec::new(),
        }
    }

    /// Another channel.
    fn another(&self, timeout: Option<Duration>) -> Result<Processes, Error> {
        let _in_call = self.calls.enter(Call::Duplicate);
        let notes = self.meet(Call::Duplicate, self.channels.unused(), &[])?;
        let channel = notes[0].length; // the number that process 0 chose
        let comm = Comm(ManuallyDrop::new(self.comm.0.duplicate()));
        let channels = self.channels.clone();
        Ok(Processes::new(comm, channels, channel, timeout))
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
        Ok(notes.iter().map(Note::read).collect())
    }

    /// Waits until all processes are at a call; fails if the calls or their lengths differ.
    fn same_length(&self, call: Call, length: usize) -> Result<(), Error> {
        let notes = self.meet(call, length as u64, &[])?;
        let expected = notes[0].length;
        match notes.iter().position(|note| note.length != expected) {
            None => Ok(()),
            Some(rank) => Err(Error::LengthMismatch {
                rank,
                found: notes[rank].length as usize,
                expected: expected as usize,
            }),
        }
    }

    /// Sums a piece, which has the same length in all processes.
    fn sum(&mut self, data: &mut [f32]) {
        let chunk = |rank| self.owners.chunk(rank, data.len());
        let (counts, starts): (Vec<i32>, Vec<i32>) = (0..self.size)
            .map(|rank| (chunk(rank).len() as i32, chunk(rank).start as i32))
            .unzip();
        let own = chunk(self.rank);
        // this process sends nothing to itself
        let mut sent = counts.clone();
        sent[self.rank] = 0;
        let mut received = vec![own.len() as i32; self.size];
        received[self.rank] = 0;
        let places: Vec<i32> = (0..self.size)
            .map(|rank| (rank * own.len()) as i32)
            .collect();
        self.parts.resize(self.size * own.len(), 0.0);
        self.comm.0.all_to_all_varcount_into(
            &Partition::new(data, sent, &starts[..]),
            &mut PartitionMut::new(&mut self.parts[..], received, &places[..]),
        );
        let parts = (0..self.size).map(|rank| match rank == self.rank {
            true => &data[own.clone()],
            false => &self.parts[rank * own.len()..][..own.len()],
        });
        self.sum.resize(own.len(), 0.0);
        add_up(&parts.collect::<Vec<_>>(), &mut self.sum);
        let mut data = PartitionMut::new(data, counts, starts);
        let sum = &self.sum[..];
        self.comm.0.all_gather_varcount_into(sum, &mut data);
    }
}

/// What a process has sent before a call.
struct Note {
    length: u64,
    /// Its data, if that is little; otherwise zeros.
    brought: [u8; LITTLE],
}

impl Note {
    fn read(note: &[u8; NOTE]) -> Self {
        let (length, brought) = note[8..].split_at(8);
        Self {
            length: u64::from_le_bytes(length.try_into().expect("eight bytes")),
            brought: brought.try_into().expect("the rest"),
        }
    }
}

/// Writes the sum of `parts`, added in their order, to `sum`.
fn add_up(parts: &[&[f32]], sum: &mut [f32]) {
    Arch::new().dispatch(
        #[inline(always)]
        || {
            for (i, sum) in sum.chunks_mut(BLOCK).enumerate() {
                for (rank, part) in parts.iter().enumerate() {
                    let part = &part[i * BLOCK..][..sum.len()];
                    match rank {
                        0 => sum.copy_from_slice(part),
                        _ => sum.iter_mut().zip(part).for_each(|(sum, x)| *sum += x),
                    }
                }
            }
        },
    );
}

impl World for Processes {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_reduce(&mut self, data: &mut [f32]) -> Result<(), Error> {
        let calls = self.calls.clone();
        let _in_call = calls.enter(Call::AllReduce);
        self.same_length(Call::AllReduce, data.len())?;
        data.chunks_mut(PIECE).for_each(|piece| self.sum(piece));
        Ok(())
    }

    fn all_gather(&mut self, data: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let _in_call = self.calls.enter(Call::AllGather);
        let notes = self.meet(Call::AllGather, data.len() as u64, data)?;
        let lengths = notes.iter().map(|note| note.length as usize);
        if lengths.clone().all(|length| length <= LITTLE) {
            let brought = notes.iter().zip(lengths);
            let brought = brought.map(|(note, length)| note.brought[..length].to_vec());
            return Ok(brought.collect());
        }
        let total: usize = lengths.clone().sum();
        if i32::try_from(total).is_err() {
            let why = format!(
                "{total} bytes to gather; MPI gathers at most {} at once",
                i32::MAX
            );
            return Err(error(self.rank, &why));
        }
        let counts: Vec<i32> = lengths.map(|length| length as i32).collect();
        let mut end = 0;
        let starts = counts.iter().map(|count| {
            end += count;
            end - count
        });
        let starts: Vec<i32> = starts.collect();
        let mut all = vec![0u8; total];
        let mut places = PartitionMut::new(&mut all[..], &counts[..], &starts[..]);
        self.comm.0.all_gather_varcount_into(data, &mut places);
        let places = starts.iter().zip(&counts);
        let brought =
            places.map(|(start, count)| all[*start as usize..][..*count as usize].to_vec());
        Ok(brought.collect())
    }

    fn duplicate(&self) -> Result<Box<dyn World>, Error> {
        Ok(Box::new(self.another(self.calls.limit)?))
    }
}
