//! The plain twin of each operation, composed from candle's own differentiable operations.
//!
//! They are slower, and right on every device: this is what runs on a GPU, and what the fast
//! operations are tested against. Each takes what its twin takes and gives what its twin gives.
//! They avoid those of candle's gradients that are not right: no `conv2d`, no pooling, no `relu`.

use crate::{args, conv, loss, norm, pool};
use candle_core::{D, DType, Result, Shape, Tensor, Var};

/// As [`crate::nhwc`].
///
/// # Errors
/// As there.
pub fn nhwc(x: &Tensor) -> Result<Tensor> {
    let x = args::float("nhwc", "x", x)?;
    args::dims4("nhwc", "(B, C, H, W)", &x)?;
    x.permute((0, 2, 3, 1))?.contiguous()
}

/// As [`crate::flatten`].
///
/// # Errors
/// As there.
pub fn flatten(x: &Tensor) -> Result<Tensor> {
    let x = args::float("flatten", "x", x)?;
    let [b, h, w, c] = args::dims4("flatten", "(B, H, W, C)", &x)?;
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
    let args = conv::Arguments::new(x, weight, bias, stride, padding)?;
    let g = args.geometry;
    let shape = (g.batch, g.out_height, g.out_width, g.out_channels);
    if g.batch == 0 {
        return no_examples(
            [Some(&args.x), Some(&args.weight), args.bias.as_ref()],
            shape,
        );
    }
    let x = args.x.pad_with_zeros(1, padding, padding)?;
    let x = x.pad_with_zeros(2, padding, padding)?;
    let pixels = g.batch * g.out_height * g.out_width;
    let mut y = Tensor::zeros((pixels, g.out_channels), DType::F32, x.device())?;
    for (ky, kx) in positions(g.kernel) {
        let x = shifted(&x, (ky, kx), stride, (g.out_height, g.out_width))?;
        let x = x.reshape((pixels, g.channels))?;
        let weight = args.weight.narrow(2, ky, 1)?.narrow(3, kx, 1)?;
        let weight = weight.reshape((g.out_channels, g.channels))?;
        y = (y + x.matmul(&weight.t()?)?)?;
    }
    if let Some(bias) = args.bias {
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

/// The views of x whose mean or maximum is the pooled one.
fn pooled(x: &Tensor, w: &pool::Windows) -> impl Iterator<Item = Result<Tensor>> {
    let out = (w.out_height, w.out_width);
    positions((w.kernel, w.kernel)).map(move |at| shifted(x, at, w.stride, out))
}

/// As [`crate::avg_pool2d`].
///
/// # Errors
/// As there.
pub fn avg_pool2d(x: &Tensor, kernel: usize, stride: usize) -> Result<Tensor> {
    let (x, windows) = pool::Windows::new("avg_pool2d", x, kernel, stride)?;
    let sum = pooled(&x, &windows).reduce(|sum, view| sum? + view?);
    sum.expect("a kernel has a position")? / (kernel * kernel) as f64
}

/// As [`crate::max_pool2d`].
///
/// # Errors
/// As there.
pub fn max_pool2d(x: &Tensor, kernel: usize, stride: usize) -> Result<Tensor> {
    let (x, windows) = pool::Windows::new("max_pool2d", x, kernel, stride)?;
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
    let (x, [b, h, w, c]) = pool::whole_image(x)?;
    x.reshape((b, h * w, c))?.mean(1)
}

/// As [`crate::linear`].
///
/// # Errors
/// As there.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let (x, weight, bias) = crate::linear::arguments(x, weight, bias)?;
    let (batch, outputs) = (x.dim(0)?, weight.dim(0)?);
    if batch == 0 {
        return no_examples([Some(&x), Some(&weight), bias.as_ref()], (batch, outputs));
    }
    let y = x.matmul(&weight.t()?)?;
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
    let running = [running_mean, running_var];
    let args = norm::Arguments::new(x, weight, bias, running, train)?;
    let x = args.x.reshape((args.count, args.channels))?;
    let [mean, var] = if train {
        let mean = x.mean(0)?;
        let var = x.broadcast_sub(&mean)?.sqr()?.mean(0)?;
        norm::update_running(running, &mean, &var, args.count)?;
        [mean, var]
    } else {
        running.map(|v| v.as_detached_tensor())
    };
    let y = x.broadcast_sub(&mean)?;
    let y = y.broadcast_div(&(var + norm::EPS)?.sqrt()?)?;
    let y = y.broadcast_mul(&args.weight)?.broadcast_add(&args.bias)?;
    y.reshape(args.x.shape())
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
