//! Waits for the sums on the GPU. A GPU or a link may fail when a sum is enqueued: then the GPUs wait for ever, and
//! their hosts wait for the GPUs.
//!
//! A sum that takes longer than the limit ends the process, or under MPI all processes: its result is lost, and the
//! step with it may be under way.

use super::communicator::Comm;
use crate::barrier::Deadline;
use crate::end::last_words;
use candle_core::cuda_backend::cudarc::driver::CudaContext;
use devices::WorkSoFar;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::sleep;
use std::time::Duration;

/// Time between two checks of a sum.
const TICK: Duration = Duration::from_millis(10);

/// Starts the thread for the sums of replica `rank`. It gets the work of a stream that ends with a sum, and
/// ends when the sender is dropped.
pub fn start(
    rank: usize,
    comm: &Arc<Comm>,
    gpu: &Arc<CudaContext>,
    limit: Duration,
) -> std::io::Result<Sender<WorkSoFar>> {
    let (sums, inbox) = channel();
    let comm = comm.clone();
    let gpu = gpu.clone();
    let run = move || {
        if let Err(why) = watch(&gpu, &inbox, limit) {
            last_words(&format!("all-reduce: replica {rank}: {why}"));
            comm.abort();
            end();
        }
    };
    std::thread::Builder::new()
        .name("sums".to_owned())
        .spawn(run)
        .map(|_| sums)
}

fn watch(gpu: &CudaContext, sums: &Receiver<WorkSoFar>, limit: Duration) -> Result<(), String> {
    gpu.bind_to_thread().map_err(|error| error.to_string())?;
    for sum in sums {
        let end = Deadline::after(limit);
        while !sum.is_done().map_err(|error| error.to_string())? {
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
