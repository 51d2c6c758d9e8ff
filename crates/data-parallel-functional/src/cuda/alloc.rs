//! Memory of a GPU from the driver. If there is no more, the free memory of all streams of the GPU goes back first.
//!
//! Memory that a step gives back is kept for the next step. `devices::retry_with_empty_cache` gives it back in the
//! same way where candle allocates in copies and in `collective`. candle's operations inside of a network are not
//! tried again, because some change statistics.

use crate::memory::free::Free;
use candle_core::cuda_backend::cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, DeviceRepr, DriverError, result, sys,
};
use candle_core::{Error, Result};
use devices::lock;
use std::sync::{Arc, Mutex};

/// Memory with its address.
pub(crate) struct Piece {
    pub memory: CudaSlice<f32>,
    pub address: u64,
}

/// The free memory of a stream.
pub(crate) type Pool = Arc<Free<Piece>>;

/// The pool of each stream of the process, with its GPU.
static POOLS: Mutex<Vec<(Arc<CudaContext>, Pool)>> = Mutex::new(Vec::new());

/// The pool of a new stream.
pub(crate) fn pool(stream: &CudaStream) -> Result<Pool> {
    if stream.context().has_async_alloc() {
        keep_freed_memory(stream.context().cu_device()).map_err(Error::wrap)?;
    }
    devices::register_gpu_cache(give_back);
    let pool = Pool::new(Free::new());
    lock(&POOLS).push((stream.context().clone(), pool.clone()));
    Ok(pool)
}

/// Memory for `len` floats or bytes, with any contents.
///
/// # Errors
/// Where the GPU has no memory left, even after what is free here went back.
pub(crate) fn alloc<T: DeviceRepr>(stream: &Arc<CudaStream>, len: usize) -> Result<CudaSlice<T>> {
    // Safety: all callers write the memory before they read it; any bits are valid floats and bytes.
    let alloc = || unsafe { stream.alloc::<T>(len) };
    let again = |_| {
        give_back();
        alloc()
    };
    alloc()
        .or_else(again)
        .map_err(|error| no_memory(stream, len * size_of::<T>(), error))
}

/// Gives the driver what is free on all streams of the GPU that this thread used last, and takes it from the driver's
/// pool: libraries allocate beside the pool.
fn give_back() {
    // a copy, so that the lock is not held here: another thread may need it for this GPU to go on
    let pools = lock(&POOLS).clone();
    if pools.is_empty() {
        return; // there may be no driver to ask
    }
    let Ok(Some(last)) = result::ctx::get_current() else {
        return;
    };
    let of_gpu = || pools.iter().filter(|(context, _)| context.cu_ctx() == last);
    of_gpu().for_each(|(_, pool)| {
        pool.clear();
    });
    if let Some((context, _)) = of_gpu().next() {
        // the GPU frees memory when its work gets there; if this fails, there is no more memory than before
        let _ = context.synchronize().and_then(|()| trim(context));
    }
}

fn trim(context: &CudaContext) -> std::result::Result<(), DriverError> {
    if !context.has_async_alloc() {
        return Ok(());
    }
    // Safety: the device exists.
    unsafe {
        let pool = result::device::get_default_mem_pool(context.cu_device())?;
        result::mem_pool::trim_to(pool, 0)
    }
}

/// An error that names the GPU, the memory that was needed and the memory that there is.
fn no_memory(stream: &CudaStream, bytes: usize, error: DriverError) -> Error {
    if error.0 != sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY {
        return Error::wrap(error);
    }
    let context = stream.context();
    let (free, total) = context.mem_get_info().unwrap_or_default();
    let [more, free, total] = [bytes, free, total].map(|bytes| bytes >> 20);
    let gpu = context.ordinal();
    let more = more.max(1);
    Error::Msg(format!(
        "out of memory on cuda({gpu}): {more} MiB more were needed, {free} of {total} MiB are free"
    ))
}

/// Lets the driver keep what is freed, or every wait for the GPU would hand it back to the system.
fn keep_freed_memory(device: sys::CUdevice) -> std::result::Result<(), DriverError> {
    let mut threshold = u64::MAX;
    // Safety: the device exists, and the attribute is one u64, which lives until the call returns.
    unsafe {
        let pool = result::device::get_default_mem_pool(device)?;
        sys::cuMemPoolSetAttribute(
            pool,
            sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
            (&raw mut threshold).cast(),
        )
        .result()
    }
}
