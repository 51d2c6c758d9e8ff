//! The plain twin of each operation, composed from candle's own differentiable operations.
//!
//! They are slower, and right on every device: this is what runs where there is no fast operation, and
//! what the fast ones are tested against. Each takes what its twin takes and gives what its twin gives.
//! They avoid those of candle's gradients that are not right: no `conv2d`, no pooling, no `relu`.

use crate::expr::{Expr, Node, Op};
use crate::im2col::Geometry;
use crate::pool::Windows;
use crate::{args, loss, norm, pool, synchronized};
use candle_core::{D, DType, Result, Shape, Tensor, Var, bail};
use std::collections::HashMap;
use std::sync::Arc;

/// As [`Expr::eval`]: each operation by itself.
///
/// # Errors
/// As there.
pub fn eval(expr: &Expr) -> Result<Tensor> {
    value(expr, &mut HashMap::new())
}

/// The value of `expr`, each shared part of it computed once.
fn value(expr: &Expr, done: &mut HashMap<*const Node, Tensor>) -> Result<Tensor> {
    if let Some(value) = done.get(&Arc::as_ptr(&expr.0)) {
        return Ok(value.clone());
    }
    let inputs = expr.0.inputs.iter().map(|x| value(x, done));
    let x = inputs.collect::<Result<Vec<_>>>()?;
    let value = match &expr.0.op {
        Op::Tensor(x) => x.clone(),
        Op::Nhwc => nhwc(&x[0])?,
        Op::Flatten => flatten(&x[0])?,
        Op::Relu => relu(&x[0])?,
        Op::Add => add(&x[0], &x[1])?,
        Op::Conv2d { stride, padding } => conv2d(&x[0], &x[1], x.get(2), *stride, *padding)?,
        Op::AvgPool2d { kernel, stride } => avg_pool2d(&x[0], *kernel, *stride)?,
        Op::MaxPool2d { kernel, stride } => max_pool2d(&x[0], *kernel, *stride)?,
        Op::GlobalAvgPool2d => global_avg_pool2d(&x[0])?,
        Op::Linear => linear(&x[0], &x[1], x.get(2))?,
        Op::Matmul => matmul(&x[0], &x[1], x.get(2))?,
        Op::BatchNorm2d {
            running: [mean, var],
            train,
        } => batch_norm2d(&x[0], &x[1], &x[2], mean, var, *train)?,
    };
    done.insert(Arc::as_ptr(&expr.0), value.clone());
    Ok(value)
}

/// As [`crate::sum`].
///
/// # Errors
/// As there.
pub fn sum(x: &Tensor) -> Result<Tensor> {
    args::float("sum", "x", x)?.sum_all()
}

/// As [`crate::nhwc`].
///
/// # Errors
/// As there.
pub fn nhwc(x: &Tensor) -> Result<Tensor> {
    let x = args::float("nhwc", "x", x)?;
    args::dims4("nhwc", "(B, C, H, W)", x.dims())?;
    x.permute((0, 2, 3, 1))?.contiguous()
}

/// As [`crate::flatten`].
///
/// # Errors
/// As there.
pub fn flatten(x: &Tensor) -> Result<Tensor> {
    let x = args::float("flatten", "x", x)?;
    let [b, h, w, c] = args::dims4("flatten", "(B, H, W, C)", x.dims())?;
    x.permute((0, 3, 1, 2))?.reshape((b, c * h * w))
}

/// As [`crate::conv2d`]: a sum over the kernel's positions, each a matrix product.
///
/// # Errors
/// As there.
pub fn conv2d(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    stride: usize,
    padding: usize,
) -> Result<Tensor> {
    let op = "conv2d";
    let (x, weight) = (args::float(op, "x", x)?, args::float(op, "weight", weight)?);
    let bias = bias.map(|b| args::float(op, "bias", b)).transpose()?;
    let bias_dims = bias.as_ref().map(|b| b.dims());
    let g = Geometry::new(x.dims(), weight.dims(), bias_dims, stride, padding)?;
    let shape = (g.batch, g.out_height, g.out_width, g.out_channels);
    if g.batch == 0 {
        return no_examples([Some(&x), Some(&weight), bias.as_ref()], shape);
    }
    let x = x.pad_with_zeros(1, padding, padding)?;
    let x = x.pad_with_zeros(2, padding, padding)?;
    let pixels = g.batch * g.out_height * g.out_width;
    let mut y = Tensor::zeros((pixels, g.out_channels), DType::F32, x.device())?;
    for (ky, kx) in positions(g.kernel) {
        let x = shifted(&x, (ky, kx), stride, (g.out_height, g.out_width))?;
        let x = x.reshape((pixels, g.channels))?;
        let weight = weight.narrow(2, ky, 1)?.narrow(3, kx, 1)?;
        let weight = weight.reshape((g.out_channels, g.channels))?;
        y = (y + x.matmul(&weight.t()?)?)?;
    }
    if let Some(bias) = bias {
        y = y.broadcast_add(&bias)?;
    }
    y.reshape(shape)
}

/// The result for no examples, of which every input gets a gradient of zeros: candle's product of
/// no rows would record no graph, and its maximum over none is an error.
fn no_examples<const N: usize>(
    inputs: [Option<&Tensor>; N],
    shape: impl Into<Shape>,
) -> Result<Tensor> {
    let nothing = inputs
        .into_iter()
        .flatten()
        .map(|t| t.flatten_all()?.narrow(0, 0, 0));
    let nothing = nothing.collect::<Result<Vec<_>>>()?;
    Tensor::cat(&nothing, 0)?.reshape(shape.into())
}

fn positions((height, width): (usize, usize)) -> impl Iterator<Item = (usize, usize)> {
    (0..height).flat_map(move |y| (0..width).map(move |x| (y, x)))
}

/// What each window sees at one position of its kernel: (B, H, W, C) → (B, OH, OW, C).
fn shifted(
    x: &Tensor,
    (ky, kx): (usize, usize),
    stride: usize,
    (out_height, out_width): (usize, usize),
) -> Result<Tensor> {
    let indices = |first: usize, n: usize| {
        let indices: Vec<u32> = (0..n).map(|i| (first + i * stride) as u32).collect();
        Tensor::from_vec(indices, n, x.device())
    };
    x.index_select(&indices(ky, out_height)?, 1)?
        .index_select(&indices(kx, out_width)?, 2)
}

/// As [`crate::relu`].
///
/// # Errors
/// As there.
pub fn relu(x: &Tensor) -> Result<Tensor> {
    let x = args::float("relu", "x", x)?;
    x.detach().le(0.)?.where_cond(&x.zeros_like()?, &x)
}

/// The sum in an [`Expr`], element by element.
///
/// # Errors
/// Where the shapes differ.
pub fn add(x: &Tensor, other: &Tensor) -> Result<Tensor> {
    let (x, other) = (
        args::float("add", "x", x)?,
        args::float("add", "other", other)?,
    );
    args::same(x.dims(), other.dims())?;
    x + other
}

/// The views of x, one for each position in a window: their mean or maximum is the pooled value.
fn pooled(x: &Tensor, w: &Windows) -> impl Iterator<Item = Result<Tensor>> {
    let out = (w.out_height, w.out_width);
    positions((w.kernel, w.kernel)).map(move |at| shifted(x, at, w.stride, out))
}

/// As [`crate::avg_pool2d`].
///
/// # Errors
/// As there.
pub fn avg_pool2d(x: &Tensor, kernel: usize, stride: usize) -> Result<Tensor> {
    let x = args::float("avg_pool2d", "x", x)?;
    let windows = Windows::new("avg_pool2d", x.dims(), kernel, stride)?;
    let sum = pooled(&x, &windows).reduce(|sum, view| sum? + view?);
    sum.expect("a kernel has a position")? / (kernel * kernel) as f64
}

/// As [`crate::max_pool2d`].
///
/// # Errors
/// As there.
pub fn max_pool2d(x: &Tensor, kernel: usize, stride: usize) -> Result<Tensor> {
    let x = args::float("max_pool2d", "x", x)?;
    let windows = Windows::new("max_pool2d", x.dims(), kernel, stride)?;
    let maximum = pooled(&x, &windows).reduce(|best, view| {
        let (best, view) = (best?, view?);
        // NaN, which differs from itself, wins
        let wins = (view.gt(&best)? + view.ne(&view)?)?;
        wins.where_cond(&view, &best)
    });
    maximum.expect("a kernel has a position")
}

/// As [`crate::global_avg_pool2d`].
///
/// # Errors
/// As there.
pub fn global_avg_pool2d(x: &Tensor) -> Result<Tensor> {
    let x = args::float("global_avg_pool2d", "x", x)?;
    let [b, h, w, c] = pool::whole_image(x.dims())?;
    x.reshape((b, h * w, c))?.mean(1)
}

/// As [`crate::linear`].
///
/// # Errors
/// As there.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let dims = [x.dims(), weight.dims()];
    let sizes = crate::linear::check(dims, bias.map(|b| b.dims()))?;
    product("linear", [x, weight], bias, sizes)
}

/// As [`crate::matmul`].
///
/// # Errors
/// As there.
pub fn matmul(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let dims = [x.dims(), weight.dims()];
    let sizes = crate::linear::check_matmul(dims, bias.map(|b| b.dims()))?;
    product("matmul", [x, weight], bias, sizes)
}

/// x (B, I) times weight, (O, I) or (I, O) according to the name, plus bias.
fn product(
    op: &str,
    [x, weight]: [&Tensor; 2],
    bias: Option<&Tensor>,
    [batch, _, outputs]: [usize; 3],
) -> Result<Tensor> {
    let (x, weight) = (args::float(op, "x", x)?, args::float(op, "weight", weight)?);
    let bias = bias.map(|b| args::float(op, "bias", b)).transpose()?;
    if batch == 0 {
        return no_examples([Some(&x), Some(&weight), bias.as_ref()], (batch, outputs));
    }
    let weight = if op == "linear" { weight.t()? } else { weight };
    let y = x.matmul(&weight)?;
    match bias {
        Some(bias) => y.broadcast_add(&bias),
        None => Ok(y),
    }
}

/// As [`crate::batch_norm2d`].
///
/// # Errors
/// As there.
pub fn batch_norm2d(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    running_mean: &Var,
    running_var: &Var,
    train: bool,
) -> Result<Tensor> {
    let op = "batch_norm2d";
    let running = [running_mean.clone(), running_var.clone()];
    let (x, weight) = (args::float(op, "x", x)?, args::float(op, "weight", weight)?);
    let (bias, shape) = (args::float(op, "bias", bias)?, x.shape().clone());
    let dims = [x.dims(), weight.dims(), bias.dims()];
    let [channels, count] = norm::check(dims, &running, train)?;
    if train && synchronized::over().is_some() {
        bail!(
            "{op}: the plain operations share no statistics; this crate's on the CPU and on NVIDIA GPUs do"
        )
    }
    let x = x.reshape((count, channels))?;
    let [mean, var] = if train {
        let mean = x.mean(0)?;
        let var = x.broadcast_sub(&mean)?.sqr()?.mean(0)?;
        norm::update_running(&running, &mean, &var, count)?;
        [mean, var]
    } else {
        running.map(|v| v.as_detached_tensor())
    };
    let y = x.broadcast_sub(&mean)?;
    let y = y.broadcast_div(&(var + norm::EPS)?.sqrt()?)?;
    y.broadcast_mul(&weight)?
        .broadcast_add(&bias)?
        .reshape(shape)
}

/// As [`crate::cross_entropy`].
///
/// # Errors
/// As there.
pub fn cross_entropy(y_hat: &Tensor, y: &Tensor) -> Result<Tensor> {
    let (y_hat, labels) = loss::arguments(y_hat, y)?;
    if labels.is_empty() {
        return no_examples([Some(&y_hat)], 0);
    }
    let largest = y_hat.detach().max_keepdim(D::Minus1)?;
    let shifted = y_hat.broadcast_sub(&largest)?;
    let at_label = shifted
        .gather(&y.unsqueeze(1)?.contiguous()?, 1)?
        .squeeze(1)?;
    shifted.exp()?.sum(D::Minus1)?.log()? - at_label
}
