//! A replica's stream on its GPU, with everything that belongs to it: our kernels, the handles of the
//! libraries, the memory between operations.

use super::alloc::{Pool, pool};
use super::cudnn::Cudnn;
use super::floats::{Element, Floats, Kernel};
use super::launch::{between, launch};
use candle_core::cuda_backend::cudarc::driver::{CudaFunction, CudaSlice, CudaStream, DevicePtr};
use candle_core::cuda_backend::{CudaDevice, DeviceId};
use candle_core::{Device, Error, Result, bail};
use devices::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// A file of kernels, compiled for each type that memory may have.
macro_rules! compiled {
    ($file:literal) => {
        [
            include_str!(concat!(env!("OUT_DIR"), "/", $file, "_f32.ptx")),
            include_str!(concat!(env!("OUT_DIR"), "/", $file, "_bf16.ptx")),
        ]
    };
}

/// The file of a kernel: its name, and the file compiled for each type.
fn file_of(kernel: &str) -> (&'static str, [&'static str; 2]) {
    match kernel.split(char::is_numeric).next() {
        Some("one_channel") => ("one_channel", compiled!("one_channel")),
        _ if kernel.starts_with("norm_") => ("norm", compiled!("norm")),
        _ => ("elementwise", compiled!("elementwise")),
    }
}

pub(crate) struct Stream {
    device: CudaDevice,
    stream: Arc<CudaStream>,
    /// The kernels that were used. A file is loaded for its first kernel: the driver may translate it for seconds.
    functions: Mutex<HashMap<Kernel, CudaFunction>>,
    pub free: Pool,
    cudnn: Mutex<Cudnn>,
    /// Tables of addresses that kernels were given, by their contents.
    tables: Mutex<HashMap<Vec<u64>, CudaSlice<u64>>>,
}

/// The most tables in the cache. A table is the same in every step, unless the tensors are new in every step.
const TABLES: usize = 64;

/// One for each device that was opened, as long as the process lives.
static STREAMS: Mutex<Vec<(DeviceId, Arc<Stream>)>> = Mutex::new(Vec::new());

impl Stream {
    /// The stream of `device`, which is made when it is asked for first.
    ///
    /// # Errors
    /// Where the kernels cannot be loaded, or cuDNN cannot be used.
    pub fn of(device: &CudaDevice) -> Result<Arc<Self>> {
        let mut streams = lock(&STREAMS);
        if let Some((_, stream)) = streams.iter().find(|(id, _)| *id == device.id()) {
            stream.bind()?;
            return Ok(stream.clone());
        }
        let stream = Arc::new(Self::new(device)?);
        streams.push((device.id(), stream.clone()));
        Ok(stream)
    }

    fn new(device: &CudaDevice) -> Result<Self> {
        devices::without_events(Device::Cuda(device.clone())); // a program may have opened it
        let stream = device.cuda_stream();
        stream.context().bind_to_thread().map_err(Error::wrap)?;
        let stream = Self {
            device: device.clone(),
            cudnn: Mutex::new(Cudnn::new(&stream)?),
            free: pool(&stream)?,
            stream,
            functions: Mutex::default(),
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
        lock(&self.cudnn)
    }

    pub fn function(&self, kernel: impl Into<Kernel>) -> Result<CudaFunction> {
        let kernel @ Kernel(element, name) = kernel.into();
        let mut functions = lock(&self.functions);
        if let Some(function) = functions.get(&kernel) {
            return Ok(function.clone());
        }
        if element == Element::Bf16 {
            self.check_bf16()?;
        }
        let (file, ptx) = file_of(name);
        let module = format!("functional_{file}_{element:?}");
        let ptx = ptx[element as usize];
        let function = self
            .device
            .get_or_load_custom_func(name, &module, ptx)?
            .into_cuda_function();
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
        let mut tables = lock(&self.tables);
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

    pub fn fill(&self, to: Floats, value: f32) -> Result<()> {
        launch!(self, to.kernel("fill"), wide to.len; to.len, to, value)
    }

    pub fn copy(&self, from: Floats, to: Floats) -> Result<()> {
        self.put(from, to, false)
    }

    /// `to = from`, or `to += from`; rounded or widened where they are of different types.
    pub fn put(&self, from: Floats, to: Floats, add: bool) -> Result<()> {
        let name = between(from, to, ["copy", "narrow", "widen"]);
        launch!(self, name, wide to.len; to.len, from, to, add)
    }
}
