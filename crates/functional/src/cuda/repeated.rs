//! Work as a CUDA graph. What the graph reads and writes has to stay where it is, so the work has memory of its own
//! from its first call on, and is recorded once it finds there all that it wants.

use super::stream::{Memory, Stream};
use candle_core::cuda_backend::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::sys::{
    self, CUDA_MEMCPY3D, CUgraph, CUgraphInstantiate_flags, CUgraphNode, CUgraphNodeType,
    CUmemorytype, CUstreamCaptureMode,
};
use candle_core::cuda_backend::cudarc::driver::{CudaGraph, DriverError};
use candle_core::{Error, Result, bail};
use std::mem::{self, MaybeUninit};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;

/// After so many calls it ought to be known which memory the work wants.
const TRIES: usize = 10;

pub(crate) struct Repeated {
    device: CudaDevice,
    state: State,
    memory: Memory,
    calls: usize,
}

enum State {
    /// It is called, because it may want more memory.
    Called,
    /// The last call found all memory that it wanted: the next is recorded.
    Settled,
    Recorded(CudaGraph),
    Failed,
}

impl Repeated {
    pub fn new(device: &CudaDevice) -> Self {
        Self {
            device: device.clone(),
            state: State::Called,
            memory: Memory::default(),
            calls: 0,
        }
    }

    pub fn is_recorded(&self) -> bool {
        matches!(self.state, State::Recorded(_))
    }

    /// As [`crate::Repeated::run`].
    pub fn run(&mut self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        match &self.state {
            State::Recorded(graph) => graph.launch().map_err(Error::wrap),
            State::Failed => bail!("an earlier call failed to record this work as a CUDA graph"),
            State::Settled => self.record(work),
            State::Called => self.call(work),
        }
    }

    fn call(&mut self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.device.is_event_tracking() {
            bail!("a CUDA graph cannot contain candle's events: call functional::one_stream before")
        }
        let stream = Stream::of(&self.device)?;
        let before = self.memory.pieces();
        self.with_memory(&stream, work)?;
        self.calls += 1;
        if self.memory.lent() > 0 {
            bail!("work for a CUDA graph must not keep a tensor that it allocated: drop it")
        }
        if self.memory.pieces() == before {
            self.state = State::Settled;
        } else if self.calls > TRIES {
            bail!("work for a CUDA graph must allocate the same memory in each call")
        }
        Ok(())
    }

    /// Records the work, and does it.
    fn record(&mut self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let stream = Stream::of(&self.device)?;
        let before = self.memory.pieces();
        self.state = State::Failed; // until it is known that it did not
        let graph = self.with_memory(&stream, || captured(&stream, work));
        let found_all = self.memory.pieces() == before && self.memory.lent() == 0;
        if graph.is_err() || !found_all {
            // a part of it may be memory of a graph that there will never be
            mem::forget(mem::take(&mut self.memory));
        }
        let graph =
            graph.map_err(|error| error.context("the work cannot be recorded as a CUDA graph"))?;
        if !found_all {
            bail!("work for a CUDA graph must allocate the same memory in each call")
        }
        graph.launch().map_err(Error::wrap)?;
        self.state = State::Recorded(graph);
        Ok(())
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
    // takes a pending error: `end_capture` would return it and not end the capture
    let unseen = cuda.context().check_err();
    let graph = cuda.end_capture(CUgraphInstantiate_flags(0));
    done.unwrap_or_else(|panic| resume_unwind(panic))?;
    unseen.map_err(Error::wrap)?;
    let Some(graph) = graph.map_err(Error::wrap)? else {
        bail!("nothing was captured")
    };
    check(graph.cu_graph())?;
    Ok(graph)
}

/// An error where the graph would read or write the host's memory, or keeps memory of its own: the driver lets both
/// pass.
fn check(graph: CUgraph) -> Result<()> {
    let mut kept = 0;
    for node in nodes(graph).map_err(Error::wrap)? {
        match kind(node).map_err(Error::wrap)? {
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_HOST => bail!("the work waits for the host"),
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY
                if !is_on_gpus(node).map_err(Error::wrap)? =>
            {
                bail!("the work copies between the host and the GPU")
            }
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC => kept += 1,
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE => kept -= 1,
            _ => {}
        }
    }
    match kept {
        0 => Ok(()),
        _ => bail!("the work must not keep a tensor that it allocated: drop it"),
    }
}

fn nodes(graph: CUgraph) -> std::result::Result<Vec<CUgraphNode>, DriverError> {
    let mut count = 0;
    // Safety: the graph exists; without a place for the nodes only their number is written.
    unsafe { sys::cuGraphGetNodes(graph, ptr::null_mut(), &mut count) }.result()?;
    let mut nodes = vec![ptr::null_mut(); count];
    // Safety: there is room for so many nodes.
    unsafe { sys::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count) }.result()?;
    nodes.truncate(count);
    Ok(nodes)
}

fn kind(node: CUgraphNode) -> std::result::Result<CUgraphNodeType, DriverError> {
    let mut kind = CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
    // Safety: the node exists, and the place is that of a type.
    unsafe { sys::cuGraphNodeGetType(node, &mut kind) }.result()?;
    Ok(kind)
}

/// Whether a copy is one among GPUs.
fn is_on_gpus(copy: CUgraphNode) -> std::result::Result<bool, DriverError> {
    let mut params = MaybeUninit::<CUDA_MEMCPY3D>::zeroed();
    // Safety: the node exists and is a copy.
    unsafe { sys::cuGraphMemcpyNodeGetParams(copy, params.as_mut_ptr()) }.result()?;
    // Safety: they have been written.
    let params = unsafe { params.assume_init() };
    let on_a_gpu = CUmemorytype::CU_MEMORYTYPE_DEVICE;
    Ok(params.srcMemoryType == on_a_gpu && params.dstMemoryType == on_a_gpu)
}
