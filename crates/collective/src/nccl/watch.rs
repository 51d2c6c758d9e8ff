//! Watches that the sums come. A GPU waits for ever for one whose process does not bring its part, and the
//! host for the GPU; nobody is in a call that has a limit.
//!
//! A thread looks at the sums one after the other. Where one takes longer than the limit the thread meets
//! those of the other processes on a channel of their own. Who does not come there has no sum that takes too
//! long: that is the one who is waited for, and is named.

use crate::tcp::Star;
use crate::{Deadline, Error, World};
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaEvent, CudaStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often it looks.
const TICK: Duration = Duration::from_millis(10);

/// Does nothing where there is no limit. Dropped, it waits for its thread, whose channel would otherwise
/// outlast an orderly end.
pub struct Watch {
    /// What a stream comes to when a sum is done.
    sums: Option<Sender<CudaEvent>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Nobody else speaks on the channel.
    pub fn start(star: Star, gpu: Arc<CudaContext>) -> std::io::Result<Self> {
        let Some(limit) = star.post.limit else {
            return Ok(Self {
                sums: None,
                thread: None,
            });
        };
        let (sums, inbox) = channel();
        let thread = std::thread::Builder::new().name("sums".to_owned());
        let thread = thread.spawn(move || watch(star, &gpu, &inbox, limit))?;
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
            let _ = sums.send(done); // the thread has ended where something failed
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
fn watch(mut star: Star, gpu: &CudaContext, sums: &Receiver<CudaEvent>, limit: Duration) {
    if let Err(why) = gpu.bind_to_thread() {
        return fail(&star, why.to_string());
    }
    for sum in sums {
        // NCCL begins it when the one before it is done, which the thread has waited for
        let end = Deadline::after(limit);
        loop {
            match sum.try_is_complete() {
                Ok(true) => break,
                Ok(false) if star.post.check().is_err() => return,
                Ok(false) if end.is_over() => return look_into(&mut star, limit),
                Ok(false) => end.sleep(TICK),
                Err(why) => return fail(&star, why.to_string()),
            }
        }
    }
}

/// Fails for all, and names those who are missing if there are any.
fn look_into(star: &mut Star, limit: Duration) {
    // an error has been told to all
    if star.all_gather(&[]).is_ok() {
        fail(star, format!("NCCL did not finish a sum within {limit:?}"));
    }
}

fn fail(star: &Star, why: String) {
    let rank = star.rank();
    star.post.fail(Error::World { rank, why });
}
