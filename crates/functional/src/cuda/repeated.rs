//! Work as a CUDA graph. What the graph reads and writes has to stay where it is, so the work has memory of its own from
//! its first call on, and is recorded once it finds there all that it wants.

use super::stream::{Memory, Stream};
use candle_core::cuda_backend::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::CudaGraph;
use candle_core::cuda_backend::cudarc::driver::sys::{
    CUgraphInstantiate_flags, CUstreamCaptureMode,
};
use candle_core::{Error, Result, bail};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// After so many calls it ought to be known which memory the work wants.
const TRIES: usize = 10;

pub(crate) struct Repeated {
    device: CudaDevice,
    // before the memory that it uses
    graph: Option<CudaGraph>,
    memory: Memory,
    calls: usize,
    /// The last call found all memory that it wanted.
    settled: bool,
}

impl Repeated {
    pub fn new(device: &CudaDevice) -> Self {
        Self {
            device: device.clone(),
            graph: None,
            memory: Memory::default(),
            calls: 0,
            settled: false,
        }
    }

    pub fn is_recorded(&self) -> bool {
        self.graph.is_some()
    }

    /// As [`crate::Repeated::run`].
    pub fn run(&mut self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        if let Some(graph) = &self.graph {
            return graph.launch().map_err(Error::wrap);
        }
        let stream = Stream::of(&self.device)?;
        let (before, record) = (self.memory.pieces(), self.settled);
        let done = self.with_memory(&stream, || match record {
            true => captured(&stream, work).map(Some),
            false => work().map(|()| None),
        });
        let graph = done.map_err(|error| match record {
            true => error.context("the work cannot be recorded as a CUDA graph"),
            false => error,
        })?;
        self.settled = self.memory.pieces() == before;
        self.calls += 1;
        if self.memory.lent() > 0 {
            bail!("work for a CUDA graph keeps a tensor that it made")
        }
        if !self.settled && (record || self.calls > TRIES) {
            bail!("work for a CUDA graph wants other memory each time")
        }
        self.graph = graph;
        match &self.graph {
            Some(graph) => graph.launch().map_err(Error::wrap), // captured, it was not done
            None => Ok(()),
        }
    }

    /// Calls `f` while the stream's memory is that of the work.
    fn with_memory<R>(&mut self, stream: &Stream, f: impl FnOnce() -> R) -> R {
        stream.exchange(&mut self.memory);
        let done = catch_unwind(AssertUnwindSafe(f));
        stream.exchange(&mut self.memory);
        done.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// What `work` gives the stream, as a graph: it is not done.
fn captured(stream: &Stream, work: impl FnOnce() -> Result<()>) -> Result<CudaGraph> {
    let cuda = stream.cuda();
    cuda.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        .map_err(Error::wrap)?;
    let done = catch_unwind(AssertUnwindSafe(work));
    let graph = cuda.end_capture(CUgraphInstantiate_flags(0));
    done.unwrap_or_else(|panic| resume_unwind(panic))?;
    match graph.map_err(Error::wrap)? {
        Some(graph) => Ok(graph),
        None => bail!("nothing was captured"),
    }
}
