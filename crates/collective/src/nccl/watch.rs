//! Detects sums that do not finish. If a process does not take part in a sum, the GPUs of the others wait for
//! ever, and their hosts wait for the GPUs. No call with a timeout is in progress then.
//!
//! A thread checks the sums one after the other. If one takes longer than the limit, the thread gathers with
//! the same threads of the other processes, on their own channel. A process that does not arrive there has
//! no late sum: the others wait for it, and the error names it.

use crate::tcp::Star;
use crate::{Deadline, Error, World};
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaEvent, CudaStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the thread checks a sum.
const TICK: Duration = Duration::from_millis(10);

/// Does nothing without a limit. Dropping it waits for its thread; otherwise the thread's channel would
/// still be open at an orderly end.
pub struct Watch {
    /// The events that a stream reaches when a sum is done.
    sums: Option<Sender<CudaEvent>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts the thread, which alone uses the channel `star`.
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

    /// Watches the work that the stream has so far.
    pub fn on(&self, stream: &CudaStream) -> candle_core::Result<()> {
        if let Some(sums) = &self.sums {
            let done = stream.record_event(None);
            let done = done.map_err(candle_core::Error::wrap)?;
            let _ = sums.send(done); // fails if the thread has ended after a failure
        }
        Ok(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.sums = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it returns nothing
        }
    }
}

/// Ends when the sender is dropped, or after a failure.
fn watch(mut star: Star, gpu: &CudaContext, sums: &Receiver<CudaEvent>, limit: Duration) {
    if let Err(why) = gpu.bind_to_thread() {
        return fail(&star, why.to_string());
    }
    for sum in sums {
        // NCCL starts a sum when the one before it is done; this thread has waited for that one
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

/// Fails for all processes; names the missing ones, if there are any.
fn look_into(star: &mut Star, limit: Duration) {
    // an error of the gather is already known to all
    if star.all_gather(&[]).is_ok() {
        fail(star, format!("NCCL did not finish a sum within {limit:?}"));
    }
}

fn fail(star: &Star, why: String) {
    let rank = star.rank();
    star.post.fail(Error::World { rank, why });
}
