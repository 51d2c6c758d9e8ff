//! A connection to one process. Without a limit and a deadline, its calls may wait for ever.

use std::io::{ErrorKind, Read, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::Deadline;

/// The connection to process `to`.
pub struct Line {
    pub to: usize,
    stream: Arc<TcpStream>,
    limit: Option<Duration>,
}

/// How a connection can fail.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Trouble {
    /// No byte was transferred within the limit.
    Late,
    /// The other end has closed it.
    Broken,
}

/// The number of bytes for which [`Line::receive_vec`] allocates at a time, before they arrive.
const PIECE: usize = 1 << 16;

impl Line {
    /// `limit` is the longest time without a byte during a message.
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

    /// Fills `bytes`. The first of them must arrive by the deadline `first`; each later wait has the limit of
    /// the connection.
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

    /// Reads what arrives within one nap; without a deadline, waits for it.
    fn read(&self, bytes: &mut [u8], deadline: Option<&Deadline>) -> Result<usize> {
        let mut read = |time| {
            self.stream.set_read_timeout(time)?;
            (&*self.stream).read(bytes)
        };
        match deadline {
            None => read(None),
            // at least 1 ms, because zero is not a timeout: bytes that have arrived are read in any case
            Some(deadline) => deadline.nap(|time| read(Some(time.max(Duration::from_millis(1))))),
        }
    }

    /// As [`receive`](Self::receive), into memory that grows as bytes arrive.
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
        let _ = self.stream.shutdown(Shutdown::Both); // it may be closed already
    }
}

pub fn trouble(error: &std::io::Error) -> Trouble {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Trouble::Late,
        _ => Trouble::Broken,
    }
}
