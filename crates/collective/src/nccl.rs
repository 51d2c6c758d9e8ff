//! The processes that `mpirun` started, with a GPU each, as a [`World`] that sums on the GPUs with NCCL.
//!
//! Messages and data in the host's memory go over [`mpi`](crate::mpi). So does the id that connects the
//! communicators of a channel. A sum is enqueued on the stream of the tensor's device, and the host does not
//! wait for it. NCCL chooses the order of the sum; all processes get the same bits.
//!
//! NCCL does not compare lengths, and has no timeout. So the processes compare each new length once, and a
//! thread waits for each sum (`watch`), which MPI's watch counts as a call: it names a process that does not
//! take part, and ends all. Before that it aborts the communicators, and with them the sums that wait on the
//! GPU. For that, no call of NCCL may block: the communicators are non-blocking, and are polled.

#![allow(unsafe_code)]

mod watch;

use crate::error::Error;
use crate::gate::Deadline;
use crate::mpi::{self, Call, Processes};
use crate::world::World;
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};
use candle_core::cuda_backend::cudarc::nccl::sys;
use candle_core::{
    CpuStorage, CudaDevice, CudaStorage, CustomOp1, DType, Device, Layout, Shape, Tensor,
};
use std::any::Any;
use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;
use watch::Watch;

/// As [`mpi::world`](crate::mpi::world), for processes that sum tensors on their GPUs with NCCL. Each process
/// needs its own GPU.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use candle_core::{DType, Device, Tensor};
/// let world = collective::nccl::world(None)?;
/// let gpu = Device::new_cuda_with_stream(world.rank())?; // if all are on one machine
/// let mut members = collective::group_in(world, 1, Default::default());
/// let ones = Tensor::ones(3, DType::F32, &gpu)?;
/// let sum = members[0].all_reduce_tensor(&ones)?; // as many as there are processes
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`mpi::world`](crate::mpi::world); and [`Error::World`], if the library NCCL cannot be used.
pub fn world(timeout: Option<Duration>) -> Result<Box<dyn World>, Error> {
    let processes = mpi::processes(timeout)?;
    load().map_err(|why| error(processes.rank(), why))?;
    Ok(Box::new(Gpus::new(processes)))
}

/// The functions used here exist since NCCL 2.14.
const OLDEST: c_int = 21_400;

/// How often a communicator is polled.
const POLL: Duration = Duration::from_micros(50);
/// How long a communicator may take to end.
const ENDING: Duration = Duration::from_secs(5);

/// Fails if NCCL cannot be used. cudarc panics if the library is missing.
fn load() -> Result<(), String> {
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

fn error(rank: usize, why: impl Into<String>) -> Error {
    let why = why.into();
    Error::World { rank, why }
}

/// A channel.
struct Gpus {
    processes: Processes,
    /// Made at the first sum.
    sums: Option<Sums>,
    /// The numbers of elements that have been compared.
    lengths: BTreeSet<usize>,
}

/// What sums on the GPU of this process.
struct Sums {
    comm: Arc<Comm>,
    stream: Arc<CudaStream>,
    watch: Watch,
}

impl Gpus {
    fn new(processes: Processes) -> Self {
        Self {
            processes,
            sums: None,
            lengths: BTreeSet::new(),
        }
    }

    fn sum(&mut self, data: &Tensor, device: &CudaDevice) -> Result<Tensor, Error> {
        if data.dtype() != DType::F32 {
            let dtype = data.dtype();
            return Err(self.error(format!("the tensor is {dtype:?}; only F32 can be summed")));
        }
        self.compare(data.elem_count())?;
        let stream = device.cuda_stream();
        let gpu = |stream: &CudaStream| stream.context().ordinal();
        let sums = match self.sums.take() {
            Some(sums) if gpu(&sums.stream) == gpu(&stream) => sums,
            Some(sums) => {
                let (own, other) = (gpu(&sums.stream), gpu(&stream));
                return Err(self.error(format!(
                    "the first sum was on GPU {own}, this one is on GPU {other}; use one GPU"
                )));
            }
            None => self.start(&stream)?,
        };
        let Sums { comm, watch, .. } = &*self.sums.insert(sums);
        if data.elem_count() == 0 {
            return Ok(data.clone());
        }
        let in_call = self.processes.calls.enter(Call::SumOnGpus);
        let sum = data.contiguous();
        let sum = sum.and_then(|data| {
            data.apply_op1_no_bwd(&AllReduce(comm, late(self.processes.calls.limit)))
        });
        drop(in_call);
        let watched = sum.and_then(|sum| watch.on(&stream).map(|()| sum));
        watched.map_err(|e| self.error(e.to_string()))
    }

    /// Fails in all processes unless their numbers of elements agree; compares each number once.
    fn compare(&mut self, length: usize) -> Result<(), Error> {
        if !self.lengths.insert(length) {
            return Ok(());
        }
        let _in_call = self.processes.calls.enter(Call::SumOnGpus);
        self.processes.same_length(Call::SumOnGpus, length)
    }

    /// Makes the communicator, on the GPU of the first sum.
    fn start(&mut self, stream: &Arc<CudaStream>) -> Result<Sums, Error> {
        let (rank, size) = (self.processes.rank(), self.processes.size());
        let id = match rank {
            0 => unique_id().map_err(|why| self.error(why))?,
            _ => Vec::new(),
        };
        let id = self.processes.all_gather(&id)?.swap_remove(0);
        let bound = stream.context().bind_to_thread();
        bound.map_err(|e| self.error(e.to_string()))?;
        let limit = self.processes.calls.limit;
        let in_call = self.processes.calls.enter(Call::Communicator);
        let comm = Arc::new(Comm::new(&id, rank, size).map_err(|why| self.error(why))?);
        let made = comm.settle(late(limit));
        drop(in_call);
        made.map_err(|why| self.error(why))?;
        let aborted = Arc::downgrade(&comm);
        self.processes.channels.do_before_the_end(move || {
            if let Some(comm) = aborted.upgrade() {
                comm.abort();
            }
        });
        let watch = Watch::start(self.processes.another(limit)?, stream.context().clone());
        Ok(Sums {
            comm,
            stream: stream.clone(),
            watch: watch.map_err(|e| self.error(e.to_string()))?,
        })
    }

    fn error(&self, why: impl Into<String>) -> Error {
        error(self.processes.rank(), why)
    }
}

/// When NCCL is late: after MPI's watch, which names a process that does not take part.
fn late(limit: Option<Duration>) -> Option<Duration> {
    limit.map(|limit| 2 * limit)
}

impl Drop for Gpus {
    /// Lets the sums in progress finish within [`ENDING`], and aborts those that do not.
    fn drop(&mut self) {
        let Some(Sums {
            comm,
            stream,
            watch,
        }) = self.sums.take()
        else {
            return;
        };
        let begun = stream.context().bind_to_thread().is_ok() && comm.finalize();
        match begun && comm.settle(Some(ENDING)).is_ok() {
            true => comm.destroy(),
            false => comm.abort(),
        }
        drop(watch); // now that no sum is in progress
    }
}

impl World for Gpus {
    fn rank(&self) -> usize {
        self.processes.rank()
    }

    fn size(&self) -> usize {
        self.processes.size()
    }

    fn all_reduce(&mut self, data: &mut [f32]) -> Result<(), Error> {
        self.processes.all_reduce(data)
    }

    fn all_gather(&mut self, data: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.processes.all_gather(data)
    }

    fn all_reduce_tensor(&mut self, data: &Tensor) -> Option<Result<Tensor, Error>> {
        match data.device() {
            Device::Cuda(device) => Some(self.sum(data, &device.clone())),
            _ => None,
        }
    }

    fn duplicate(&self) -> Result<Box<dyn World>, Error> {
        let limit = self.processes.calls.limit;
        Ok(Box::new(Self::new(self.processes.another(limit)?)))
    }
}

fn unique_id() -> Result<Vec<u8>, String> {
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
struct Comm(Mutex<Option<Handle>>);

struct Handle(sys::ncclComm_t);

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
    fn new(id: &[u8], rank: usize, size: usize) -> Result<Self, String> {
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

    /// Waits until NCCL has finished the last call. It does not wait for the GPU.
    fn settle(&self, limit: Option<Duration>) -> Result<(), String> {
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

    /// Starts to end the communicator; returns whether NCCL has accepted it.
    fn finalize(&self) -> bool {
        use sys::ncclResult_t::{ncclInProgress, ncclSuccess};
        // Safety: the communicator exists.
        let begun = self.call(|comm| unsafe { sys::ncclCommFinalize(comm) });
        matches!(begun, Some(ncclSuccess | ncclInProgress))
    }

    /// Frees the communicator, after [`finalize`](Self::finalize).
    fn destroy(&self) {
        let handle = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Handle(comm)) = handle {
            // Safety: the handle was taken under the lock, so no other call has it.
            let _ = unsafe { sys::ncclCommDestroy(comm) }; // an error cannot be handled here
        }
    }

    /// Ends the communicator and its calls in progress.
    fn abort(&self) {
        let handle = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Handle(comm)) = handle {
            // Safety: the handle was taken under the lock, so no other call has it.
            let _ = unsafe { sys::ncclCommAbort(comm) }; // an error cannot be handled here
        }
    }
}

/// The sum of a contiguous tensor over all processes, in new memory; and how long NCCL may take to accept it.
struct AllReduce<'a>(&'a Comm, Option<Duration>);

impl CustomOp1 for AllReduce<'_> {
    fn name(&self) -> &'static str {
        "all-reduce"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        candle_core::bail!("NCCL sums tensors on GPUs, this one is on the CPU")
    }

    fn cuda_fwd(
        &self,
        data: &CudaStorage,
        layout: &Layout,
    ) -> candle_core::Result<(CudaStorage, Shape)> {
        let (first, end) = layout.contiguous_offsets().ok_or_else(|| {
            candle_core::Error::msg("NCCL sums contiguous tensors, this one is not")
        })?;
        let device = data.device();
        let data = data.as_cuda_slice::<f32>()?.slice(first..end);
        let stream = device.cuda_stream();
        // Safety: NCCL writes all elements on this stream, before later work on it reads them.
        let mut sum = unsafe { device.alloc::<f32>(end - first) }?;
        {
            let (from, _reads) = data.device_ptr(&stream);
            let (to, _writes) = sum.device_ptr_mut(&stream);
            self.enqueue(from, to, end - first, &stream)?;
        }
        let sum = CudaStorage::wrap_cuda_slice(sum, device.clone());
        Ok((sum, layout.shape().clone()))
    }
}

impl AllReduce<'_> {
    /// Enqueues the sum on the stream.
    fn enqueue(
        &self,
        from: u64,
        to: u64,
        n: usize,
        stream: &CudaStream,
    ) -> candle_core::Result<()> {
        let Self(comm, limit) = self;
        stream
            .context()
            .bind_to_thread()
            .map_err(candle_core::Error::wrap)?;
        // Safety: both addresses have `n` floats on the communicator's GPU. candle frees memory in the order
        // of the stream, so both stay allocated until the sum is done.
        let call = |comm| unsafe {
            sys::ncclAllReduce(
                from as *const _,
                to as *mut _,
                n,
                sys::ncclDataType_t::ncclFloat32,
                sys::ncclRedOp_t::ncclSum,
                comm,
                stream.cu_stream().cast(),
            )
        };
        use sys::ncclResult_t::{ncclInProgress, ncclSuccess};
        match comm.call(call) {
            Some(ncclSuccess | ncclInProgress) | None => {
                comm.settle(*limit).map_err(candle_core::Error::msg)
            }
            Some(failed) => Err(candle_core::Error::msg(comm.words(failed))),
        }
    }
}

#[cfg(test)]
mod tests;
