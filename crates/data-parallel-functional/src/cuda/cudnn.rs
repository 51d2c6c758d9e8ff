//! cuDNN's convolutions. Each shape has its descriptors and one algorithm for each direction, which is chosen once.
//!
//! cuDNN orders its algorithms by the speed that it expects. We time the first few of them once, and all replicas use
//! the fastest from then on. If algorithms have to be deterministic, we time none and use cuDNN's first. The first
//! replica chooses for all, because algorithms round differently. Checkpoints keep the choice
//! (`functional::algorithms`).
//!
//! It only writes results: cuDNN does not promise that an algorithm can also add to what is there. So a gradient that
//! is added is computed into a part first.

use super::alloc::alloc;
use super::cudnn_descriptors::{Descriptors, convolution_descriptor, failed};
use super::floats::{Element, Floats};
use crate::descriptors::convolution::Geometry;
use crate::settings::algorithms::algorithm;
use crate::settings::precision::{Precision, arithmetic};
use candle_core::cuda_backend::cudarc::cudnn::{CudnnError, result, sys};
use candle_core::cuda_backend::cudarc::driver::result::stream::launch_host_function;
use candle_core::cuda_backend::cudarc::driver::sys::CUevent_flags;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use candle_core::{Error, Result, bail};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use sys::cudnnConvolutionBwdDataAlgo_t as DataAlgorithm;
use sys::cudnnConvolutionBwdFilterAlgo_t as FilterAlgorithm;
use sys::cudnnConvolutionFwdAlgo_t as ForwardAlgorithm;

/// The most workspace that an algorithm may need. The fast algorithms need less.
const MAX_WORKSPACE: usize = 1 << 30;
/// At least as many as there are algorithms of any kind.
const CANDIDATES: usize = 16;
/// The algorithms that are timed, and the runs of each after a first one.
const TIMED: (usize, usize) = (8, 10);
/// The time for which the stream waits while the host enqueues these runs. Without it, runs of a small convolution would
/// be timed at the host's speed.
const HEAD_START: Duration = Duration::from_millis(2);

extern "C" fn wait(_: *mut c_void) {
    sleep(HEAD_START);
}

/// cuDNN on one stream, with what was chosen for each shape. All of it lives as long as the process.
pub(crate) struct Cudnn {
    handle: sys::cudnnHandle_t,
    stream: Arc<CudaStream>,
    shapes: HashMap<(Geometry, Precision, bool), Shape>,
    /// Memory that the next operation on the stream may use too, and its address.
    workspace: Option<(CudaSlice<u8>, u64)>,
}

// Safety: cuDNN's handles and descriptors may move between threads; that one thread uses them at a time
// is seen to by the lock around this.
unsafe impl Send for Cudnn {}

/// The descriptors of one shape, and its algorithms for each direction that was needed, best first.
struct Shape {
    descriptors: Descriptors,
    forward: Option<Vec<Choice<ForwardAlgorithm>>>,
    backward_x: Option<Vec<Choice<DataAlgorithm>>>,
    backward_weight: Option<Vec<Choice<FilterAlgorithm>>>,
}

/// A convolution in one direction.
struct Problem<'a> {
    direction: &'static str,
    geometry: &'a Geometry,
    precision: Precision,
}

/// An algorithm, the convolution's descriptor with the arithmetic that it was chosen for, and the bytes
/// of workspace that it takes.
#[derive(Debug, Clone, Copy)]
struct Choice<A> {
    algorithm: A,
    arithmetic: sys::cudnnMathType_t,
    convolution: sys::cudnnConvolutionDescriptor_t,
    workspace: usize,
}

impl<A: fmt::Debug> Choice<A> {
    fn name(&self) -> String {
        format!("{:?}, {:?}", self.algorithm, self.arithmetic)
    }
}

/// An algorithm that cuDNN offers.
#[derive(Debug)]
struct Candidate<A> {
    algorithm: A,
    works: bool,
    deterministic: bool,
    arithmetic: sys::cudnnMathType_t,
    workspace: usize,
}

/// Asks cuDNN for the algorithms of a convolution. cuDNN has one function for each direction; they differ in types.
macro_rules! candidates {
    ($ask:path, $handle:expr, $($descriptor:expr),+) => {{
        // Safety: plain numbers, for which zeros are valid.
        let mut answers = [unsafe { std::mem::zeroed() }; CANDIDATES];
        let mut count: c_int = 0;
        // Safety: the descriptors exist, and there is room for as many answers as are asked for.
        unsafe {
            $ask($handle, $($descriptor),+, CANDIDATES as c_int, &mut count, answers.as_mut_ptr())
        }
        .map_err(failed)?;
        let answers = answers.into_iter().take(count as usize);
        let candidate = answers.map(|answer| Candidate {
            algorithm: answer.algo,
            works: answer.status == sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS,
            deterministic: answer.determinism == sys::cudnnDeterminism_t::CUDNN_DETERMINISTIC,
            arithmetic: answer.mathType,
            workspace: answer.memory,
        });
        candidate.collect::<Vec<_>>()
    }};
}

/// Computes a convolution in one direction: the field of `Shape` for that direction, cuDNN's functions that list the
/// algorithms and that launch one, the two tensors that it reads and the one that it writes, each with its descriptor.
macro_rules! convolution {
    ($cudnn:expr, $g:expr, $direction:ident, $ask:path, $launch:path,
     [$a:expr, $of_a:ident], [$b:expr, $of_b:ident] => [$to:expr, $of_to:ident]) => {{
        let a = $a;
        let b = $b;
        let to = $to;
        $cudnn.run(
            Problem {
                direction: stringify!($direction),
                geometry: $g,
                precision: precision_of([a, b, to]),
            },
            to,
            |shape| &mut shape.$direction,
            |handle, d, conv| Ok(candidates!($ask, handle, d.$of_a, d.$of_b, conv, d.$of_to)),
            &|handle, d, choice, (workspace, size), to| {
                // Safety: the descriptors tell the sizes of the memory behind the addresses.
                unsafe {
                    $launch(
                        handle,
                        scale(&1.),
                        d.$of_a,
                        a.address as *const c_void,
                        d.$of_b,
                        b.address as *const c_void,
                        choice.convolution,
                        choice.algorithm,
                        workspace,
                        size,
                        scale(&0.),
                        d.$of_to,
                        to as *mut c_void,
                    )
                }
            },
        )
    }};
}

/// One launch: the handle, the shape's descriptors, the algorithm, the workspace with its size, and the place of the
/// result.
type Launch<'a, A> = dyn Fn(
        sys::cudnnHandle_t,
        &Descriptors,
        &Choice<A>,
        (*mut c_void, usize),
        u64,
    ) -> std::result::Result<(), CudnnError>
    + 'a;

impl Cudnn {
    pub fn new(stream: &Arc<CudaStream>) -> Result<Self> {
        let handle = result::create_handle().map_err(failed)?;
        // Safety: both exist, and the stream lives as long as this.
        unsafe { result::set_stream(handle, stream.cu_stream().cast()) }.map_err(failed)?;
        Ok(Self {
            handle,
            stream: stream.clone(),
            shapes: HashMap::new(),
            workspace: None,
        })
    }

    /// `y` from `x` and the packed `weight`.
    pub fn forward(&mut self, g: &Geometry, x: Floats, weight: Floats, y: Floats) -> Result<()> {
        if y.len == 0 {
            return Ok(());
        }
        convolution!(
            self, g, forward,
            result::get_convolution_forward_algorithm, result::convolution_forward,
            [x, x], [weight, weight] => [y, y]
        )
    }

    /// The gradient of x.
    pub fn backward_x(
        &mut self,
        g: &Geometry,
        weight: Floats,
        dy: Floats,
        dx: Floats,
    ) -> Result<()> {
        if dx.len == 0 {
            return Ok(());
        }
        convolution!(
            self, g, backward_x,
            result::get_convolution_backward_data_algorithm, result::convolution_backward_data,
            [weight, weight], [dy, y] => [dx, x]
        )
    }

    /// The gradient of the packed weight. The batch has at least one example.
    pub fn backward_weight(
        &mut self,
        g: &Geometry,
        x: Floats,
        dy: Floats,
        dw: Floats,
    ) -> Result<()> {
        convolution!(
            self, g, backward_weight,
            result::get_convolution_backward_filter_algorithm, result::convolution_backward_filter,
            [x, x], [dy, y] => [dw, weight]
        )
    }

    /// Launches with the best algorithm that has its workspace and does not refuse. One that refuses is not tried again.
    fn run<A: Copy + fmt::Debug>(
        &mut self,
        problem: Problem<'_>,
        to: Floats,
        of: impl Fn(&mut Shape) -> &mut Option<Vec<Choice<A>>>,
        ask: impl Fn(
            sys::cudnnHandle_t,
            &Descriptors,
            sys::cudnnConvolutionDescriptor_t,
        ) -> Result<Vec<Candidate<A>>>,
        launch: &Launch<'_, A>,
    ) -> Result<()> {
        let Problem {
            direction,
            geometry: g,
            precision,
        } = problem;
        let handle = self.handle;
        let shape = self.shape(g, precision)?;
        let descriptors = shape.descriptors;
        if of(shape).is_none() {
            let candidates = ask(handle, &descriptors, convolution_descriptor(g, precision)?)
                .map_err(|error| error.context(no_algorithm(g)))?;
            let mut choices = choices(g, precision, candidates)?;
            // in deterministic mode each GPU takes its first: times differ from run to run, and so does the GPU that is here first
            if choices.len() > 1 && !arithmetic().deterministic {
                let what = format!("{direction}, {precision:?}, deterministic: false, {g:?}");
                let chosen = algorithm(what, || self.fastest(&descriptors, &choices, to, launch));
                if let Some(i) = choices.iter().position(|c| c.name() == chosen) {
                    choices[..=i].rotate_right(1);
                }
            }
            *of(self.shape(g, precision)?) = Some(choices);
        }
        let mut error = Error::Msg("there is none".to_owned());
        let mut next = 0;
        loop {
            let choices = of(self.shape(g, precision)?).get_or_insert_default();
            let Some(choice) = choices.get(next).copied() else {
                return Err(error.context(no_algorithm(g)));
            };
            match self.workspace(choice.workspace) {
                Err(no_memory) => {
                    next += 1; // there may be memory the next time
                    error = no_memory;
                }
                Ok(workspace) => {
                    match launch(handle, &descriptors, &choice, workspace, to.address) {
                        Ok(()) => return Ok(()),
                        Err(refused) => {
                            let choices = of(self.shape(g, precision)?);
                            choices.get_or_insert_default().remove(next);
                            error = failed(refused).context(format!("{:?}", choice.algorithm));
                        }
                    }
                }
            }
        }
    }

    /// The name of the fastest of the first choices, by the time that they take. Where there is no memory for a result
    /// that counts for nothing, or none works, it is the first.
    fn fastest<A: Copy + fmt::Debug>(
        &mut self,
        descriptors: &Descriptors,
        choices: &[Choice<A>],
        to: Floats,
        launch: &Launch<'_, A>,
    ) -> String {
        let handle = self.handle;
        let stream = self.stream.clone();
        let mut fastest = (f32::INFINITY, choices[0].name());
        let Ok(result) = alloc::<u8>(&stream, to.len * to.element.bytes()) else {
            return fastest.1;
        };
        let to = result.device_ptr(&stream).0;
        let (choices_timed, times) = TIMED;
        for choice in choices.iter().take(choices_timed) {
            let mut took = || {
                let workspace = self.workspace(choice.workspace).ok()?;
                let run = || launch(handle, descriptors, choice, workspace, to).ok();
                run()?;
                // Safety: the function gets no argument.
                unsafe { launch_host_function(stream.cu_stream(), wait, ptr::null_mut()) }.ok()?;
                let timed = Some(CUevent_flags::CU_EVENT_DEFAULT);
                let start = stream.record_event(timed).ok()?;
                (0..times).try_for_each(|_| run())?;
                start.elapsed_ms(&stream.record_event(timed).ok()?).ok()
            };
            if let Some(ms) = took().filter(|ms| *ms < fastest.0) {
                fastest = (ms, choice.name());
            }
        }
        fastest.1
    }

    /// The descriptors and algorithms of a shape.
    fn shape(&mut self, g: &Geometry, precision: Precision) -> Result<&mut Shape> {
        let key = (*g, precision, arithmetic().deterministic);
        Ok(match self.shapes.entry(key) {
            Entry::Occupied(shape) => shape.into_mut(),
            Entry::Vacant(place) => place.insert(Shape::new(g, precision)?),
        })
    }

    /// At least `size` bytes.
    fn workspace(&mut self, size: usize) -> Result<(*mut c_void, usize)> {
        if size == 0 {
            return Ok((ptr::null_mut(), 0));
        }
        let large = |w: &(CudaSlice<u8>, u64)| w.0.num_bytes() >= size;
        if !self.workspace.as_ref().is_some_and(large) {
            self.workspace = None;
            let memory = alloc::<u8>(&self.stream, size)?;
            let address = memory.device_ptr(&self.stream).0;
            self.workspace = Some((memory, address));
        }
        let address = self.workspace.as_ref().map_or(0, |w| w.1);
        Ok((address as *mut c_void, size))
    }
}

impl Shape {
    fn new(g: &Geometry, precision: Precision) -> Result<Self> {
        Ok(Self {
            descriptors: Descriptors::new(g, precision)?,
            forward: None,
            backward_x: None,
            backward_weight: None,
        })
    }
}

/// The precision of a product of tensors of one type: bf16 for bf16, and for f32 the one that is set now.
fn precision_of(all: [Floats; 3]) -> Precision {
    let [element, others @ ..] = all.map(|floats| floats.element);
    assert_eq!(others, [element; 2], "tensors of one convolution");
    match (element, arithmetic().precision) {
        (Element::Bf16, _) => Precision::Bf16,
        (Element::F32, Precision::Bf16) => Precision::Tf32, // images, or what is from before
        (Element::F32, precision) => precision,
    }
}

/// The candidates that may be used, in cuDNN's order, the fastest first.
fn choices<A: Copy + fmt::Debug>(
    g: &Geometry,
    precision: Precision,
    candidates: Vec<Candidate<A>>,
) -> Result<Vec<Choice<A>>> {
    let exact = precision == Precision::F32;
    let fits = |c: &&Candidate<A>| {
        c.works
            && c.workspace <= MAX_WORKSPACE
            && (c.deterministic || !arithmetic().deterministic)
            && (!exact || !rounds(c.arithmetic))
    };
    let choice = |c: &Candidate<A>| -> Result<Choice<A>> {
        let convolution = convolution_descriptor(g, precision)?;
        if !exact {
            // Safety: the descriptor was made just now.
            unsafe { result::set_convolution_math_type(convolution, c.arithmetic) }
                .map_err(failed)?;
        }
        Ok(Choice {
            algorithm: c.algorithm,
            arithmetic: c.arithmetic,
            convolution,
            workspace: c.workspace,
        })
    };
    let choices = candidates
        .iter()
        .filter(fits)
        .map(choice)
        .collect::<Result<Vec<_>>>()?;
    if choices.is_empty() {
        bail!("{}; it offers {candidates:?}", no_algorithm(g))
    }
    Ok(choices)
}

/// The beginning of an error.
fn no_algorithm(g: &Geometry) -> String {
    let kh = g.kernel_height;
    let kw = g.kernel_width;
    let mend = match g.padding {
        padding if padding < kh.min(kw) => String::new(),
        padding => format!(
            "; a padding of {padding} is not smaller than the kernel, {kh} × {kw}: choose a smaller padding"
        ),
    };
    format!("cuDNN has no algorithm for {g:?}{mend}")
}

/// True if inputs are rounded for tensor cores. The arithmetic called default does not round, where the descriptor
/// asks for multiply-adds of f32.
fn rounds(arithmetic: sys::cudnnMathType_t) -> bool {
    use sys::cudnnMathType_t::*;
    !matches!(arithmetic, CUDNN_FMA_MATH | CUDNN_DEFAULT_MATH)
}

fn scale(factor: &f32) -> *const c_void {
    ptr::from_ref(factor).cast()
}

#[cfg(test)]
mod tests {
    use super::super::memory::Block;
    use super::super::stream::Stream;
    use super::*;
    use crate::settings::algorithms::{algorithms, set_algorithms};
    use crate::settings::precision::{set_deterministic, set_precision};
    use candle_core::Device;
    use std::collections::BTreeSet;

    fn ones(stream: &Stream, len: usize) -> Block {
        let block = Block::new(stream, len).unwrap();
        stream.fill(block.floats(), 1.).unwrap();
        block
    }

    /// Replicas on two GPUs, which are offered algorithms in another order, take the same one for each shape. One of those
    /// of an earlier run is taken too. Where cuDNN offers one alone, as its documents say for f32 in NHWC, there is
    /// nothing to choose, and the test only shows that both take it.
    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn on_a_gpu_the_first_replica_chooses_for_all() {
        set_precision(Precision::F32);
        set_deterministic(false);
        let gpu = |i| Device::new_cuda_with_stream(i);
        let devices = [gpu(0).unwrap(), gpu(1).or_else(|_| gpu(0)).unwrap()];
        let replicas = devices.map(|gpu| Stream::of(gpu.as_cuda_device().unwrap()).unwrap());
        let first = |stream: &Stream, g: &Geometry| {
            stream.bind().unwrap();
            let lens = [g.batch * 256 * 8, 8 * 8 * 9, g.batch * 256 * 8];
            let [x, weight, y] = lens.map(|len| ones(stream, len));
            let mut cudnn = stream.cudnn();
            cudnn
                .forward(g, x.floats(), weight.floats(), y.floats())
                .unwrap();
            let shape = cudnn.shape(g, Precision::F32).unwrap();
            let names = shape.forward.iter().flatten().map(Choice::name);
            names.collect::<Vec<_>>()
        };
        for batch in 1..=8 {
            let g = Geometry::new(&[batch, 16, 16, 8], &[8, 8, 3, 3], None, 1, 1).unwrap();
            let [ours, theirs] = [0, 1].map(|i| first(&replicas[i], &g));
            assert_eq!(ours[0], theirs[0]);
            if ours.len() == 1 {
                continue;
            }
            let of_run = algorithms();
            let what = |g: &Geometry| format!("forward, F32, deterministic: false, {g:?}");
            let chosen = of_run.iter().find(|(name, _)| *name == what(&g));
            assert_eq!(chosen.unwrap().1, ours[0]);
            let mut others = ours[1..].iter();
            let other = others.find(|by| !by.contains("WINOGRAD")); // which may refuse when it is called
            let Some(other) = other else {
                continue;
            };
            let g = Geometry {
                batch: batch + 8,
                ..g
            };
            set_algorithms(&[(what(&g), other.clone())]);
            assert_eq!(first(&replicas[0], &g)[0], *other);
        }
    }

    /// All memory of the GPU. A driver gives it in steps and keeps some, so smaller and smaller sizes are tried.
    fn all_memory(stream: &Stream) -> Vec<CudaSlice<u8>> {
        let mut taken = Vec::new();
        let mut size = stream.cuda().context().mem_get_info().unwrap().0;
        while size > 0 {
            match alloc(stream.cuda(), size) {
                Ok(memory) => taken.push(memory),
                Err(_) => size /= 2,
            }
        }
        taken
    }

    /// An algorithm whose workspace did not fit once is known the next time. Where cuDNN offers none with a workspace, or
    /// what the driver keeps is enough for it, none is at risk.
    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn on_a_gpu_no_algorithm_is_lost_for_want_of_memory() {
        set_precision(Precision::Tf32);
        set_deterministic(false);
        let device = Device::new_cuda_with_stream(0).unwrap();
        let stream = Stream::of(device.as_cuda_device().unwrap()).unwrap();
        let lens = [9 * 64 * 16, 16 * 16 * 9, 9 * 64 * 16];
        let [x, weight, y] = lens.map(|len| ones(&stream, len));
        let compute = |cudnn: &mut Cudnn, g: &Geometry| {
            cudnn.forward(g, x.floats(), weight.floats(), y.floats())
        };
        let with_workspace = |cudnn: &mut Cudnn, g: &Geometry| {
            let shape = cudnn.shape(g, Precision::Tf32).unwrap();
            let choices = shape.forward.iter().flatten();
            let names = choices
                .filter(|choice| choice.workspace > 0)
                .map(Choice::name);
            names.collect::<BTreeSet<_>>()
        };
        let of = |batch| Geometry::new(&[batch, 8, 8, 16], &[16, 16, 3, 3], None, 1, 1).unwrap();
        let mut other = Cudnn::new(stream.cuda()).unwrap();
        compute(&mut other, &of(9)).unwrap(); // loads cuDNN's kernels, which need memory too
        for batch in 1..=8 {
            let g = of(batch);
            let mut cudnn = stream.cudnn();
            cudnn.workspace = None;
            let memory = all_memory(&stream);
            let _ = compute(&mut cudnn, &g);
            drop(memory);
            compute(&mut cudnn, &g).unwrap();
            compute(&mut other, &g).unwrap(); // has memory from the start
            assert_eq!(
                with_workspace(&mut cudnn, &g),
                with_workspace(&mut other, &g),
                "batch {batch}"
            );
        }
    }
}
