//! The processes of a launcher, such as `torchrun`, as a [`World`] over TCP.
//!
//! The environment of each process has its rank (`RANK`, `WORLD_SIZE`) and the address of process 0
//! (`MASTER_ADDR`, `MASTER_PORT`). The other processes connect to process 0, and all messages go through
//! it. That is simple, but slow for much data. Use it for agreements and a few sums, and to try several
//! processes without MPI or GPUs.
//!
//! All processes learn which process failed. Each process keeps a connection to process 0 that is silent
//! until a failure (`post`). It breaks when a process dies, even outside of calls, and process 0 reports the
//! rank to the others. The limit of a call detects a process that is alive but does not arrive.
//!
//! There is no password, as in MPI and PyTorch: any program that reaches the port of process 0 can act as
//! one of the processes. Use it only in trusted networks.

mod line;
mod lobby;
mod place;
mod post;

use crate::{Deadline, Error, World};
use line::{Line, Trouble};
use lobby::Lobby;
use place::Place;
use post::Post;
use std::sync::Arc;
use std::time::Duration;

/// The processes that a launcher has started. Each has `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and
/// `MASTER_PORT` in its environment. A world of one process opens no connection.
///
/// Process 0 listens on the first free port of the sixteen after `MASTER_PORT`; the launcher may use
/// `MASTER_PORT` itself. `timeout` limits how long a process waits for the others, here and in each call.
///
/// ```no_run
/// # fn main() -> Result<(), collective::Error> {
/// let world = collective::tcp::world(None)?; // under torchrun
/// let mut members = collective::group_in(world, 1, Default::default());
/// let sum = members[0].all_reduce(vec![1.0])?; // as many as there are processes
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Variable`]: a variable is missing or invalid. [`Error::ProcessesLate`]: not all processes arrived
/// in time. [`Error::World`]: no port is free, or the variables of two processes do not fit together.
pub fn world(timeout: Option<Duration>) -> Result<Box<dyn World>, Error> {
    Ok(Box::new(star(timeout)?))
}

pub(crate) fn star(timeout: Option<Duration>) -> Result<Star, Error> {
    let place = Place::read(|name| std::env::var_os(name))?;
    Star::of(&place, timeout)
}

/// A world of one process.
#[cfg(all(test, feature = "nccl"))]
pub(crate) fn alone(limit: Duration) -> Star {
    let place = Place {
        rank: 0,
        size: 1,
        host: "localhost".to_owned(),
        port: 1,
    };
    Star::of(&place, Some(limit)).expect("one process needs no connection")
}

/// The number of elements that are summed at a time.
const PIECE: usize = 1 << 16;

/// The most bytes that a process can pass to [`World::all_gather`]. No message makes a process allocate
/// more for another one.
const MOST: u64 = 1 << 26;

/// How much longer the others wait once process 0 has arrived: its limit begins later than theirs, and it
/// names the missing processes.
const GRACE: Duration = Duration::from_secs(5);

/// The calls that all processes make together.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(u64)]
enum Call {
    AllReduce,
    AllGather,
    Duplicate,
}

/// Messages of process 0: it has arrived at the call; all have arrived, and make the same call.
const HERE: u8 = 1;
const GO: u8 = 2;

/// The size of the message of the others before a call: which call, and the length of their data.
const NOTE: usize = 16;

/// A channel: process 0 has a connection to each of the others, and each of them has one to process 0.
pub(crate) struct Star {
    pub(crate) post: Arc<Post>,
    lobby: Arc<Lobby>,
    lines: Vec<Line>,
}

impl Star {
    fn of(place: &Place, limit: Option<Duration>) -> Result<Self, Error> {
        let (lobby, alarms) = Lobby::open(place, limit)?;
        let post = Post::new(place.rank, place.size, limit, alarms)?;
        Self::channel(post, Arc::new(lobby), 0)
    }

    /// Makes the channel of a number on which all have agreed; waits until all have joined it.
    fn channel(post: Arc<Post>, lobby: Arc<Lobby>, number: u64) -> Result<Self, Error> {
        let lines = lobby.lines(&post, number).map_err(|e| post.fail(e))?;
        lines.iter().for_each(|line| post.keep(line));
        let star = Self { post, lobby, lines };
        match star.is_hub() {
            true => star.tell_all(&[GO])?,
            false => star.wait_for(GO, star.patience(GRACE))?,
        }
        Ok(star)
    }

    /// As [`World::duplicate`].
    pub(crate) fn another(&self) -> Result<Self, Error> {
        let number = match self.is_hub() {
            true => {
                self.notes(Call::Duplicate, 0)?;
                let number = self.lobby.unused();
                self.tell_all(&go(&number.to_le_bytes()))?;
                number
            }
            false => {
                self.note(Call::Duplicate, 0, &[])?;
                let mut number = [0; 8];
                self.hear(&mut number)?;
                u64::from_le_bytes(number)
            }
        };
        Self::channel(self.post.clone(), self.lobby.clone(), number)
    }

    fn is_hub(&self) -> bool {
        self.post.rank == 0
    }

    /// The deadline of a wait that begins now.
    fn patience(&self, more: Duration) -> Option<Deadline> {
        let limit = self.post.limit?;
        Some(Deadline::after(limit.saturating_add(more)))
    }

    /// Reports trouble on a connection to all processes; returns the error.
    fn trouble(&self, line: &Line, trouble: Trouble) -> Error {
        match trouble {
            Trouble::Late => self.post.fail(self.post.late(vec![line.to])),
            Trouble::Broken => self.post.broken(line.to),
        }
    }

    // What process 0 does.

    /// Waits until all processes have announced the same call; returns the lengths of their data.
    fn notes(&self, call: Call, length: u64) -> Result<Vec<u64>, Error> {
        self.post.check()?;
        let (mut lengths, mut missing, mut same) = (vec![length], Vec::new(), true);
        self.tell_all(&[HERE])?;
        let end = self.patience(Duration::ZERO);
        for line in &self.lines {
            let mut note = [0; NOTE];
            match line.receive(&mut note, end.as_ref()) {
                Ok(()) => {
                    let [kind, length] = words(&note);
                    same &= kind == call as u64;
                    lengths.push(length);
                }
                Err(Trouble::Late) => missing.push(line.to),
                Err(broken) => return Err(self.trouble(line, broken)),
            }
        }
        if !missing.is_empty() {
            return Err(self.post.fail(self.post.late(missing)));
        }
        match same {
            true => Ok(lengths),
            false => Err(self.post.fail(Error::KindMismatch)),
        }
    }

    fn tell_all(&self, bytes: &[u8]) -> Result<(), Error> {
        let tell = |line: &Line| line.send(bytes).map_err(|t| self.trouble(line, t));
        self.lines.iter().try_for_each(tell)
    }

    /// Fails for all processes if a length differs from that of process 0.
    pub(crate) fn same_lengths(&self, lengths: &[u64]) -> Result<(), Error> {
        let Some(rank) = lengths.iter().position(|length| *length != lengths[0]) else {
            return Ok(());
        };
        Err(self.post.fail(Error::LengthMismatch {
            rank,
            found: lengths[rank] as usize,
            expected: lengths[0] as usize,
        }))
    }

    /// Adds the pieces of the others to `piece`, in rank order, and sends them the sum.
    fn sum(&self, piece: &mut [f32], bytes: &mut [u8]) -> Result<(), Error> {
        for line in &self.lines {
            let end = self.patience(Duration::ZERO);
            let received = line.receive(bytes, end.as_ref());
            received.map_err(|trouble| self.trouble(line, trouble))?;
            let parts = bytes.as_chunks::<4>().0.iter();
            let parts = parts.map(|part| f32::from_le_bytes(*part));
            piece.iter_mut().zip(parts).for_each(|(sum, x)| *sum += x);
        }
        write(piece, bytes);
        self.tell_all(bytes)
    }

    /// The data of all processes, of `lengths` bytes.
    fn collect(&self, own: &[u8], lengths: &[u64]) -> Result<Vec<Vec<u8>>, Error> {
        let mut all = vec![own.to_vec()];
        for (line, length) in self.lines.iter().zip(&lengths[1..]) {
            let received = line.receive_vec(*length, self.patience(Duration::ZERO).as_ref());
            all.push(received.map_err(|trouble| self.trouble(line, trouble))?);
        }
        Ok(all)
    }

    // What the others do.

    /// Announces a call to process 0, with the data, and waits until all processes make it.
    fn note(&self, call: Call, length: u64, brought: &[u8]) -> Result<(), Error> {
        self.post.check()?;
        let note = [(call as u64).to_le_bytes(), length.to_le_bytes()].concat();
        let end = self.patience(Duration::ZERO);
        self.say(&[&note, brought].concat())?;
        self.wait_for(HERE, end)?;
        self.wait_for(GO, self.patience(GRACE))
    }

    fn wait_for(&self, word: u8, end: Option<Deadline>) -> Result<(), Error> {
        let mut heard = [0];
        let received = self.lines[0].receive(&mut heard, end.as_ref());
        received.map_err(|trouble| self.trouble(&self.lines[0], trouble))?;
        match heard[0] == word {
            true => Ok(()),
            false => Err(self.garbled()),
        }
    }

    fn say(&self, bytes: &[u8]) -> Result<(), Error> {
        let sent = self.lines[0].send(bytes);
        sent.map_err(|trouble| self.trouble(&self.lines[0], trouble))
    }

    fn hear(&self, bytes: &mut [u8]) -> Result<(), Error> {
        let received = self.lines[0].receive(bytes, self.patience(GRACE).as_ref());
        received.map_err(|trouble| self.trouble(&self.lines[0], trouble))
    }

    /// Receives the data of all processes, which process 0 has collected.
    fn collected(&self) -> Result<Vec<Vec<u8>>, Error> {
        let mut lengths = vec![0; 8 * self.post.size];
        self.hear(&mut lengths)?;
        let lengths = lengths.as_chunks::<8>().0.iter();
        let lengths: Vec<u64> = lengths.map(|length| u64::from_le_bytes(*length)).collect();
        if lengths.iter().any(|length| *length > MOST) {
            return Err(self.garbled());
        }
        let receive = |length: &u64| {
            let received = self.lines[0].receive_vec(*length, self.patience(GRACE).as_ref());
            received.map_err(|trouble| self.trouble(&self.lines[0], trouble))
        };
        lengths.iter().map(receive).collect()
    }

    fn garbled(&self) -> Error {
        let why = "its message is malformed".to_owned();
        self.post.fail(Error::World { rank: 0, why })
    }

    fn too_long(&self, rank: usize, length: u64) -> Error {
        let why = format!("{length} bytes to gather; at most {MOST} are possible");
        self.post.fail(Error::World { rank, why })
    }
}

impl World for Star {
    fn rank(&self) -> usize {
        self.post.rank
    }

    fn size(&self) -> usize {
        self.post.size
    }

    fn check(&self) -> Result<(), Error> {
        self.post.check()
    }

    fn all_reduce(&mut self, data: &mut [f32]) -> Result<(), Error> {
        let length = data.len() as u64;
        if self.is_hub() {
            let lengths = self.notes(Call::AllReduce, length)?;
            self.same_lengths(&lengths)?;
            self.tell_all(&[GO])?;
        } else {
            self.note(Call::AllReduce, length, &[])?;
        }
        let mut bytes = vec![0; 4 * PIECE.min(data.len())];
        for piece in data.chunks_mut(PIECE) {
            let bytes = &mut bytes[..4 * piece.len()];
            if self.is_hub() {
                self.sum(piece, bytes)?;
                continue;
            }
            write(piece, bytes);
            self.say(bytes)?;
            self.hear(bytes)?;
            let sums = bytes.as_chunks::<4>().0.iter();
            let sums = sums.map(|sum| f32::from_le_bytes(*sum));
            piece.iter_mut().zip(sums).for_each(|(x, sum)| *x = sum);
        }
        Ok(())
    }

    fn all_gather(&mut self, data: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let length = data.len() as u64;
        if length > MOST {
            return Err(self.too_long(self.post.rank, length));
        }
        if !self.is_hub() {
            self.note(Call::AllGather, length, data)?;
            return self.collected();
        }
        let lengths = self.notes(Call::AllGather, length)?;
        if let Some(rank) = lengths.iter().position(|length| *length > MOST) {
            return Err(self.too_long(rank, lengths[rank]));
        }
        let all = self.collect(data, &lengths)?;
        let lengths = lengths.iter().flat_map(|length| length.to_le_bytes());
        let answer: Vec<u8> = lengths.chain(all.iter().flatten().copied()).collect();
        self.tell_all(&go(&answer))?;
        Ok(all)
    }

    fn duplicate(&self) -> Result<Box<dyn World>, Error> {
        Ok(Box::new(self.another()?))
    }
}

fn go(answer: &[u8]) -> Vec<u8> {
    [&[GO], answer].concat()
}

fn write(values: &[f32], bytes: &mut [u8]) {
    let places = bytes.as_chunks_mut::<4>().0.iter_mut();
    values
        .iter()
        .zip(places)
        .for_each(|(value, place)| *place = value.to_le_bytes());
}

/// The numbers of a message.
fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let words = bytes.as_chunks::<8>().0;
    std::array::from_fn(|i| u64::from_le_bytes(words[i]))
}

#[cfg(test)]
mod tests;
