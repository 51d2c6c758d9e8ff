//! A connection to one process, on which nothing waits for ever if there is a limit.

use std::io::{ErrorKind, Read, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::Deadline;

/// The line to process `to`.
pub struct Line {
    pub to: usize,
    stream: Arc<TcpStream>,
    limit: Option<Duration>,
}

/// What can be wrong with it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Trouble {
    /// Nothing went through for longer than it may.
    Late,
    /// The other end is gone.
    Broken,
}

/// Bytes that are received at a time where it is not known that they will come.
const PIECE: usize = 1 << 16;

impl Line {
    /// `limit` is how long nothing may go through while something is sent.
    pub fn new(to: usize, stream: TcpStream, limit: Option<Duration>) -> Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(limit)?;
        let stream = Arc::new(stream);
        Ok(Self { to, stream, limit })
    }

    pub fn stream(&self) -> &Arc<TcpStream> {
        &self.stream
    }

    pub fn send(&self, bytes: &[u8]) -> std::result::Result<(), Trouble> {
        (&*self.stream).write_all(bytes).map_err(|e| trouble(&e))
    }

    /// Fills `bytes`. The first of them come by the `first` deadline, and as long as some come, there is time for
    /// more.
    pub fn receive(
        &self,
        mut bytes: &mut [u8],
        first: Option<&Deadline>,
    ) -> std::result::Result<(), Trouble> {
        let mut next = None;
        while !bytes.is_empty() {
            let deadline = next.as_ref().or(first);
            let has_time = deadline.is_some_and(|deadline| !deadline.is_over());
            match self.read(bytes, deadline) {
                Ok(0) => return Err(Trouble::Broken),
                Ok(n) => bytes = &mut bytes[n..],
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if has_time && trouble(&error) == Trouble::Late => continue,
                Err(error) => return Err(trouble(&error)),
            }
            next = self.limit.map(Deadline::after);
        }
        Ok(())
    }

    /// What comes during a nap, or whenever it comes.
    fn read(&self, bytes: &mut [u8], deadline: Option<&Deadline>) -> Result<usize> {
        let mut read = |time| {
            self.stream.set_read_timeout(time)?;
            (&*self.stream).read(bytes)
        };
        match deadline {
            None => read(None),
            // what has come already is read in any case; zero would be without a limit
            Some(deadline) => deadline.nap(|time| read(Some(time.max(Duration::from_millis(1))))),
        }
    }

    /// As [`receive`](Self::receive), into memory that grows with what comes.
    pub fn receive_vec(
        &self,
        length: u64,
        first: Option<&Deadline>,
    ) -> std::result::Result<Vec<u8>, Trouble> {
        let (mut bytes, mut next) = (Vec::new(), None);
        while (bytes.len() as u64) < length {
            let (from, left) = (bytes.len(), length - bytes.len() as u64);
            bytes.resize(from + left.min(PIECE as u64) as usize, 0);
            self.receive(&mut bytes[from..], next.as_ref().or(first))?;
            next = self.limit.map(Deadline::after);
        }
        Ok(bytes)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both); // the other end may have done so
    }
}

pub fn trouble(error: &std::io::Error) -> Trouble {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Trouble::Late,
        _ => Trouble::Broken,
    }
}
