//! A row of the tables, the macros that write rows down, and what the functions of several rows need.

use std::collections::HashMap;

use candle_core::{DType, Device, Module, NdArray, Tensor};
use candle_nn::VarBuilder;

use crate::kit::formula;

pub type Output = candle_core::Result<Tensor>;
pub type Function = Box<dyn Fn(&[Tensor]) -> Output>;

/// The operation, the point as the page writes it, its numbers, and the function.
pub type Point = (
    &'static str,
    &'static str,
    &'static [f32],
    fn(&Tensor) -> Output,
);

/// A case of an operation. The gradients of all inputs are compared; they have these shapes.
pub struct Row {
    pub operation: String,
    pub case: &'static str,
    pub inputs: Vec<Vec<usize>>,
    pub f: Function,
}

/// A row for one function: `operation, case, [shapes], |inputs| result`.
macro_rules! row {
    ($operation:expr, $case:expr, [$($dims:expr),*], |$($x:ident),*| $f:expr) => {
        Row {
            operation: $operation.to_string(),
            case: $case,
            inputs: vec![$($dims.to_vec()),*],
            f: Box::new(|inputs| {
                let [$($x),*] = inputs else { unreachable!() };
                $f
            }),
        }
    };
}

/// A list of rows: `operation, case, [shapes], |inputs| result;`.
macro_rules! rows {
    ($($operation:expr, $case:literal, $dims:tt, |$($x:ident),*| $f:expr;)*) => {
        vec![$(row!($operation, $case, $dims, |$($x),*| $f)),*]
    };
}

/// Rows of methods, which have one case: `[shapes], |inputs| receiver, method(arguments) …`.
macro_rules! methods {
    ($dims:tt, |$($x:ident),*| $of:expr, $($name:ident $args:tt)*) => {
        methods!(@ $dims, [$($x),*], $of, $($name $args)*)
    };
    (@ $dims:tt, $xs:tt, $of:expr, $($name:ident $args:tt)*) => {
        [$(methods!(row $dims, $xs, $of, $name $args)),*]
    };
    (row $dims:tt, [$($x:ident),*], $of:expr, $name:ident ($($arg:expr),*)) => {
        row!(stringify!($name), "", $dims, |$($x),*| into_float($of.$name($($arg),*)?))
    };
}

/// Rows of functions, which have one case: `[shapes], |inputs| module::function(arguments) …`.
macro_rules! functions {
    ($dims:tt, |$($x:ident),*| $($module:ident::$name:ident $args:tt)*) => {
        functions!(@ $dims, [$($x),*], $($module::$name $args)*)
    };
    (@ $dims:tt, $xs:tt, $($module:ident::$name:ident $args:tt)*) => {
        [$(functions!(row $dims, $xs, $module::$name $args)),*]
    };
    (row $dims:tt, [$($x:ident),*], $module:ident::$name:ident $args:tt) => {
        row!(concat!(stringify!($module), "::", stringify!($name)), "", $dims, |$($x),*| $module::$name $args)
    };
}

pub fn ids(numbers: impl NdArray) -> Output {
    Tensor::new(numbers, &Device::Cpu)
}

pub fn into_float(x: Tensor) -> Output {
    match x.dtype().is_float() {
        true => Ok(x),
        false => x.to_dtype(DType::F64),
    }
}

/// An f64 in another type has too few digits for a comparison.
pub fn only_f32(x: &Tensor) -> candle_core::Result<&Tensor> {
    match x.dtype() {
        DType::F32 => Ok(x),
        other => candle_core::bail!("{other:?}"),
    }
}

/// As `backward` gives it.
pub fn gradient(y: &Tensor, of: &Tensor) -> Output {
    let gradient = y.backward()?.remove(of);
    gradient.ok_or_else(|| candle_core::Error::Msg("no gradient".into()))
}

/// A constant, in the type of `like`.
pub fn fixed(like: &Tensor, dims: &[usize]) -> Output {
    input(99, dims, like.dtype())
}

/// What `change` makes of a constant.
pub fn in_place(
    like: &Tensor,
    dims: &[usize],
    change: impl FnOnce(&Tensor) -> candle_core::Result<()>,
) -> Output {
    let x = fixed(like, dims)?;
    change(&x)?;
    Ok(x)
}

pub fn both((k, v): (Tensor, Tensor)) -> Output {
    Tensor::cat(&[k, v], 0)
}

pub fn conv1d(x: &Tensor, w: &Tensor, b: &Tensor, groups: usize) -> Output {
    let config = candle_nn::Conv1dConfig {
        groups,
        ..Default::default()
    };
    candle_nn::Conv1d::new(w.clone(), Some(b.clone()), config).forward(x)
}

pub fn conv2d(x: &Tensor, w: &Tensor, b: &Tensor, config: [usize; 4]) -> Output {
    let [padding, stride, dilation, groups] = config;
    let config = candle_nn::Conv2dConfig {
        padding,
        stride,
        dilation,
        groups,
        cudnn_fwd_algo: None,
    };
    candle_nn::Conv2d::new(w.clone(), Some(b.clone()), config).forward(x)
}

pub fn batch_norm(w: &Tensor, b: &Tensor) -> candle_core::Result<candle_nn::BatchNorm> {
    let [mean, var] = [w.zeros_like()?, w.ones_like()?];
    candle_nn::BatchNorm::new(2, mean, var, w.clone(), b.clone(), 1e-5)
}

pub fn layer_norm(w: &Tensor, b: &Tensor) -> candle_nn::LayerNorm {
    candle_nn::LayerNorm::new(w.clone(), b.clone(), 1e-5)
}

/// The parameters of an LSTM or a GRU.
pub fn recurrent(parameters: [&Tensor; 4]) -> VarBuilder<'static> {
    let names = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"];
    let named = names.map(str::to_owned).into_iter();
    let named: HashMap<_, _> = named.zip(parameters.map(Tensor::clone)).collect();
    VarBuilder::from_tensors(named, parameters[0].dtype(), &Device::Cpu)
}

/// Numbers between -1 and 1.
pub fn input(s: u32, dims: &[usize], dtype: DType) -> Output {
    let numbers = formula(s, dims.iter().product()).map(|u| 2. * u - 1.);
    let numbers = Tensor::from_iter(numbers, &Device::Cpu)?;
    numbers.reshape(dims)?.to_dtype(dtype)
}
