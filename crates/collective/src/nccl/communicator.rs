//! A communicator of NCCL, and what of the library this crate calls.
//!
//! No call may block: a communicator is non-blocking and is polled, so it can be aborted at any time, and with it the
//! sums that wait on the GPU for a member that does not take part.

#![allow(unsafe_code)]

use crate::gate::{Deadline, Gate};
use candle_core::cuda_backend::cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};
use candle_core::cuda_backend::cudarc::nccl::sys;
use candle_core::{CpuStorage, CudaStorage, InplaceOp2, Layout, bail};
use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

/// The functions used here exist since NCCL 2.14.
const OLDEST: c_int = 21_400;

/// How often a communicator is polled.
const POLL: Duration = Duration::from_micros(50);
/// Fails if NCCL cannot be used. cudarc panics if the library is missing.
pub fn load() -> Result<(), String> {
    let version = quietly(|| {
        let mut version = 0;
        // Safety: the call writes one number, `version`.
        let result = unsafe { sys::ncclGetVersion(&mut version) };
        (result, version)
    });
    match version {
        Ok((sys::ncclResult_t::ncclSuccess, OLDEST..)) => Ok(()),
        Ok((sys::ncclResult_t::ncclSuccess, version)) => Err(format!(
            "NCCL has version {version}; at least {OLDEST} is needed"
        )),
        Ok((failed, _)) => Err(format!("NCCL cannot be used: {failed:?}")),
        Err(panic) if panic.contains("shared library") => {
            let words =
                "libnccl cannot be loaded; install it, or put its folder into LD_LIBRARY_PATH";
            Err(words.to_owned())
        }
        Err(panic) => Err(format!("NCCL cannot be used: {panic}")),
    }
}

/// Runs `f`; returns the text of a panic and does not print it.
fn quietly<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| ()));
    let result = panic::catch_unwind(AssertUnwindSafe(f));
    panic::set_hook(hook);
    let text = |panic: Box<dyn Any + Send>| match panic.downcast::<String>() {
        Ok(text) => text.lines().next().unwrap_or_default().to_owned(),
        Err(_) => "it panicked".to_owned(),
    };
    result.map_err(text)
}

/// Connects the communicators of the members that get it.
pub fn unique_id() -> Result<Vec<u8>, String> {
    let mut id = sys::ncclUniqueId { internal: [0; 128] };
    // Safety: the call writes one id, `id`.
    match unsafe { sys::ncclGetUniqueId(&mut id) } {
        sys::ncclResult_t::ncclSuccess => Ok(id
            .internal
            .iter()
            .map(|byte| byte.cast_unsigned())
            .collect()),
        failed => Err(format!("NCCL cannot make an id: {failed:?}")),
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

impl Config {
    /// For a communicator with non-blocking calls.
    fn not_blocking() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: 21_700,
            blocking: 0,
            cga_cluster_size: LEFT_OUT,
            min_ctas: LEFT_OUT,
            max_ctas: LEFT_OUT,
            net_name: std::ptr::null(),
        }
    }
}

impl Comm {
    /// Starts to make a communicator on the GPU of this thread; [`settle`](Self::settle) waits for it, and
    /// returns its errors.
    pub fn new(id: &[u8], rank: usize, size: usize) -> Result<Self, String> {
        let mut internal: [c_char; 128] = [0; 128];
        let bytes = internal.iter_mut().zip(id);
        bytes.for_each(|(to, from)| *to = from.cast_signed());
        let (mut comm, mut config) = (std::ptr::null_mut(), Config::not_blocking());
        // Safety: the first field of the config is its own size, and the call reads that many bytes. It writes
        // one pointer, `comm`, which stays null if there is no communicator.
        let begun = unsafe {
            sys::ncclCommInitRankConfig(
                &mut comm,
                size as c_int,
                sys::ncclUniqueId { internal },
                rank as c_int,
                (&raw mut config).cast(),
            )
        };
        match comm.is_null() {
            true => Err(format!("NCCL cannot make a communicator: {begun:?}")),
            false => Ok(Self(Mutex::new(Some(Handle(comm))))),
        }
    }

    /// The result of `call`, if the communicator still exists.
    fn call<T>(&self, call: impl FnOnce(sys::ncclComm_t) -> T) -> Option<T> {
        let handle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        handle.as_ref().map(|handle| call(handle.0))
    }

    /// Waits until NCCL has finished the last call, unless `gate` fails. It does not wait for the GPU.
    pub fn settle(&self, limit: Option<Duration>, gate: Option<&Gate>) -> Result<(), String> {
        use sys::ncclResult_t::{ncclInProgress, ncclSuccess};
        let end = Deadline::after(limit.unwrap_or(Duration::MAX));
        loop {
            let mut state = ncclSuccess;
            // Safety: the communicator exists, and the call writes one result, `state`.
            let asked = self.call(|comm| unsafe { sys::ncclCommGetAsyncError(comm, &mut state) });
            match asked.map(|asked| if asked == ncclSuccess { state } else { asked }) {
                Some(ncclSuccess) => return Ok(()),
                Some(ncclInProgress) => (),
                Some(failed) => return Err(self.words(failed)),
                None => return Err("the communicator is gone".to_owned()),
            }
            if let Some(Err(error)) = gate.map(Gate::check) {
                return Err(error.to_string());
            }
            if end.is_over() {
                return Err(format!(
                    "NCCL did not finish within {:?}",
                    limit.unwrap_or_default()
                ));
            }
            end.nap(|_| sleep(POLL));
        }
    }

    /// NCCL's message for a failure.
    fn words(&self, failed: sys::ncclResult_t) -> String {
        let last = self.call(|comm| {
            // Safety: the communicator exists.
            let text = unsafe { sys::ncclGetLastError(comm) };
            match text.is_null() {
                true => String::new(),
                // Safety: NCCL's text ends with a zero byte, and is valid until the next failure.
                false => unsafe { CStr::from_ptr(text) }
                    .to_string_lossy()
                    .into_owned(),
            }
        });
        format!("NCCL: {failed:?} {}", last.unwrap_or_default().trim())
    }

    /// Ends the communicator. The sums that are enqueued may finish within `limit`; otherwise they are aborted.
    pub fn end(&self, limit: Duration) {
        use sys::ncclResult_t::{ncclInProgress, ncclSuccess};
        // Safety: the communicator exists.
        let begun = self.call(|comm| unsafe { sys::ncclCommFinalize(comm) });
        let begun = matches!(begun, Some(ncclSuccess | ncclInProgress));
        if !begun || self.settle(Some(limit), None).is_err() {
            return self.abort();
        }
        if let Some(comm) = self.take() {
            // Safety: the handle was taken under the lock, so no other call has it.
            let _ = unsafe { sys::ncclCommDestroy(comm) }; // an error cannot be handled here
        }
    }

    /// Ends the communicator and its sums in progress.
    pub fn abort(&self) {
        if let Some(comm) = self.take() {
            // Safety: the handle was taken under the lock, so no other call has it.
            let _ = unsafe { sys::ncclCommAbort(comm) }; // an error cannot be handled here
        }
    }

    fn take(&self) -> Option<sys::ncclComm_t> {
        let handle = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        handle.map(|Handle(comm)| comm)
    }
}

/// Writes the sum of a contiguous tensor over all members to another one.
pub struct AllReduce<'a> {
    pub comm: &'a Comm,
    /// Of the communicator's GPU.
    pub stream: &'a Arc<CudaStream>,
    pub limit: Option<Duration>,
    pub gate: &'a Gate,
}

impl InplaceOp2 for AllReduce<'_> {
    fn name(&self) -> &'static str {
        "all-reduce by NCCL"
    }

    fn cpu_fwd(
        &self,
        _: &mut CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> candle_core::Result<()> {
        bail!("NCCL sums tensors on GPUs, this one is on the CPU")
    }

    fn cuda_fwd(
        &self,
        sum: &mut CudaStorage,
        of_sum: &Layout,
        data: &CudaStorage,
        of_data: &Layout,
    ) -> candle_core::Result<()> {
        let (Some((first, end)), Some((0, len))) =
            (of_data.contiguous_offsets(), of_sum.contiguous_offsets())
        else {
            bail!("NCCL sums contiguous tensors")
        };
        let sum = sum.as_cuda_slice_mut::<f32>()?;
        if (end - first, sum.len()) != (len, len) {
            bail!("{} elements have another sum of {len}", end - first)
        }
        let data = data.as_cuda_slice::<f32>()?.slice(first..end);
        let (from, _reads) = data.device_ptr(self.stream);
        let (to, _writes) = sum.device_ptr_mut(self.stream);
        self.enqueue(from, to, len)
    }
}

impl AllReduce<'_> {
    /// Returns when the sum is on the stream.
    fn enqueue(&self, from: u64, to: u64, n: usize) -> candle_core::Result<()> {
        use sys::ncclResult_t::{ncclInProgress, ncclSuccess};
        // Safety: both addresses have `n` floats on the communicator's GPU. candle frees memory in the order
        // of the stream, so both stay allocated until the sum is done.
        let begun = self.comm.call(|comm| unsafe {
            sys::ncclAllReduce(
                from as *const _,
                to as *mut _,
                n,
                sys::ncclDataType_t::ncclFloat32,
                sys::ncclRedOp_t::ncclSum,
                comm,
                self.stream.cu_stream().cast(),
            )
        });
        match begun {
            Some(ncclSuccess | ncclInProgress) | None => {
                let settled = self.comm.settle(self.limit, Some(self.gate));
                settled.map_err(candle_core::Error::msg)
            }
            Some(failed) => bail!("{}", self.comm.words(failed)),
        }
    }
}
