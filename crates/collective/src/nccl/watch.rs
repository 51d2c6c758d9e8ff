//! Waits for the sums on the GPU. A GPU or a link may fail when a sum is enqueued: then the GPUs wait for ever, and
//! their hosts wait for the GPUs.
//!
//! A sum that takes longer than the limit ends the process, or under MPI all processes: its result is lost, and the
//! step with it may be under way.

use super::communicator::Comm;
use crate::gate::Deadline;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaEvent, CudaStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

/// How often the thread checks a sum.
const TICK: Duration = Duration::from_millis(10);

/// Dropping it waits for the sums.
pub struct Watch {
    /// The events that a stream reaches when a sum is done.
    sums: Option<Sender<CudaEvent>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts the thread for the sums of replica `rank`.
    pub fn start(
        rank: usize,
        comm: &Arc<Comm>,
        gpu: &Arc<CudaContext>,
        limit: Duration,
    ) -> std::io::Result<Self> {
        let (sums, inbox) = channel();
        let (comm, gpu) = (comm.clone(), gpu.clone());
        let watch = move || {
            if let Err(why) = watch(&gpu, &inbox, limit) {
                eprintln!("error: all-reduce: replica {rank}: {why}");
                comm.abort();
                end();
            }
        };
        let thread = std::thread::Builder::new().name("sums".to_owned());
        Ok(Self {
            sums: Some(sums),
            thread: Some(thread.spawn(watch)?),
        })
    }

    /// Watches the work that the stream has so far.
    pub fn on(&self, stream: &CudaStream) -> candle_core::Result<()> {
        let done = stream.record_event(None);
        let done = done.map_err(candle_core::Error::wrap)?;
        if let Some(sums) = &self.sums {
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

/// Returns when the sender is dropped, or when a sum fails.
fn watch(gpu: &CudaContext, sums: &Receiver<CudaEvent>, limit: Duration) -> Result<(), String> {
    gpu.bind_to_thread().map_err(|error| error.to_string())?;
    for sum in sums {
        let end = Deadline::after(limit);
        while !sum.try_is_complete().map_err(|error| error.to_string())? {
            if end.is_over() {
                return Err(format!("NCCL's sum is not done within {limit:?}"));
            }
            end.nap(|_| sleep(TICK));
        }
    }
    Ok(())
}

fn end() -> ! {
    #[cfg(feature = "mpi")]
    crate::mpi::abort(1);
    #[cfg(not(feature = "mpi"))]
    std::process::exit(1)
}
