//! Convolutions on a GPU by cuDNN, in NHWC, with bias, ReLU and pooling behind them.
//!
//! The weight is brought to cuDNN's order of (O, KH, KW, I) and its gradient back. An algorithm is
//! chosen once for each shape.

use super::layers::transpose;
use super::linear::{bias_relu, column_sums, mask};
use super::memory::{Block, Floats};
use super::operation::{At, Grad, Operation};
use super::single::Single;
use super::stream::{Stream, launch};
use crate::conv::Convolution;
use crate::im2col::Geometry;
use crate::pool::Windows;
use crate::precision::{self, Precision};
use candle_core::cuda_backend::cudarc::cudnn::{CudnnError, result, sys};
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use candle_core::{Error, Result, bail};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use sys::cudnnConvolutionBwdDataAlgo_t as DataAlgorithm;
use sys::cudnnConvolutionBwdFilterAlgo_t as FilterAlgorithm;
use sys::cudnnConvolutionFwdAlgo_t as ForwardAlgorithm;

/// What an algorithm may use beside inputs and outputs: as much as any of the fast ones does.
const MAX_WORKSPACE: usize = 1 << 30;
/// At least as many as there are algorithms of any kind.
const CANDIDATES: usize = 16;

impl Operation for Convolution {
    fn forward(&self, stream: &Stream, x: &[Floats], y: Floats, _keep: bool) -> Result<Vec<Block>> {
        if let Some(single) = Single::new(self) {
            single.forward(stream, x, y)?;
            return Ok(vec![]);
        }
        let (g, bias) = (&self.geometry, x.get(2).copied());
        let weight = Weight::pack(stream, g, x[1])?;
        if self.pool == 1 {
            stream.convolutions().forward(g, x[0], weight.floats(), y)?;
            bias_relu(stream, y, bias, g.out_channels, self.relu)?;
            return Ok(weight.0.into_iter().collect());
        }
        let z = Block::new(stream, g.out_dims().iter().product())?;
        stream
            .convolutions()
            .forward(g, x[0], weight.floats(), z.floats())?;
        let (z_floats, windows, relu) = (z.floats(), self.windows()?, self.relu);
        launch!(stream, "epilogue", elements y.len; y.len, z_floats, bias, y, windows, relu)?;
        Ok(std::iter::once(z).chain(weight.0).collect())
    }

    fn backward(&self, stream: &Stream, at: At<'_>, dy: Block, dx: &mut [Grad]) -> Result<()> {
        let (g, x) = (&self.geometry, at.x);
        if let Some(single) = Single::new(self) {
            single.backward(stream, x, dy.floats(), dx)?;
            return self.image_gradient(stream, x, dy, &mut dx[0]);
        }
        let (z, packed) = at.kept.split_at(usize::from(self.pool > 1));
        let dz = self.behind(stream, z.first(), at, dy)?;
        if let Some(db) = dx.get_mut(2).filter(|db| db.wanted()) {
            match self.before_norm {
                true => db.zero(stream)?, // the mean takes the bias out again
                false => column_sums(stream, dz.floats(), g.out_channels, db)?,
            }
        }
        let weight = packed.first().map_or(x[1], Block::floats);
        if dx[0].wanted() {
            let (to, add) = dx[0].target(stream)?;
            stream
                .convolutions()
                .backward_x(g, weight, dz.floats(), to, add)?;
        }
        if dx[1].wanted() {
            let (to, add) = dx[1].target(stream)?;
            if !Weight::differs(g) {
                return stream
                    .convolutions()
                    .backward_weight(g, x[0], dz.floats(), to, add);
            }
            let packed = Block::new(stream, to.len)?;
            let floats = packed.floats();
            stream
                .convolutions()
                .backward_weight(g, x[0], dz.floats(), floats, false)?;
            transpose(
                stream,
                floats,
                to,
                [g.kernel.0 * g.kernel.1, g.channels],
                add,
            )?;
        }
        Ok(())
    }
}

impl Convolution {
    /// The pooling's windows on the convolution's output.
    fn windows(&self) -> Result<Windows> {
        Windows::new("conv2d", &self.geometry.out_dims(), self.pool, self.pool)
    }

    /// The gradient of the convolution's own output, before bias, ReLU and pooling.
    fn behind(&self, stream: &Stream, z: Option<&Block>, at: At<'_>, dy: Block) -> Result<Block> {
        let Some(z) = z else {
            if self.relu {
                mask(stream, at.y, dy.floats())?;
            }
            return Ok(dy);
        };
        let (z, bias) = (z.floats(), at.x.get(2).copied());
        let dz = Block::new(stream, z.len)?;
        let (to, windows, relu) = (dz.floats(), self.windows()?, self.relu);
        let name = "epilogue_backward";
        launch!(stream, name, elements z.len; z.len, z, bias, dy.floats(), to, windows, relu)?;
        Ok(dz)
    }

    /// The gradient of images of one channel, which hardly anybody wants: through cuDNN.
    fn image_gradient(
        &self,
        stream: &Stream,
        x: &[Floats],
        dy: Block,
        dx: &mut Grad,
    ) -> Result<()> {
        if !dx.wanted() {
            return Ok(());
        }
        let g = &self.geometry;
        let z = Block::new(stream, g.out_dims().iter().product())?;
        stream.convolutions().forward(g, x[0], x[1], z.floats())?;
        let dz = Block::new(stream, z.floats().len)?;
        let (z, to, bias) = (z.floats(), dz.floats(), x.get(2).copied());
        let (windows, relu, dy) = (self.windows()?, self.relu, dy.floats());
        launch!(stream, "epilogue_backward", elements z.len; z.len, z, bias, dy, to, windows, relu)?;
        let (target, add) = dx.target(stream)?;
        stream.convolutions().backward_x(g, x[1], to, target, add)
    }
}

/// A weight in cuDNN's order; none of its own where that is the same as ours.
struct Weight(Option<Block>, Floats);

impl Weight {
    fn differs(g: &Geometry) -> bool {
        g.channels > 1 && g.kernel != (1, 1)
    }

    fn pack(stream: &Stream, g: &Geometry, weight: Floats) -> Result<Self> {
        if !Self::differs(g) {
            return Ok(Self(None, weight));
        }
        let packed = Block::new(stream, weight.len)?;
        let (to, sizes) = (packed.floats(), [g.channels, g.kernel.0 * g.kernel.1]);
        transpose(stream, weight, to, sizes, false)?;
        Ok(Self(Some(packed), to))
    }

    fn floats(&self) -> Floats {
        self.1
    }
}

/// cuDNN on one stream, with what was chosen for each shape. All of it lives as long as the process.
pub(crate) struct Convolutions {
    handle: sys::cudnnHandle_t,
    stream: Arc<CudaStream>,
    plans: HashMap<(Geometry, Precision, bool), Plan>,
    workspace: Option<CudaSlice<u8>>,
}

// Safety: cuDNN's handles and descriptors may move between threads; that one thread uses them at a time
// is seen to by the lock around this.
unsafe impl Send for Convolutions {}

/// The descriptors of one shape, and an algorithm for each direction that was needed.
#[derive(Clone, Copy)]
struct Plan {
    x: sys::cudnnTensorDescriptor_t,
    weight: sys::cudnnFilterDescriptor_t,
    y: sys::cudnnTensorDescriptor_t,
    forward: Option<Choice<ForwardAlgorithm>>,
    backward_x: Option<Choice<DataAlgorithm>>,
    backward_weight: Option<Choice<FilterAlgorithm>>,
}

/// An algorithm, the convolution's descriptor with the arithmetic that it was chosen for, and the bytes
/// of workspace that it takes.
#[derive(Clone, Copy)]
struct Choice<A> {
    algorithm: A,
    convolution: sys::cudnnConvolutionDescriptor_t,
    workspace: usize,
}

/// What cuDNN says of an algorithm.
struct Candidate<A> {
    algorithm: A,
    works: bool,
    deterministic: bool,
    arithmetic: sys::cudnnMathType_t,
    workspace: usize,
}

/// The answer of one of cuDNN's three questions, which differ in types alone.
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
        answers.map(|answer| Candidate {
            algorithm: answer.algo,
            works: answer.status == sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS,
            deterministic: answer.determinism == sys::cudnnDeterminism_t::CUDNN_DETERMINISTIC,
            arithmetic: answer.mathType,
            workspace: answer.memory,
        })
    }};
}

impl Convolutions {
    pub fn new(stream: &Arc<CudaStream>) -> Result<Self> {
        let handle = result::create_handle().map_err(failed)?;
        // Safety: both exist, and the stream lives as long as this.
        unsafe { result::set_stream(handle, stream.cu_stream().cast()) }.map_err(failed)?;
        Ok(Self {
            handle,
            stream: stream.clone(),
            plans: HashMap::new(),
            workspace: None,
        })
    }

    /// `y` from `x` and the packed `weight`.
    pub fn forward(&mut self, g: &Geometry, x: Floats, weight: Floats, y: Floats) -> Result<()> {
        if y.len == 0 {
            return Ok(());
        }
        let plan = self.plan(g)?;
        let choice = match plan.forward {
            Some(choice) => choice,
            None => {
                let conv = descriptor(g, precision::get())?;
                let (x, w, y) = (plan.x, plan.weight, plan.y);
                let ask = result::get_convolution_forward_algorithm;
                let choice = choose(candidates!(ask, self.handle, x, w, conv, y), conv)?;
                self.remember(g, |plan| plan.forward = Some(choice))?;
                choice
            }
        };
        let (workspace, size) = self.workspace(choice.workspace)?;
        // Safety: the descriptors tell the sizes of the memory behind the addresses.
        let done = unsafe {
            result::convolution_forward(
                self.handle,
                scale(&1.),
                plan.x,
                x.address as *const c_void,
                plan.weight,
                weight.address as *const c_void,
                choice.convolution,
                choice.algorithm,
                workspace,
                size,
                scale(&0.),
                plan.y,
                y.address as *mut c_void,
            )
        };
        done.map_err(failed)
    }

    /// The gradient of x, written or added.
    pub fn backward_x(
        &mut self,
        g: &Geometry,
        weight: Floats,
        dy: Floats,
        dx: Floats,
        add: bool,
    ) -> Result<()> {
        if dx.len == 0 {
            return Ok(());
        }
        let plan = self.plan(g)?;
        let choice = match plan.backward_x {
            Some(choice) => choice,
            None => {
                let conv = descriptor(g, precision::get())?;
                let (x, w, y) = (plan.x, plan.weight, plan.y);
                let ask = result::get_convolution_backward_data_algorithm;
                let choice = choose(candidates!(ask, self.handle, w, y, conv, x), conv)?;
                self.remember(g, |plan| plan.backward_x = Some(choice))?;
                choice
            }
        };
        let (workspace, size) = self.workspace(choice.workspace)?;
        // Safety: as in `forward`.
        let done = unsafe {
            result::convolution_backward_data(
                self.handle,
                scale(&1.),
                plan.weight,
                weight.address as *const c_void,
                plan.y,
                dy.address as *const c_void,
                choice.convolution,
                choice.algorithm,
                workspace,
                size,
                scale(if add { &1. } else { &0. }),
                plan.x,
                dx.address as *mut c_void,
            )
        };
        done.map_err(failed)
    }

    /// The gradient of the packed weight, written or added.
    pub fn backward_weight(
        &mut self,
        g: &Geometry,
        x: Floats,
        dy: Floats,
        dw: Floats,
        add: bool,
    ) -> Result<()> {
        let plan = self.plan(g)?;
        let choice = match plan.backward_weight {
            Some(choice) => choice,
            None => {
                let conv = descriptor(g, precision::get())?;
                let (x, w, y) = (plan.x, plan.weight, plan.y);
                let ask = result::get_convolution_backward_filter_algorithm;
                let choice = choose(candidates!(ask, self.handle, x, y, conv, w), conv)?;
                self.remember(g, |plan| plan.backward_weight = Some(choice))?;
                choice
            }
        };
        let (workspace, size) = self.workspace(choice.workspace)?;
        // Safety: as in `forward`.
        let done = unsafe {
            result::convolution_backward_filter(
                self.handle,
                scale(&1.),
                plan.x,
                x.address as *const c_void,
                plan.y,
                dy.address as *const c_void,
                choice.convolution,
                choice.algorithm,
                workspace,
                size,
                scale(if add { &1. } else { &0. }),
                plan.weight,
                dw.address as *mut c_void,
            )
        };
        done.map_err(failed)
    }

    fn key(g: &Geometry) -> (Geometry, Precision, bool) {
        (*g, precision::get(), precision::deterministic())
    }

    fn plan(&mut self, g: &Geometry) -> Result<Plan> {
        if let Some(plan) = self.plans.get(&Self::key(g)) {
            return Ok(*plan);
        }
        let plan = Plan::new(g)?;
        self.plans.insert(Self::key(g), plan);
        Ok(plan)
    }

    fn remember(&mut self, g: &Geometry, set: impl FnOnce(&mut Plan)) -> Result<()> {
        self.plan(g)?;
        self.plans.entry(Self::key(g)).and_modify(set);
        Ok(())
    }

    /// At least `size` bytes, which the next operation on the stream may use too.
    fn workspace(&mut self, size: usize) -> Result<(*mut c_void, usize)> {
        if size == 0 {
            return Ok((ptr::null_mut(), 0));
        }
        let workspace = match self.workspace.take().filter(|w| w.num_bytes() >= size) {
            Some(workspace) => workspace,
            // Safety: a workspace's contents are of no meaning before.
            None => unsafe { self.stream.alloc::<u8>(size) }.map_err(Error::wrap)?,
        };
        let address = workspace.device_ptr(&self.stream).0;
        self.workspace = Some(workspace);
        Ok((address as *mut c_void, size))
    }
}

impl Plan {
    fn new(g: &Geometry) -> Result<Self> {
        let nhwc = sys::cudnnTensorFormat_t::CUDNN_TENSOR_NHWC;
        let float = sys::cudnnDataType_t::CUDNN_DATA_FLOAT;
        let int = |n: usize| c_int::try_from(n).map_err(Error::wrap);
        let ints = |dims: [usize; 4]| -> Result<[c_int; 4]> {
            let [n, c, h, w] = dims;
            Ok([int(n)?, int(c)?, int(h)?, int(w)?])
        };
        let tensor = |dims: [usize; 4]| -> Result<sys::cudnnTensorDescriptor_t> {
            let tensor = result::create_tensor_descriptor().map_err(failed)?;
            // Safety: the descriptor was made just now.
            let set = unsafe { result::set_tensor4d_descriptor(tensor, nhwc, float, ints(dims)?) };
            set.map_err(failed)?;
            Ok(tensor)
        };
        let weight = result::create_filter_descriptor().map_err(failed)?;
        let dims = ints([g.out_channels, g.channels, g.kernel.0, g.kernel.1])?;
        // Safety: the descriptor was made just now.
        let set = unsafe { result::set_filter4d_descriptor(weight, float, nhwc, dims) };
        set.map_err(failed)?;
        Ok(Self {
            x: tensor([g.batch, g.channels, g.height, g.width])?,
            weight,
            y: tensor([g.batch, g.out_channels, g.out_height, g.out_width])?,
            forward: None,
            backward_x: None,
            backward_weight: None,
        })
    }
}

/// Stride and padding, and the arithmetic of `precision`.
fn descriptor(g: &Geometry, precision: Precision) -> Result<sys::cudnnConvolutionDescriptor_t> {
    let convolution = result::create_convolution_descriptor().map_err(failed)?;
    let (padding, stride) = (g.padding as c_int, g.stride as c_int);
    // Safety: the descriptor was made just now.
    let set = unsafe {
        result::set_convolution2d_descriptor(
            convolution,
            padding,
            padding,
            stride,
            stride,
            1,
            1,
            sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION,
            sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
        )
    };
    set.map_err(failed)?;
    let arithmetic = match precision {
        Precision::F32 => sys::cudnnMathType_t::CUDNN_FMA_MATH,
        // what cuDNN calls the default may use TF32
        Precision::Tf32 => sys::cudnnMathType_t::CUDNN_DEFAULT_MATH,
    };
    // Safety: as above.
    unsafe { result::set_convolution_math_type(convolution, arithmetic) }.map_err(failed)?;
    Ok(convolution)
}

/// The first candidate, which cuDNN takes for the fastest, that may be used.
fn choose<A>(
    mut candidates: impl Iterator<Item = Candidate<A>>,
    convolution: sys::cudnnConvolutionDescriptor_t,
) -> Result<Choice<A>> {
    let exact = precision::get() == Precision::F32;
    let fits = |c: &Candidate<A>| {
        c.works
            && c.workspace <= MAX_WORKSPACE
            && (c.deterministic || !precision::deterministic())
            && (!exact || !rounds(c.arithmetic))
    };
    let Some(candidate) = candidates.find(fits) else {
        bail!("cuDNN has no algorithm for this convolution and precision")
    };
    if !exact {
        // Safety: the descriptor exists.
        unsafe { result::set_convolution_math_type(convolution, candidate.arithmetic) }
            .map_err(failed)?;
    }
    Ok(Choice {
        algorithm: candidate.algorithm,
        convolution,
        workspace: candidate.workspace,
    })
}

/// Whether inputs are rounded for tensor cores. What is called the default is not, where the descriptor
/// asks for multiply-adds of f32.
fn rounds(arithmetic: sys::cudnnMathType_t) -> bool {
    use sys::cudnnMathType_t::*;
    !matches!(arithmetic, CUDNN_FMA_MATH | CUDNN_DEFAULT_MATH)
}

fn scale(factor: &f32) -> *const c_void {
    ptr::from_ref(factor).cast()
}

fn failed(error: CudnnError) -> Error {
    Error::Msg(format!("cuDNN: {:?}", error.0))
}
