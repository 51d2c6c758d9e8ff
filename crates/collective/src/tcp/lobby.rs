//! The rendezvous of the processes. Process 0 listens; the others connect, once for each channel.
//!
//! Another program may use a port. So process 0 first sends a greeting with the number of its job. A process
//! that does not receive this greeting sends nothing, and tries the next port.

use super::line::{Line, Trouble, trouble};
use super::place::Place;
use super::post::{Post, TELLING, notice};
use super::words;
use crate::{Deadline, Error};
use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a listener may take to send the greeting.
const GREETED: Duration = Duration::from_secs(2);
/// The same for the first round over the ports, where other programs may be silent. It doubles every round.
const GREETED_AT_FIRST: Duration = Duration::from_millis(125);
/// The most time that the lookup of a name counts.
const RESOLVED: Duration = Duration::from_secs(30);
/// How often process 0 looks for new connections.
const POLL: Duration = Duration::from_millis(2);
/// How long to wait before the ports are tried again.
const AGAIN: Duration = Duration::from_millis(50);
/// How many connections without a hello process 0 keeps, besides one for each process.
const STRANGERS: usize = 64;

/// The first number that either side sends; process 0 then sends the number of its job.
const GREETING: u64 = u64::from_le_bytes(*b"replicas");
/// The channel for failures.
const ALARM: u64 = u64::MAX;
/// The size of the hello of the others: a greeting, the rank, the number of processes, the channel.
const HELLO: usize = 32;

/// Answers of process 0 to a hello: accepted; the rank is taken; the number of processes differs.
const WELCOME: u64 = 0;
const TAKEN: u64 = 1;
const OTHER_SIZE: u64 = 2;

pub struct Lobby(Side);

enum Side {
    /// A world of one process.
    Alone,
    /// Process 0.
    Hub(Mutex<Hall>),
    Spoke(Place, SocketAddr),
}

/// The listener of process 0, and the connections that arrive.
struct Hall {
    listener: TcpListener,
    place: Place,
    limit: Option<Duration>,
    /// Connections without a hello so far, the oldest first: strangers, or slow processes.
    visitors: Vec<TcpStream>,
    /// Accepted connections, by channel and rank.
    arrived: HashMap<(u64, usize), TcpStream>,
    /// The channels that all have joined.
    complete: HashSet<u64>,
    /// The number that was given last.
    last: u64,
}

impl Lobby {
    /// Finds the other processes. Also returns the connections for failures: in process 0 to all others, in
    /// the others to process 0.
    pub fn open(place: &Place, limit: Option<Duration>) -> Result<(Self, Vec<Line>), Error> {
        if place.size == 1 {
            return Ok((Self(Side::Alone), Vec::new()));
        }
        if place.rank > 0 {
            let (address, alarm) = find(place, limit)?;
            return Ok((Self(Side::Spoke(place.clone(), address)), vec![alarm]));
        }
        let mut hall = Hall::open(place, limit)?;
        let alarms = hall.all(ALARM, || Ok(())).inspect_err(|error| {
            let alarms = hall.arrived.iter_mut();
            for (_, alarm) in alarms.filter(|((channel, _), _)| *channel == ALARM) {
                let _ = alarm.write_all(&notice(error)); // that process may have left since
            }
        })?;
        let alarms = lines(alarms, Some(TELLING))?;
        Ok((Self(Side::Hub(Mutex::new(hall))), alarms))
    }

    /// A number that no channel has, for process 0 to give.
    pub fn unused(&self) -> u64 {
        let Side::Hub(hall) = &self.0 else {
            return 0; // a process alone has no connections
        };
        let mut hall = hall.lock().unwrap_or_else(PoisonError::into_inner);
        hall.last += 1;
        hall.last
    }

    /// The connections of a channel.
    pub fn lines(&self, post: &Post, channel: u64) -> Result<Vec<Line>, Error> {
        match &self.0 {
            Side::Alone => Ok(Vec::new()),
            Side::Hub(hall) => {
                let mut hall = hall.lock().unwrap_or_else(PoisonError::into_inner);
                lines(hall.all(channel, || post.check())?, post.limit)
            }
            Side::Spoke(place, address) => Ok(vec![come(*address, place, channel, post)?]),
        }
    }
}

/// Turns the connections that process 0 has accepted into lines.
fn lines(all: Vec<(usize, TcpStream)>, limit: Option<Duration>) -> Result<Vec<Line>, Error> {
    let lines = all.into_iter();
    let lines = lines.map(|(to, stream)| Line::new(to, stream, limit));
    lines.collect::<Result<_, _>>().map_err(|e| error(0, e))
}

fn error(rank: usize, why: impl ToString) -> Error {
    let why = why.to_string();
    Error::World { rank, why }
}

impl Hall {
    fn open(place: &Place, limit: Option<Duration>) -> Result<Self, Error> {
        let ports = place.ports();
        let mut listeners = ports.clone().map(|port| listen(&place.host, port));
        let listener = listeners.find_map(Result::ok);
        let listener = listener.ok_or_else(|| {
            let (first, last) = (ports.start(), ports.end());
            error(
                0,
                format!("none of the ports {first} to {last} is free; choose another MASTER_PORT"),
            )
        })?;
        listener.set_nonblocking(true).map_err(|e| error(0, e))?;
        Ok(Self {
            listener,
            place: place.clone(),
            limit,
            visitors: Vec::new(),
            arrived: HashMap::new(),
            complete: HashSet::new(),
            last: 0,
        })
    }

    /// Waits until all others have joined a channel, while `goes_on` succeeds. Returns their connections in
    /// rank order.
    fn all(
        &mut self,
        channel: u64,
        goes_on: impl Fn() -> Result<(), Error>,
    ) -> Result<Vec<(usize, TcpStream)>, Error> {
        let end = Deadline::or_never(self.limit);
        loop {
            self.look()?;
            let here = |rank: &usize| self.arrived.contains_key(&(channel, *rank));
            let missing: Vec<usize> = (1..self.place.size).filter(|rank| !here(rank)).collect();
            if missing.is_empty() {
                break;
            }
            if end.is_over() {
                let limit = self.limit.unwrap_or_default();
                return Err(Error::ProcessesLate { limit, missing });
            }
            goes_on()?;
            end.sleep(POLL);
        }
        self.complete.insert(channel);
        let take = |rank| self.arrived.remove(&(channel, rank)).map(|s| (rank, s));
        Ok((1..self.place.size).filter_map(take).collect())
    }

    /// Greets new connections, and answers those with a hello. It does not wait for a hello: one silent
    /// connection would block all others.
    fn look(&mut self) -> Result<(), Error> {
        while let Ok((stream, _)) = self.listener.accept() {
            if greet(&stream, &self.place).is_ok() {
                self.visitors.push(stream);
            }
        }
        for stream in std::mem::take(&mut self.visitors) {
            match stream.peek(&mut [0; HELLO]).map_err(|e| trouble(&e)) {
                Ok(HELLO) => self.meet(stream)?,
                Ok(0) | Err(Trouble::Broken) => (), // it is closed
                Ok(_) | Err(Trouble::Late) => self.visitors.push(stream),
            }
        }
        // drops the oldest; a process connects again
        let most = self.place.size + STRANGERS;
        let surplus = self.visitors.len().saturating_sub(most);
        self.visitors.drain(..surplus);
        Ok(())
    }

    /// Reads a hello, and accepts the connection if it comes from one of the processes.
    fn meet(&mut self, mut stream: TcpStream) -> Result<(), Error> {
        let mut hello = [0; HELLO];
        let heard = (|| {
            stream.set_nonblocking(false)?;
            stream.set_write_timeout(Some(TELLING))?;
            stream.read_exact(&mut hello)
        })();
        let [greeting, rank, size, channel] = words(&hello);
        let rank = usize::try_from(rank).unwrap_or(usize::MAX);
        if heard.is_err() || greeting != GREETING {
            return Ok(()); // a stranger
        }
        let answer = self.answer(rank, size, channel);
        if stream.write_all(&answer.to_le_bytes()).is_err() {
            return Ok(()); // it is closed
        }
        match answer {
            WELCOME => drop(self.arrived.insert((channel, rank), stream)),
            // the channel has all its connections
            _ if self.complete.contains(&channel) => (),
            OTHER_SIZE => {
                let why = format!(
                    "it has WORLD_SIZE {size}, process 0 has {}",
                    self.place.size
                );
                return Err(error(rank, why));
            }
            _ => return Err(error(rank, format!("two processes have RANK {rank}"))),
        }
        Ok(())
    }

    fn answer(&self, rank: usize, size: u64, channel: u64) -> u64 {
        let taken = self.arrived.contains_key(&(channel, rank));
        match () {
            () if size != self.place.size as u64 => OTHER_SIZE,
            () if taken || self.complete.contains(&channel) => TAKEN,
            () if !(1..self.place.size).contains(&rank) => TAKEN,
            () => WELCOME,
        }
    }
}

/// Sends the greeting, without waiting.
fn greet(mut stream: &TcpStream, place: &Place) -> std::io::Result<()> {
    stream.set_nonblocking(true)?;
    let greeting = [GREETING, u64::from(place.port)].map(u64::to_le_bytes);
    stream.write_all(greeting.as_flattened())
}

/// Listens on `port`: only on loopback if `host` is `localhost` or a loopback address, else on all addresses.
fn listen(host: &str, port: u16) -> std::io::Result<TcpListener> {
    let found = (host, port).to_socket_addrs();
    let found: Vec<SocketAddr> = found.map(Iterator::collect).unwrap_or_default();
    let is_an_address = host.parse::<std::net::IpAddr>().is_ok();
    // on a machine itself, its name may resolve to a loopback address
    let local = found.iter().all(|address| address.ip().is_loopback());
    if local && !found.is_empty() && (is_an_address || host == "localhost") {
        return TcpListener::bind(&found[..]);
    }
    TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)))
}

/// Tries the ports until process 0 accepts; returns its address, and a connection to it.
fn find(place: &Place, limit: Option<Duration>) -> Result<(SocketAddr, Line), Error> {
    let end = Deadline::or_never(limit);
    let mut patience = GREETED_AT_FIRST;
    loop {
        // an unknown name may become known later
        let start = Instant::now();
        let found = (&place.host[..], 0).to_socket_addrs().map(Vec::from_iter);
        end.count(start.elapsed().min(RESOLVED));
        for port in place.ports().take_while(|_| !end.is_over()) {
            for mut address in found.iter().flatten().copied() {
                address.set_port(port);
                let line = end.part(patience, |end| {
                    greeted(dial(&address, end)?, place, Some(TELLING), end)
                });
                if let Ok(entered) = line.and_then(|line| enter(line, place, ALARM, &end)) {
                    return Ok((address, entered?));
                }
            }
        }
        if end.is_over() {
            let (limit, missing) = (limit.unwrap_or_default(), vec![0]);
            return Err(match found {
                Ok(_) => Error::ProcessesLate { limit, missing },
                Err(why) => {
                    let why = format!("MASTER_ADDR {:?} cannot be found: {why}", place.host);
                    error(place.rank, why)
                }
            });
        }
        end.sleep(AGAIN);
        patience = GREETED.min(2 * patience);
    }
}

/// Joins a channel of process 0; connects again if process 0 has dropped the connection to make room.
fn come(address: SocketAddr, place: &Place, channel: u64, post: &Post) -> Result<Line, Error> {
    let end = Deadline::or_never(post.limit);
    loop {
        match dial(&address, &end) {
            Ok(stream) => {
                let line = greeted(stream, place, post.limit, &end);
                if let Ok(entered) = line.and_then(|line| enter(line, place, channel, &end)) {
                    return entered;
                }
            }
            Err(Trouble::Late) => (),
            Err(Trouble::Broken) => return Err(post.broken(0)), // it no longer listens
        }
        if end.is_over() {
            return Err(post.late(vec![0]));
        }
        post.check()?;
        end.sleep(AGAIN);
    }
}

/// Connects. This cannot be split into naps; it takes long only if no answer arrives.
fn dial(address: &SocketAddr, end: &Deadline) -> Result<TcpStream, Trouble> {
    let stream = end.nap(|_| TcpStream::connect_timeout(address, GREETED));
    stream.map_err(|e| trouble(&e)).inspect_err(|trouble| {
        if *trouble == Trouble::Late {
            end.count(GREETED);
        }
    })
}

/// The connection, if process 0 of this job is at its other end and sends its greeting in time.
fn greeted(
    stream: TcpStream,
    place: &Place,
    limit: Option<Duration>,
    end: &Deadline,
) -> Result<Line, Trouble> {
    let line = Line::new(0, stream, limit).map_err(|e| trouble(&e))?;
    let mut said = [0; 16];
    line.receive(&mut said, Some(end))?;
    match words(&said) == [GREETING, u64::from(place.port)] {
        true => Ok(line),
        false => Err(Trouble::Broken),
    }
}

/// Sends the hello; the inner error means that process 0 does not accept it.
fn enter(
    line: Line,
    place: &Place,
    channel: u64,
    end: &Deadline,
) -> Result<Result<Line, Error>, Trouble> {
    let Place { rank, size, .. } = *place;
    let hello = [GREETING, rank as u64, size as u64, channel].map(u64::to_le_bytes);
    line.send(hello.as_flattened())?;
    let mut answer = [0; 8];
    line.receive(&mut answer, Some(end))?;
    Ok(match u64::from_le_bytes(answer) {
        WELCOME => Ok(line),
        OTHER_SIZE => {
            let why = format!("it has WORLD_SIZE {size}, process 0 has another");
            Err(error(rank, why))
        }
        _ => Err(error(rank, format!("two processes have RANK {rank}"))),
    })
}
