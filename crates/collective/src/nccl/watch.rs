//! Waits for the sums on the GPU. If a process does not take part in a sum, the GPUs of the others wait for
//! ever, and their hosts wait for the GPUs: no call of MPI is late then.
//!
//! A thread waits for the sums one after the other, each as a call on a channel of its own. So MPI's watch
//! finds one that takes longer than the limit, and names the processes that have not begun it.

use super::late;
use crate::gate::Deadline;
use crate::mpi::{Call, Processes, end_all};
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaEvent, CudaStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{JoinHandle, sleep};
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
    /// Starts the thread, which alone uses this channel of `processes`.
    pub fn start(processes: Processes, gpu: Arc<CudaContext>) -> std::io::Result<Self> {
        let Some(limit) = late(processes.calls.limit) else {
            return Ok(Self {
                sums: None,
                thread: None,
            });
        };
        let (sums, inbox) = channel();
        let thread = std::thread::Builder::new().name("sums".to_owned());
        let thread = thread.spawn(move || watch(&processes, &gpu, &inbox, limit))?;
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
            let _ = sums.send(done); // fails if the process ends
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

/// Ends when the sender is dropped; a sum that fails ends all processes.
fn watch(processes: &Processes, gpu: &CudaContext, sums: &Receiver<CudaEvent>, limit: Duration) {
    let fails = |why: &str| end_all(1, &format!("cannot sum on its GPU: {why}"));
    if let Err(why) = gpu.bind_to_thread() {
        fails(&why.to_string());
    }
    for sum in sums {
        // NCCL starts a sum when the one before it is done; this thread has waited for that one
        let _in_call = processes.calls.enter(Call::SumOnGpus);
        let end = Deadline::after(limit);
        loop {
            match sum.try_is_complete() {
                Ok(true) => break,
                Ok(false) if end.is_over() => fails(&format!("it is not done within {limit:?}")),
                Ok(false) => end.nap(|_| sleep(TICK)),
                Err(why) => fails(&why.to_string()),
            }
        }
    }
}
