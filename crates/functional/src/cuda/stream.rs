//! A replica's stream on its GPU, with everything that belongs to it: our kernels, the handles of the
//! libraries, the memory between operations.

use super::cudnn::Cudnn;
use super::floats::{Element, Floats, Kernel, Piece};
use crate::free::Free;
use candle_core::cuda_backend::cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DevicePtr, DeviceRepr, DriverError,
    LaunchConfig, result, sys,
};
use candle_core::cuda_backend::{CudaDevice, DeviceId};
use candle_core::{Error, Result, bail};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Threads of a block of an elementwise kernel.
pub(crate) const THREADS: u32 = 256;

/// A file of kernels, compiled for each type that memory may have.
macro_rules! compiled {
    ($file:literal) => {
        [
            include_str!(concat!(env!("OUT_DIR"), "/", $file, "_f32.ptx")),
            include_str!(concat!(env!("OUT_DIR"), "/", $file, "_bf16.ptx")),
        ]
    };
}

/// Where a kernel is: the name of its file, and the file compiled for each type.
fn file_of(kernel: &str) -> (&'static str, [&'static str; 2]) {
    match kernel.split(char::is_numeric).next() {
        Some("single") => ("single", compiled!("single")),
        _ if kernel.starts_with("norm_") => ("norm", compiled!("norm")),
        _ => ("elementwise", compiled!("elementwise")),
    }
}

pub(crate) struct Stream {
    device: CudaDevice,
    stream: Arc<CudaStream>,
    /// The kernels that were used. A file is loaded for its first kernel: the driver may translate it for seconds.
    functions: Mutex<HashMap<Kernel, CudaFunction>>,
    pub free: Arc<Free<Piece>>,
    cudnn: Mutex<Cudnn>,
    /// Tables of addresses that kernels were given, by their contents.
    tables: Mutex<HashMap<Vec<u64>, CudaSlice<u64>>>,
}

/// So many tables are kept: with one they are the same every step, with fresh tensors they are not.
const TABLES: usize = 64;

/// One for each device that was opened, as long as the process lives.
static STREAMS: Mutex<Vec<(DeviceId, Arc<Stream>)>> = Mutex::new(Vec::new());

impl Stream {
    /// The stream of `device`, which is made when it is asked for first.
    ///
    /// # Errors
    /// Where the kernels cannot be loaded, or cuDNN cannot be used.
    pub fn of(device: &CudaDevice) -> Result<Arc<Self>> {
        devices::kept_memory(give_back);
        let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, stream)) = streams.iter().find(|(id, _)| *id == device.id()) {
            stream.bind()?;
            return Ok(stream.clone());
        }
        let stream = Arc::new(Self::new(device)?);
        streams.push((device.id(), stream.clone()));
        Ok(stream)
    }

    fn new(device: &CudaDevice) -> Result<Self> {
        let stream = device.cuda_stream();
        stream.context().bind_to_thread().map_err(Error::wrap)?;
        if stream.context().has_async_alloc() {
            keep_freed_memory(stream.context().cu_device()).map_err(Error::wrap)?;
        }
        let stream = Self {
            device: device.clone(),
            cudnn: Mutex::new(Cudnn::new(&stream)?),
            stream,
            functions: Mutex::default(),
            free: Arc::new(Free::new()),
            tables: Mutex::default(),
        };
        stream.function("copy")?; // a GPU that cannot run the kernels is found here, not in a step
        Ok(stream)
    }

    /// Makes the GPU that of the calling thread, as the libraries want it.
    pub fn bind(&self) -> Result<()> {
        self.stream.context().bind_to_thread().map_err(Error::wrap)
    }

    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    pub fn cuda(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// cuDNN, for one thread at a time.
    pub fn cudnn(&self) -> MutexGuard<'_, Cudnn> {
        self.cudnn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn function(&self, kernel: impl Into<Kernel>) -> Result<CudaFunction> {
        let kernel @ Kernel(element, name) = kernel.into();
        let mut functions = self
            .functions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions.get(&kernel) {
            return Ok(function.clone());
        }
        if element == Element::Bf16 {
            self.check_bf16()?;
        }
        let (file, ptx) = file_of(name);
        let module = format!("functional_{file}_{element:?}");
        let ptx = ptx[element as usize];
        let function = self.device.get_or_load_custom_func(name, &module, ptx)?;
        let function = function.into_cuda_function();
        functions.insert(kernel, function.clone());
        Ok(function)
    }

    /// cuDNN would say less of a GPU without arithmetic of bf16.
    fn check_bf16(&self) -> Result<()> {
        let context = self.stream.context();
        match context.compute_capability().map_err(Error::wrap)? {
            (8.., _) => Ok(()),
            (major, minor) => bail!(
                "bf16 needs a GPU of compute capability 8.0 or higher, cuda({}) has {major}.{minor}",
                context.ordinal()
            ),
        }
    }

    /// Calls `f` with the address of `table` on the GPU.
    pub fn with_table<R>(&self, table: Vec<u64>, f: impl FnOnce(u64) -> Result<R>) -> Result<R> {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if !tables.contains_key(&table) {
            if tables.len() >= TABLES {
                tables.clear();
            }
            let there = self.stream.clone_htod(&table).map_err(Error::wrap)?;
            tables.insert(table.clone(), there);
        }
        let (address, _reading) = tables[&table].device_ptr(&self.stream);
        f(address)
    }

    /// Launches a kernel through [`launch!`], for elements: `n` is how many, at least one.
    pub fn elements(n: usize) -> Result<LaunchConfig> {
        match u32::try_from(n) {
            Ok(n) => Ok(LaunchConfig {
                grid_dim: (n.div_ceil(THREADS), 1, 1),
                block_dim: (THREADS, 1, 1),
                shared_mem_bytes: 0,
            }),
            Err(_) => bail!("{n} elements are too many for one kernel; make the batch smaller"),
        }
    }

    pub fn fill(&self, to: Floats, value: f32) -> Result<()> {
        launch!(self, to.kernel("fill"), elements to.len; to.len, to, value)
    }

    pub fn copy(&self, from: Floats, to: Floats) -> Result<()> {
        self.put(from, to, false)
    }

    /// `to = from`, or `to += from`; rounded or widened where they are of different types.
    pub fn put(&self, from: Floats, to: Floats, add: bool) -> Result<()> {
        let name = between(from, to, ["copy", "narrow", "widen"]);
        launch!(self, name, elements to.len; to.len, from, to, add)
    }
}

/// Memory for `len` floats or bytes, with any contents.
///
/// # Errors
/// Where the GPU has no memory left, even after what is free here went back.
pub(crate) fn alloc<T: DeviceRepr>(stream: &Arc<CudaStream>, len: usize) -> Result<CudaSlice<T>> {
    // Safety: all callers write the memory before they read it; any bits are valid floats and bytes.
    let alloc = || unsafe { stream.alloc::<T>(len) };
    alloc()
        .or_else(|_| {
            give_back();
            alloc()
        })
        .map_err(|error| no_memory(stream, len * size_of::<T>(), error))
}

/// Gives the driver what is free on all streams of the GPU that this thread used last, and takes it from the driver's
/// pool: libraries allocate beside the pool.
pub(crate) fn give_back() {
    // a copy, so that the lock is not held here: another thread may need it for this GPU to go on
    let streams = STREAMS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    if streams.is_empty() {
        return; // there may be no driver to ask
    }
    let Ok(Some(last)) = result::ctx::get_current() else {
        return;
    };
    let streams = streams.iter().map(|(_, stream)| stream);
    let of_gpu = streams.filter(|stream| stream.stream.context().cu_ctx() == last);
    let of_gpu: Vec<_> = of_gpu.collect();
    of_gpu.iter().for_each(|stream| stream.free.clear());
    if let Some(context) = of_gpu.first().map(|stream| stream.stream.context()) {
        // memory that was given back is there when the GPU comes to it; where this fails, there is no more than before
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

/// What a reader can act on: which GPU, how much was wanted and how much there is.
fn no_memory(stream: &CudaStream, bytes: usize, error: DriverError) -> Error {
    if error.0 != sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY {
        return Error::wrap(error);
    }
    let context = stream.context();
    let (free, total) = context.mem_get_info().unwrap_or_default();
    let mib = |bytes: usize| bytes / (1 << 20);
    Error::Msg(format!(
        "out of memory on cuda({}): {} MiB more were needed, {} of {} MiB are free",
        context.ordinal(),
        mib(bytes).max(1),
        mib(free),
        mib(total)
    ))
}

/// One of three kernels, which keep the type, make bf16 of f32, and f32 of bf16.
pub(crate) fn between(from: Floats, to: Floats, names: [&'static str; 3]) -> Kernel {
    let [keeps, narrows, widens] = names;
    match (from.element, to.element) {
        (Element::F32, Element::Bf16) => to.kernel(narrows),
        (Element::Bf16, Element::F32) => from.kernel(widens),
        _ => to.kernel(keeps),
    }
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

/// What a kernel takes: of 32 bits, an address, or a struct that looks the same in both languages.
pub(crate) trait Argument {
    type Raw: DeviceRepr;

    fn raw(&self) -> Result<Self::Raw>;
}

/// The address of something else than floats.
pub(crate) struct Address(pub u64);

impl Argument for Address {
    type Raw = u64;

    fn raw(&self) -> Result<u64> {
        Ok(self.0)
    }
}

impl Argument for Floats {
    type Raw = u64;

    fn raw(&self) -> Result<u64> {
        Ok(self.address)
    }
}

impl Argument for Option<Floats> {
    type Raw = u64;

    fn raw(&self) -> Result<u64> {
        Ok(self.map_or(0, |floats| floats.address))
    }
}

impl Argument for usize {
    type Raw = i32;

    fn raw(&self) -> Result<i32> {
        match i32::try_from(*self) {
            Ok(n) => Ok(n),
            Err(_) => bail!("a size of {self} is too large for one kernel; make the batch smaller"),
        }
    }
}

impl Argument for bool {
    type Raw = i32;

    fn raw(&self) -> Result<i32> {
        Ok(i32::from(*self))
    }
}

impl Argument for f32 {
    type Raw = f32;

    fn raw(&self) -> Result<f32> {
        Ok(*self)
    }
}

/// Launches a kernel: `launch!(stream, y.kernel("relu"), elements n; n, x, y)` for n elements, or
/// `launch!(stream, "combine", grid, block; partial, to, …)`. Nothing is launched for no elements.
macro_rules! launch {
    ($stream:expr, $name:expr, elements $n:expr; $($argument:expr),+ $(,)?) => {
        match $n {
            0 => Ok(()),
            n => $crate::cuda::stream::launch!(@ $stream, $name,
                $crate::cuda::stream::Stream::elements(n)?; $($argument),+),
        }
    };
    ($stream:expr, $name:expr, $grid:expr, $block:expr; $($argument:expr),+ $(,)?) => {
        $crate::cuda::stream::launch!(@ $stream, $name,
            candle_core::cuda_backend::cudarc::driver::LaunchConfig {
                grid_dim: $grid,
                block_dim: $block,
                shared_mem_bytes: 0,
            }; $($argument),+)
    };
    (@ $stream:expr, $name:expr, $config:expr; $($argument:expr),+) => {{
        use candle_core::cuda_backend::cudarc::driver::PushKernelArg;
        let config = $config;
        let function = $stream.function($name)?;
        let mut launch = $stream.cuda().launch_builder(&function);
        $(
            let argument = $crate::cuda::stream::Argument::raw(&$argument)?;
            launch.arg(&argument);
        )+
        // Safety: the arguments are the kernel's, in its order and of its types; the addresses are
        // those of memory that this stream may use, as long as the kernel says.
        let launched = unsafe { launch.launch(config) };
        launched.map(|_| ()).map_err(candle_core::Error::wrap)
    }};
}
pub(crate) use launch;
