//! Watches that the sums come. A GPU waits for ever for one whose process does not bring its part, and the
//! host for the GPU; nobody is in a call that has a limit.
//!
//! A thread looks at the sums one after the other. Where one takes longer than the limit the thread meets
//! those of the other processes on a channel of their own. Who does not come there has no sum that takes too
//! long: that is the one who is waited for, and is named.

use crate::tcp::Star;
use crate::{Error, World};
use candle_core::cuda_backend::cudarc::driver::{CudaEvent, CudaStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often it looks.
const TICK: Duration = Duration::from_millis(10);

/// Does nothing where there is no limit. Dropped, it waits for its thread, whose channel would otherwise
/// outlast an orderly end.
pub struct Watch {
    sums: Option<Sender<Sum>>,
    thread: Option<JoinHandle<()>>,
}

/// A sum that was handed to a GPU.
struct Sum {
    done: CudaEvent,
    since: Instant,
}

impl Watch {
    /// Nobody else speaks on the channel.
    pub fn start(star: Star) -> std::io::Result<Self> {
        let Some(limit) = star.post.limit else {
            return Ok(Self {
                sums: None,
                thread: None,
            });
        };
        let (sums, inbox) = channel();
        let thread = std::thread::Builder::new().name("sums".to_owned());
        let thread = thread.spawn(move || watch(star, &inbox, limit))?;
        Ok(Self {
            sums: Some(sums),
            thread: Some(thread),
        })
    }

    /// Watches what the stream has been given so far.
    pub fn on(&self, stream: &CudaStream) -> candle_core::Result<()> {
        if let Some(sums) = &self.sums {
            let done = stream.record_event(None);
            let done = done.map_err(candle_core::Error::wrap)?;
            let since = Instant::now();
            let _ = sums.send(Sum { done, since }); // the thread has ended where something failed
        }
        Ok(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.sums = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it has nothing to tell
        }
    }
}

/// Ends when the sender is gone, or something has failed.
fn watch(mut star: Star, sums: &Receiver<Sum>, limit: Duration) {
    let mut last = Instant::now();
    for sum in sums {
        let since = sum.since.max(last);
        while !sum.done.is_complete() {
            if star.post.check().is_err() {
                return;
            }
            if since.elapsed() > limit {
                return look_into(&mut star, limit);
            }
            std::thread::sleep(TICK);
        }
        last = Instant::now();
    }
}

/// Fails for all, and names those who are missing if there are any.
fn look_into(star: &mut Star, limit: Duration) {
    // an error has been told to all
    if star.all_gather(&[]).is_ok() {
        let (rank, why) = (star.rank(), format!("NCCL has not summed within {limit:?}"));
        star.post.fail(Error::World { rank, why });
    }
}
