//! Where processes find each other. Process 0 listens; the others connect, once for each channel.
//!
//! A port may be somebody else's. So process 0 says first who it is, and of which job; whoever does not
//! hear that says nothing and tries the next port.

use super::line::{Line, Trouble, trouble};
use super::place::Place;
use super::post::{Post, notice};
use super::words;
use crate::Error;
use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How many ports are tried, from the one after the launcher's.
const PORTS: u16 = 16;
/// How long a stranger may take to answer.
const STRANGER: Duration = Duration::from_secs(2);
/// How often it is looked for who has come.
const POLL: Duration = Duration::from_millis(2);
/// How long to wait before the ports are tried again.
const AGAIN: Duration = Duration::from_millis(50);

/// The first words of process 0, before the number of its job.
const GREETING: u64 = u64::from_le_bytes(*b"replicas");
/// The channel on which failures are told.
const ALARM: u64 = u64::MAX;

/// What process 0 answers: come in, there is one of that rank, the number of processes is another one.
const WELCOME: u64 = 0;
const TAKEN: u64 = 1;
const OTHER_SIZE: u64 = 2;

pub struct Lobby(Side);

enum Side {
    /// There is no other.
    Alone,
    /// Process 0.
    Hub(Mutex<Hall>),
    Spoke(Place, SocketAddr),
}

/// Where the others arrive.
struct Hall {
    listener: TcpListener,
    place: Place,
    limit: Option<Duration>,
    /// Who has come, to which channel.
    arrived: HashMap<(u64, usize), TcpStream>,
    /// The channels to which all have come.
    complete: HashSet<u64>,
    /// The channel that was made last.
    last: u64,
}

impl Lobby {
    /// Finds the other processes; and a connection to each of them for failures, in process 0, or to
    /// process 0.
    pub fn open(
        place: &Place,
        limit: Option<Duration>,
    ) -> Result<(Self, Vec<(usize, TcpStream)>), Error> {
        if place.size == 1 {
            return Ok((Self(Side::Alone), Vec::new()));
        }
        if place.rank > 0 {
            let (address, alarm) = find(place, limit)?;
            return Ok((Self(Side::Spoke(place.clone(), address)), vec![(0, alarm)]));
        }
        let mut hall = Hall::open(place, limit)?;
        let alarms = hall.all(ALARM, || Ok(())).inspect_err(|error| {
            let alarms = hall.arrived.iter_mut();
            for (_, alarm) in alarms.filter(|((channel, _), _)| *channel == ALARM) {
                let _ = alarm.write_all(&notice(error)); // it may have left since
            }
        })?;
        Ok((Self(Side::Hub(Mutex::new(hall))), alarms))
    }

    /// A number that no channel has, for process 0 to give.
    pub fn unused(&self) -> u64 {
        let Side::Hub(hall) = &self.0 else {
            return 0; // whoever is alone has no lines
        };
        let mut hall = hall.lock().unwrap_or_else(PoisonError::into_inner);
        hall.last += 1;
        hall.last
    }

    /// The lines of a channel.
    pub fn lines(&self, post: &Post, channel: u64) -> Result<Vec<Line>, Error> {
        let streams = match &self.0 {
            Side::Alone => Vec::new(),
            Side::Hub(hall) => {
                let mut hall = hall.lock().unwrap_or_else(PoisonError::into_inner);
                hall.all(channel, || post.check())?
            }
            Side::Spoke(place, address) => {
                let connected = connect(*address, place, channel, post.limit, post.limit);
                let greeted = connected.map_err(|error| match trouble(&error) {
                    Trouble::Late => post.late(vec![0]),
                    Trouble::Broken => post.broken(0),
                })?;
                vec![(0, greeted.admitted(place)?)]
            }
        };
        let lines = streams.into_iter();
        let lines = lines.map(|(to, stream)| Line::new(to, stream, post.limit));
        lines
            .collect::<Result<_, _>>()
            .map_err(|e| error(post.rank, e))
    }
}

fn error(rank: usize, why: impl ToString) -> Error {
    let why = why.to_string();
    Error::World { rank, why }
}

impl Hall {
    fn open(place: &Place, limit: Option<Duration>) -> Result<Self, Error> {
        let Place { host, port, .. } = place;
        let ports = port.saturating_add(1)..=port.saturating_add(PORTS);
        let listener = ports.clone().find_map(|port| listen(host, port).ok());
        let listener = listener.ok_or_else(|| {
            let (first, last) = (ports.start(), ports.end());
            error(0, format!("none of the ports {first} to {last} is free"))
        })?;
        listener.set_nonblocking(true).map_err(|e| error(0, e))?;
        Ok(Self {
            listener,
            place: place.clone(),
            limit,
            arrived: HashMap::new(),
            complete: HashSet::new(),
            last: 0,
        })
    }

    /// Waits until all others have come to a channel, in rank order, as long as `goes_on` says so.
    fn all(
        &mut self,
        channel: u64,
        goes_on: impl Fn() -> Result<(), Error>,
    ) -> Result<Vec<(usize, TcpStream)>, Error> {
        let end = self.limit.map(|limit| Instant::now() + limit);
        loop {
            let here = |rank: &usize| self.arrived.contains_key(&(channel, *rank));
            let missing: Vec<usize> = (1..self.place.size).filter(|rank| !here(rank)).collect();
            if missing.is_empty() {
                break;
            }
            if end.is_some_and(|end| Instant::now() > end) {
                let limit = self.limit.unwrap_or_default();
                return Err(Error::ProcessesLate { limit, missing });
            }
            goes_on()?;
            match self.listener.accept() {
                Ok((stream, _)) => self.meet(stream)?,
                Err(_) => std::thread::sleep(POLL), // nobody, or somebody who has left since
            }
        }
        self.complete.insert(channel);
        let take = |rank| self.arrived.remove(&(channel, rank)).map(|s| (rank, s));
        Ok((1..self.place.size).filter_map(take).collect())
    }

    /// Lets somebody in who is one of the processes.
    fn meet(&mut self, mut stream: TcpStream) -> Result<(), Error> {
        let greeting = [GREETING, u64::from(self.place.port)].map(u64::to_le_bytes);
        let mut hello = [0; 24];
        let heard = (|| {
            stream.set_nonblocking(false)?;
            stream.set_read_timeout(Some(STRANGER))?;
            stream.set_write_timeout(Some(STRANGER))?;
            stream.write_all(greeting.as_flattened())?;
            stream.read_exact(&mut hello)
        })();
        let [rank, size, channel] = words(&hello);
        let rank = usize::try_from(rank).unwrap_or(usize::MAX);
        if heard.is_err() {
            return Ok(()); // a stranger
        }
        let answer = self.answer(rank, size, channel);
        if stream.write_all(&answer.to_le_bytes()).is_err() {
            return Ok(()); // it has left
        }
        match answer {
            WELCOME => drop(self.arrived.insert((channel, rank), stream)),
            // nobody needs it any more
            _ if self.complete.contains(&channel) => (),
            OTHER_SIZE => {
                let why = format!("it has WORLD_SIZE {size}, process 0 {}", self.place.size);
                return Err(error(rank, why));
            }
            _ => return Err(error(rank, format!("there are two of RANK {rank}"))),
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

/// Listens where the others will look; only there, if it is on this machine alone.
fn listen(host: &str, port: u16) -> std::io::Result<TcpListener> {
    let found = (host, port).to_socket_addrs();
    let found: Vec<SocketAddr> = found.map(Iterator::collect).unwrap_or_default();
    let is_an_address = host.parse::<std::net::IpAddr>().is_ok();
    // the name of a machine may stand for a loopback address on the machine itself
    let local = found.iter().all(|address| address.ip().is_loopback());
    if local && !found.is_empty() && (is_an_address || host == "localhost") {
        return TcpListener::bind(&found[..]);
    }
    TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)))
}

/// Looks for process 0 until it is there: its address, and a connection.
fn find(place: &Place, limit: Option<Duration>) -> Result<(SocketAddr, TcpStream), Error> {
    let end = limit.map(|limit| Instant::now() + limit);
    loop {
        // a name that is not known may become known
        let addresses = (&place.host[..], 0).to_socket_addrs();
        let addresses: Vec<SocketAddr> = addresses.map(Iterator::collect).unwrap_or_default();
        for port in (1..=PORTS).filter_map(|i| place.port.checked_add(i)) {
            for mut address in addresses.iter().copied() {
                address.set_port(port);
                if let Ok(greeted) = connect(address, place, ALARM, Some(STRANGER), limit) {
                    return Ok((address, greeted.admitted(place)?));
                }
            }
        }
        if end.is_some_and(|end| Instant::now() > end) {
            let (limit, missing) = (limit.unwrap_or_default(), vec![0]);
            return Err(Error::ProcessesLate { limit, missing });
        }
        std::thread::sleep(AGAIN);
    }
}

/// Process 0 has said who it is, and knows who this is.
struct Greeted {
    stream: TcpStream,
    answer: u64,
}

/// Connects to process 0. An error, if it is somebody else who listens there, or nobody greets within
/// `greeting`.
fn connect(
    address: SocketAddr,
    place: &Place,
    channel: u64,
    greeting: Option<Duration>,
    limit: Option<Duration>,
) -> std::io::Result<Greeted> {
    let mut stream = match greeting {
        Some(limit) => TcpStream::connect_timeout(&address, limit)?,
        None => TcpStream::connect(address)?,
    };
    stream.set_read_timeout(greeting)?;
    stream.set_write_timeout(limit)?;
    let mut said = [0; 16];
    stream.read_exact(&mut said)?;
    if words(&said) != [GREETING, u64::from(place.port)] {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    stream.set_read_timeout(limit)?;
    let hello = [place.rank as u64, place.size as u64, channel].map(u64::to_le_bytes);
    stream.write_all(hello.as_flattened())?;
    let mut answer = [0; 8];
    stream.read_exact(&mut answer)?;
    let answer = u64::from_le_bytes(answer);
    Ok(Greeted { stream, answer })
}

impl Greeted {
    /// The connection, if process 0 lets this process in.
    fn admitted(self, place: &Place) -> Result<TcpStream, Error> {
        let Place { rank, size, .. } = place;
        match self.answer {
            WELCOME => Ok(self.stream),
            OTHER_SIZE => {
                let why = format!("it has WORLD_SIZE {size}, process 0 another one");
                Err(error(*rank, why))
            }
            _ => Err(error(*rank, format!("there are two of RANK {rank}"))),
        }
    }
}
