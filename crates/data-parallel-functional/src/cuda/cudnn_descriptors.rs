//! A convolution for cuDNN: descriptors of its tensors, and of its stride, padding and arithmetic.

use crate::descriptors::convolution::Geometry;
use crate::settings::precision::Precision;
use candle_core::cuda_backend::cudarc::cudnn::{CudnnError, result, sys};
use candle_core::{Error, Result};
use std::ffi::c_int;

/// Those of the tensors.
#[derive(Clone, Copy)]
pub(super) struct Descriptors {
    pub x: sys::cudnnTensorDescriptor_t,
    pub weight: sys::cudnnFilterDescriptor_t,
    pub y: sys::cudnnTensorDescriptor_t,
}

impl Descriptors {
    pub fn new(g: &Geometry, precision: Precision) -> Result<Self> {
        let nhwc = sys::cudnnTensorFormat_t::CUDNN_TENSOR_NHWC;
        let element = match precision {
            Precision::Bf16 => sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16,
            Precision::F32 | Precision::Tf32 => sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
        };
        let int = |n: usize| c_int::try_from(n).map_err(Error::wrap);
        let ints = |dims: [usize; 4]| -> Result<[c_int; 4]> {
            let [n, c, h, w] = dims;
            Ok([int(n)?, int(c)?, int(h)?, int(w)?])
        };
        let tensor = |dims: [usize; 4]| -> Result<sys::cudnnTensorDescriptor_t> {
            let tensor = result::create_tensor_descriptor().map_err(failed)?;
            // Safety: the descriptor was made just now.
            let set =
                unsafe { result::set_tensor4d_descriptor(tensor, nhwc, element, ints(dims)?) };
            set.map_err(failed)?;
            Ok(tensor)
        };
        let weight = result::create_filter_descriptor().map_err(failed)?;
        let dims = ints([g.out_channels, g.channels, g.kernel_height, g.kernel_width])?;
        // Safety: the descriptor was made just now.
        let set = unsafe { result::set_filter4d_descriptor(weight, element, nhwc, dims) };
        set.map_err(failed)?;
        Ok(Self {
            x: tensor([g.batch, g.channels, g.height, g.width])?,
            weight,
            y: tensor([g.batch, g.out_channels, g.out_height, g.out_width])?,
        })
    }
}

/// Stride and padding, and the arithmetic of `precision`; sums are f32.
pub(super) fn convolution_descriptor(
    g: &Geometry,
    precision: Precision,
) -> Result<sys::cudnnConvolutionDescriptor_t> {
    let convolution = result::create_convolution_descriptor().map_err(failed)?;
    let padding = g.padding as c_int;
    let stride = g.stride as c_int;
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
        Precision::Bf16 => sys::cudnnMathType_t::CUDNN_TENSOR_OP_MATH,
    };
    // Safety: as above.
    unsafe { result::set_convolution_math_type(convolution, arithmetic) }.map_err(failed)?;
    Ok(convolution)
}

/// An error of cuDNN's.
pub(super) fn failed(error: CudnnError) -> Error {
    Error::Msg(format!("cuDNN: {:?}", error.0))
}
