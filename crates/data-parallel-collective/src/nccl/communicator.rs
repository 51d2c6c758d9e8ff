//! A communicator of NCCL, and the calls of the library.
//!
//! No call may block: a communicator is non-blocking and is polled, so it can be aborted at any time, and with it the
//! sums that wait on the GPU for a member that does not take part.

#![allow(unsafe_code)]

use crate::barrier::{Barrier, Deadline};
use candle_core::cuda_backend::cudarc::driver::CudaStream;
use candle_core::cuda_backend::cudarc::nccl::result::{self, NcclError, NcclStatus};
use candle_core::cuda_backend::cudarc::nccl::sys;
use devices::{Panicked, quietly};
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

/// Before NCCL 2.23, ranks of one process may write into each other's buffers, which are in CUDA's memory pools: other GPUs
/// may have no access to them.
const OLDEST: c_int = 22_304;

/// Time between two polls of a communicator.
const POLL: Duration = Duration::from_micros(50);

/// Fails if NCCL cannot be used. cudarc panics if the library is missing.
pub fn load() -> Result<(), String> {
    match quietly(result::get_nccl_version) {
        Ok(Ok(OLDEST..)) => Ok(()),
        Ok(Ok(version)) => Err(format!(
            "NCCL has version {version}; at least {OLDEST} is needed"
        )),
        Ok(Err(NcclError(failed))) => Err(format!("NCCL cannot be used: {failed:?}")),
        Err(Panicked(text)) if text.contains("shared library") => {
            let words = "libnccl.so cannot be loaded; install NCCL, or put its folder into LD_LIBRARY_PATH. If \
                         the folder has only libnccl.so.2, make a link: ln -s libnccl.so.2 libnccl.so";
            Err(words.to_owned())
        }
        Err(Panicked(text)) => {
            let line = text.lines().next().unwrap_or_default();
            Err(format!("NCCL cannot be used: {line}"))
        }
    }
}

/// Connects the communicators of the members that get it.
pub fn unique_id() -> Result<Vec<u8>, String> {
    match result::get_uniqueid() {
        Ok(id) => Ok(id.internal.map(|byte| byte.cast_unsigned()).into()),
        Err(NcclError(failed)) => Err(format!("NCCL cannot make an id: {failed:?}")),
    }
}

/// A communicator, until it is aborted or destroyed. Calls hold the lock and return at once. So an abort
/// does not wait long, and never runs during another call.
pub struct Comm(Mutex<Option<Handle>>);

struct Handle(sys::ncclComm_t);

impl Drop for Comm {
    fn drop(&mut self) {
        self.abort();
    }
}

// Safety: any thread may use an NCCL communicator, but only one at a time; the lock in `Comm` ensures that.
unsafe impl Send for Handle {}

/// `ncclConfig_t` of NCCL 2.17. NCCL reads as many bytes as the first field says; later fields count as
/// left out.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
}

/// `NCCL_CONFIG_UNDEF_INT`.
const LEFT_OUT: c_int = c_int::MIN;

/// For a communicator with non-blocking calls.
const NOT_BLOCKING: Config = Config {
    size: size_of::<Config>(),
    magic: 0xcafe_beef,
    version: 21_700,
    blocking: 0,
    cga_cluster_size: LEFT_OUT,
    min_ctas: LEFT_OUT,
    max_ctas: LEFT_OUT,
    net_name: std::ptr::null(),
};

impl Comm {
    /// Starts to make a communicator on the GPU of this thread; [`settle`](Self::settle) waits for it, and
    /// returns its errors.
    pub fn new(id: &[u8], rank: usize, size: usize) -> Result<Self, String> {
        let mut internal: [c_char; 128] = [0; 128];
        let bytes = internal.iter_mut().zip(id);
        bytes.for_each(|(to, from)| *to = from.cast_signed());
        let mut comm = std::ptr::null_mut();
        let mut config = NOT_BLOCKING;
        // Safety: the first field of the config is its own size, and the call reads that many bytes. It writes
        // one pointer, `comm`, which stays null if there is no communicator.
        let begun = unsafe {
            let id = sys::ncclUniqueId { internal };
            let config = (&raw mut config).cast();
            result::comm_init_rank_config(&mut comm, size as c_int, id, rank as c_int, config)
        };
        if comm.is_null() {
            let failed = begun.err().map(|NcclError(failed)| failed);
            return Err(format!("NCCL cannot make a communicator: {failed:?}"));
        }
        Ok(Self(Mutex::new(Some(Handle(comm)))))
    }

    /// The result of `call`, if the communicator still exists.
    fn call<T>(&self, call: impl FnOnce(sys::ncclComm_t) -> T) -> Option<T> {
        let handle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        handle.as_ref().map(|handle| call(handle.0))
    }

    /// Waits until NCCL has finished the last call, unless `barrier` fails. It does not wait for the GPU.
    pub fn settle(&self, limit: Option<Duration>, barrier: Option<&Barrier>) -> Result<(), String> {
        let end = Deadline::after(limit.unwrap_or(Duration::MAX));
        loop {
            let asked = self.call(|comm| {
                let mut state = sys::ncclResult_t::ncclSuccess;
                // Safety: the communicator exists, and the call writes one result, `state`.
                let asked = unsafe { sys::ncclCommGetAsyncError(comm, &mut state) };
                asked.result().and(state.result())
            });
            match asked {
                Some(Ok(NcclStatus::Success)) => return Ok(()),
                Some(Ok(_)) => (), // in progress
                Some(Err(NcclError(failed))) => return Err(self.words(failed)),
                None => return Err("the communicator is gone".to_owned()),
            }
            if let Some(Err(error)) = barrier.map(Barrier::check) {
                return Err(error.to_string());
            }
            if end.is_over() {
                let limit = limit.unwrap_or_default();
                return Err(format!("NCCL did not finish within {limit:?}"));
            }
            end.nap(|_| sleep(POLL));
        }
    }

    /// NCCL's message for a failure.
    fn words(&self, failed: sys::ncclResult_t) -> String {
        let last = self.call(|comm| {
            // Safety: the communicator exists.
            let text = unsafe { sys::ncclGetLastError(comm) };
            if text.is_null() {
                return String::new();
            }
            // Safety: NCCL's text ends with a zero byte, and is valid until the next failure.
            let text = unsafe { CStr::from_ptr(text) };
            text.to_string_lossy().into_owned()
        });
        format!("NCCL: {failed:?} {}", last.unwrap_or_default().trim())
    }

    /// Enqueues the sum of `n` f32 over all members; [`settle`](Self::settle) waits until it is on the stream.
    ///
    /// # Safety
    /// Both addresses have `n` f32 on the communicator's GPU until the stream has reached the sum.
    pub unsafe fn all_reduce(
        &self,
        from: u64,
        to: u64,
        n: usize,
        stream: &CudaStream,
    ) -> Result<(), String> {
        let f32 = sys::ncclDataType_t::ncclFloat32;
        let sum = sys::ncclRedOp_t::ncclSum;
        let from = from as *const _;
        let to = to as *mut _;
        let stream = stream.cu_stream().cast();
        // Safety: the communicator exists; the caller guarantees the rest.
        let begun =
            self.call(|comm| unsafe { result::all_reduce(from, to, n, f32, sum, comm, stream) });
        match begun {
            Some(Err(NcclError(failed))) => Err(self.words(failed)),
            _ => Ok(()), // a communicator that is gone is an error in `settle`
        }
    }

    /// Ends the communicator. The sums that are enqueued may finish within `limit`; otherwise they are aborted.
    pub fn end(&self, limit: Duration) {
        // Safety: the communicator exists.
        let begun = self.call(|comm| unsafe { result::comm_finalize(comm) });
        if !matches!(begun, Some(Ok(_))) || self.settle(Some(limit), None).is_err() {
            return self.abort();
        }
        if let Some(comm) = self.take() {
            // Safety: the handle was taken under the lock, so no other call has it.
            let _ = unsafe { result::comm_destroy(comm) }; // an error cannot be handled here
        }
    }

    /// Ends the communicator and its sums in progress.
    pub fn abort(&self) {
        if let Some(comm) = self.take() {
            // Safety: the handle was taken under the lock, so no other call has it.
            let _ = unsafe { result::comm_abort(comm) }; // an error cannot be handled here
        }
    }

    fn take(&self) -> Option<sys::ncclComm_t> {
        let handle = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        handle.map(|Handle(comm)| comm)
    }
}
