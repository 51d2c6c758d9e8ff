//! The reference of each operation, composed from candle's own differentiable operations.
//!
//! They are slow, and right on every device: the operations are tested against them. They avoid those of candle's
//! gradients that are not right: no `conv2d`, no pooling, no `relu`. They check no argument.

use candle_core::{D, DType, Device, Result, Shape, Tensor, Var};
use functional::{BatchNorm, Value};

/// As [`functional::Value::nhwc`].
pub fn nhwc(x: &Tensor) -> Result<Tensor> {
    x.permute((0, 2, 3, 1))?.contiguous()
}

/// As [`functional::Value::flatten`].
pub fn flatten(x: &Tensor) -> Result<Tensor> {
    let (b, h, w, c) = x.dims4()?;
    x.permute((0, 3, 1, 2))?.reshape((b, c * h * w))
}

/// How often a window of `kernel` fits into `size`.
fn windows(size: usize, kernel: usize, stride: usize) -> usize {
    (size - kernel) / stride + 1
}

/// As [`functional::Value::conv2d`]: a sum over the kernel's positions, each a matrix product.
pub fn conv2d(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    stride: usize,
    padding: usize,
) -> Result<Tensor> {
    let (b, h, w, i) = x.dims4()?;
    let (o, _, kh, kw) = weight.dims4()?;
    let of = |size, kernel| windows(size + 2 * padding, kernel, stride);
    let size = (of(h, kh), of(w, kw));
    let shape = (b, size.0, size.1, o);
    if b == 0 {
        return no_examples([Some(x), Some(weight), bias], shape);
    }
    let x = x.pad_with_zeros(1, padding, padding)?;
    let x = x.pad_with_zeros(2, padding, padding)?;
    let pixels = b * size.0 * size.1;
    let mut y = Tensor::zeros((pixels, o), x.dtype(), x.device())?;
    for (ky, kx) in positions((kh, kw)) {
        let x = shifted(&x, (ky, kx), stride, size)?.reshape((pixels, i))?;
        let weight = weight.narrow(2, ky, 1)?.narrow(3, kx, 1)?;
        y = (y + x.matmul(&weight.reshape((o, i))?.t()?)?)?;
    }
    if let Some(bias) = bias {
        y = y.broadcast_add(bias)?;
    }
    y.reshape(shape)
}

/// As [`functional::Value::grouped_conv2d`]: each group by itself.
pub fn grouped_conv2d(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    stride: usize,
    padding: usize,
    groups: usize,
) -> Result<Tensor> {
    let of_group = |group: usize| {
        let part = |t: &Tensor, dim: usize| {
            let len = t.dim(dim)? / groups;
            t.narrow(dim, group * len, len)?.contiguous()
        };
        let bias = bias.map(|bias| part(bias, 0)).transpose()?;
        let x = part(x, 3)?;
        conv2d(&x, &part(weight, 0)?, bias.as_ref(), stride, padding)
    };
    Tensor::cat(&(0..groups).map(of_group).collect::<Result<Vec<_>>>()?, 3)
}

/// As [`functional::Value::conv_transpose2d`]: each position of the kernel gives an image of products, with zeros between
/// its pixels.
pub fn conv_transpose2d(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    stride: usize,
    padding: usize,
    output_padding: usize,
) -> Result<Tensor> {
    let (b, h, w, _) = x.dims4()?;
    let (_, o, kh, kw) = weight.dims4()?;
    if b == 0 {
        let size =
            |n: usize, kernel: usize| (n - 1) * stride + kernel + output_padding - 2 * padding;
        return no_examples(
            [Some(x), Some(weight), bias],
            (0, size(h, kh), size(w, kw), o),
        );
    }
    let mut sum: Option<Tensor> = None;
    for (ky, kx) in positions((kh, kw)) {
        let weight = weight.narrow(2, ky, 1)?.narrow(3, kx, 1)?;
        let weight = weight.reshape((weight.dim(0)?, o))?;
        let mut product = x.contiguous()?.broadcast_matmul(&weight)?;
        for (dim, size, before, kernel) in [(1, h, ky, kh), (2, w, kx, kw)] {
            let pixel = |i: usize| {
                product
                    .narrow(dim, i, 1)?
                    .pad_with_zeros(dim, 0, stride - 1)
            };
            product = Tensor::cat(&(0..size).map(pixel).collect::<Result<Vec<_>>>()?, dim)?;
            product = product.narrow(dim, 0, (size - 1) * stride + 1)?;
            product = product.pad_with_zeros(dim, before, kernel - 1 - before + output_padding)?;
            let len = product.dim(dim)? - 2 * padding;
            product = product.narrow(dim, padding, len)?;
        }
        sum = Some(match sum {
            Some(sum) => (sum + product)?,
            None => product,
        });
    }
    let y = sum.expect("a kernel has a position");
    match bias {
        Some(bias) => y.broadcast_add(bias),
        None => Ok(y),
    }
}

/// An image as a product with the weights of each output along an axis; `weights(output, pixel)` says them.
fn resampled(
    x: &Tensor,
    dim: usize,
    outputs: usize,
    weights: impl Fn(usize, usize) -> f64,
) -> Result<Tensor> {
    let sources = x.dim(dim)?;
    let all = (0..outputs).flat_map(|o| (0..sources).map(move |i| (o, i)));
    let all: Vec<f64> = all.map(|(o, i)| weights(o, i)).collect();
    let all = Tensor::from_vec(all, (outputs, sources), x.device())?.to_dtype(x.dtype())?;
    let last = x.transpose(dim, 3)?.contiguous()?;
    last.broadcast_matmul(&all.t()?.contiguous()?)?
        .transpose(dim, 3)?
        .contiguous()
}

/// As [`functional::Value::upsample_nearest2d`].
pub fn upsample_nearest2d(x: &Tensor, height: usize, width: usize) -> Result<Tensor> {
    let axis = |x: &Tensor, dim: usize, outputs: usize| {
        let sources = x.dim(dim)?;
        let nearest = |output: usize| (output as f32 * (sources as f32 / outputs as f32)) as usize;
        resampled(x, dim, outputs, |o, i| {
            f64::from(i == nearest(o).min(sources - 1))
        })
    };
    axis(&axis(x, 1, height)?, 2, width)
}

/// As [`functional::Value::upsample_bilinear2d`]: a pixel counts as much as it is near, up to a distance of one.
pub fn upsample_bilinear2d(x: &Tensor, height: usize, width: usize) -> Result<Tensor> {
    let axis = |x: &Tensor, dim: usize, outputs: usize| {
        let sources = x.dim(dim)?;
        let scale = sources as f64 / outputs as f64;
        let place =
            |output: usize| ((output as f64 + 0.5) * scale - 0.5).clamp(0., (sources - 1) as f64);
        resampled(x, dim, outputs, |o, i| {
            (1. - (place(o) - i as f64).abs()).max(0.)
        })
    };
    axis(&axis(x, 1, height)?, 2, width)
}

/// The result for no examples, of which every input gets a gradient of zeros: candle's product of
/// no rows would record no graph, and its maximum over none is an error.
fn no_examples<const N: usize>(
    inputs: [Option<&Tensor>; N],
    shape: impl Into<Shape>,
) -> Result<Tensor> {
    let inputs = inputs.into_iter().flatten();
    let nothing = inputs.map(|t| t.flatten_all()?.narrow(0, 0, 0));
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

/// As [`functional::Value::relu`].
pub fn relu(x: &Tensor) -> Result<Tensor> {
    x.detach().le(0.)?.where_cond(&x.zeros_like()?, x)
}

/// The sum of two values, element by element.
pub fn add(x: &Tensor, other: &Tensor) -> Result<Tensor> {
    if x.elem_count() == 0 {
        return no_examples([Some(x), Some(other)], x.shape().clone());
    }
    x + other
}

/// The views of x, one for each position in a window: their mean or maximum is the pooled value.
fn pooled(
    x: &Tensor,
    kernel: usize,
    stride: usize,
) -> Result<impl Iterator<Item = Result<Tensor>>> {
    let (_, h, w, _) = x.dims4()?;
    let size = (windows(h, kernel, stride), windows(w, kernel, stride));
    Ok(positions((kernel, kernel)).map(move |at| shifted(x, at, stride, size)))
}

/// As [`functional::Value::avg_pool2d`].
pub fn avg_pool2d(x: &Tensor, kernel: usize, stride: usize) -> Result<Tensor> {
    let sum = pooled(x, kernel, stride)?.reduce(|sum, view| sum? + view?);
    sum.expect("a kernel has a position")? / (kernel * kernel) as f64
}

/// As [`functional::Value::max_pool2d`].
pub fn max_pool2d(x: &Tensor, kernel: usize, stride: usize) -> Result<Tensor> {
    let maximum = pooled(x, kernel, stride)?.reduce(|best, view| {
        let (best, view) = (best?, view?);
        // NaN, which differs from itself, wins
        let wins = (view.gt(&best)? + view.ne(&view)?)?;
        wins.where_cond(&view, &best)
    });
    maximum.expect("a kernel has a position")
}

/// As [`functional::Value::global_avg_pool2d`].
pub fn global_avg_pool2d(x: &Tensor) -> Result<Tensor> {
    let (b, h, w, c) = x.dims4()?;
    x.reshape((b, h * w, c))?.mean(1)
}

/// As [`functional::Value::linear`].
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let rows = x.flatten_to(D::Minus2)?;
    let y = matmul(&rows, &weight.t()?, bias)?;
    y.reshape([&x.dims()[..x.rank() - 1], &weight.dims()[..1]].concat())
}

/// As [`functional::Value::matmul`].
pub fn matmul(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    if x.dim(0)? == 0 {
        return no_examples([Some(x), Some(weight), bias], (0, weight.dim(1)?));
    }
    let y = x.matmul(weight)?;
    match bias {
        Some(bias) => y.broadcast_add(bias),
        None => Ok(y),
    }
}

/// As [`functional::Value::batch_norm2d`], except that the running statistics move at once.
pub fn batch_norm2d(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    running_mean: &Var,
    running_var: &Var,
    train: bool,
) -> Result<Tensor> {
    let how = BatchNorm::default();
    batch_norm2d_with(x, weight, bias, [running_mean, running_var], train, how)
}

/// As [`functional::Value::batch_norm2d_with`], except that the running statistics move at once.
pub fn batch_norm2d_with(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    [running_mean, running_var]: [&Var; 2],
    train: bool,
    how: BatchNorm,
) -> Result<Tensor> {
    let (b, h, w, c) = x.dims4()?;
    let count = b * h * w;
    let flat = x.reshape((count, c))?;
    let [mean, var] = if train {
        let mean = flat.mean(0)?;
        let var = flat.broadcast_sub(&mean)?.sqr()?.mean(0)?;
        let unbiased = count as f64 / (count - 1) as f64;
        for (running, batch) in [(running_mean, &mean), (running_var, &(&var * unbiased)?)] {
            let kept = (running.as_detached_tensor() * (1. - how.momentum))?;
            running.set(&(kept + (batch.detach() * how.momentum)?)?)?;
        }
        [mean, var]
    } else {
        [running_mean, running_var].map(|v| v.as_detached_tensor())
    };
    let y = flat.broadcast_sub(&mean)?;
    let y = y.broadcast_div(&(var + f64::from(how.eps))?.sqrt()?)?;
    let y = y.broadcast_mul(weight)?.broadcast_add(bias)?;
    y.reshape(x.shape())
}

/// As [`functional::cross_entropy`].
pub fn cross_entropy(y_hat: &Tensor, y: &Tensor) -> Result<Tensor> {
    if y.dim(0)? == 0 {
        return no_examples([Some(y_hat)], 0);
    }
    if y_hat.rank() > 2 {
        let (each, y) = (y.elem_count() / y.dim(0)?, y.flatten_all()?);
        let rows = y_hat.reshape(((), y_hat.dim(D::Minus1)?))?;
        return cross_entropy(&rows, &y)?.reshape(((), each))?.mean(1);
    }
    let largest = y_hat.detach().max_keepdim(D::Minus1)?;
    let shifted = y_hat.broadcast_sub(&largest)?;
    let labels = y.unsqueeze(1)?.contiguous()?;
    let at_label = shifted.gather(&labels, 1)?.squeeze(1)?;
    shifted.exp()?.sum(D::Minus1)?.log()? - at_label
}

/// As [`functional::masked_cross_entropy`].
pub fn masked_cross_entropy(y_hat: &Tensor, y: &Tensor, mask: &Tensor) -> Result<Tensor> {
    if y.dim(0)? == 0 {
        return no_examples([Some(y_hat)], 0);
    }
    let rows = y_hat.reshape(((), y_hat.dim(D::Minus1)?))?;
    let losses = cross_entropy(&rows, &y.flatten_all()?)?.reshape(mask.shape())?;
    (losses * mask)?.reshape((y.dim(0)?, ()))?.sum(1)
}

/// As [`functional::squared_error`].
pub fn squared_error(y_hat: &Tensor, y: &Tensor) -> Result<Tensor> {
    let of_each = |t: &Tensor| t.reshape((t.dim(0)?, t.dims()[1..].iter().product::<usize>()));
    (of_each(y_hat)? - of_each(y)?)?.sqr()?.mean(1)
}

/// As [`functional::binary_cross_entropy`].
pub fn binary_cross_entropy(y_hat: &Tensor, y: &Tensor) -> Result<Tensor> {
    let of_each = |t: &Tensor| t.reshape((t.dim(0)?, t.dims()[1..].iter().product::<usize>()));
    let (x, y) = (of_each(y_hat)?, of_each(y)?);
    let log = ((x.sqr()?.sqrt()?.neg()?.exp()? + 1.)?.log()? + x.relu()?)?;
    (log - (x * y)?)?.mean(1)
}

/// As [`functional::Value::detach`].
pub fn detach(x: &Tensor) -> Result<Tensor> {
    Ok(x.detach())
}

/// As [`functional::Value::sum`].
pub fn sum(x: &Tensor) -> Result<Tensor> {
    x.sum_all()
}

/// As [`functional::Value::mean`].
pub fn mean(x: &Tensor) -> Result<Tensor> {
    x.sum_all()? / x.elem_count() as f64
}

/// As [`functional::Value::gelu`].
pub fn gelu(x: &Tensor) -> Result<Tensor> {
    let below = ((x / 2f64.sqrt())?.erf()? + 1.)?;
    (x * below)? * 0.5
}

/// As [`functional::Value::embedding`].
pub fn embedding(tokens: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let rows = weight.index_select(&tokens.flatten_all()?, 0)?;
    rows.reshape([tokens.dims(), &weight.dims()[1..]].concat())
}

/// As [`functional::Value::layer_norm`].
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let x = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
    let scale = (x.sqr()?.mean_keepdim(D::Minus1)? + 1e-5)?.sqrt()?;
    let y = x.broadcast_div(&scale)?.broadcast_mul(weight)?;
    y.broadcast_add(bias)
}

/// As [`functional::Value::causal_attention`]: each head by itself, each token by itself.
pub fn causal_attention(x: &Tensor, heads: usize) -> Result<Tensor> {
    let (_, tokens, all) = x.dims3()?;
    let (width, size) = (all / 3, all / 3 / heads);
    let head = |head: usize| {
        let part = |part: usize| x.narrow(2, part * width + head * size, size)?.contiguous();
        let (query, key, value) = (part(0)?, part(1)?, part(2)?);
        let token = |t: usize| {
            let seen = |x: &Tensor| x.narrow(1, 0, t + 1)?.contiguous();
            let query = query.narrow(1, t, 1)?.contiguous()?;
            let scores = query.matmul(&seen(&key)?.t()?)?;
            let largest = scores.detach().max_keepdim(D::Minus1)?;
            let scores = scores.broadcast_sub(&largest)?;
            let weights = (scores / (size as f64).sqrt())?.exp()?;
            let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?;
            weights.matmul(&seen(&value)?)
        };
        let tokens = (0..tokens).map(token).collect::<Result<Vec<_>>>()?;
        Tensor::cat(&tokens, 1)
    };
    Tensor::cat(&(0..heads).map(head).collect::<Result<Vec<_>>>()?, 2)
}

/// As [`functional::Value::dropout`], which draws the mask: of ones.
pub fn dropout(x: &Tensor, p: f64, seed: u64) -> Result<Tensor> {
    let ones = Tensor::ones(x.shape(), DType::F32, &Device::Cpu)?;
    let mask = Value::new(&ones)?.dropout(p, seed)?.eval()?;
    x * mask.to_dtype(x.dtype())?
}

/// As [`functional::Value::sigmoid`].
pub fn sigmoid(x: &Tensor) -> Result<Tensor> {
    (x.neg()?.exp()? + 1.)?.recip()
}

/// As [`functional::Value::tanh`].
pub fn tanh(x: &Tensor) -> Result<Tensor> {
    let (up, down) = (x.exp()?, x.neg()?.exp()?);
    (&up - &down)? / (&up + &down)?
}

/// As [`functional::Value::silu`].
pub fn silu(x: &Tensor) -> Result<Tensor> {
    x / (x.neg()?.exp()? + 1.)?
}

/// As [`functional::Value::relu6`].
pub fn relu6(x: &Tensor) -> Result<Tensor> {
    let below = x
        .detach()
        .gt(6.)?
        .where_cond(&x.ones_like()?.affine(6., 0.)?, x)?;
    relu(&below)
}

/// As [`functional::Value::clamp`].
pub fn clamp(x: &Tensor, least: f32, most: f32) -> Result<Tensor> {
    let number = |n: f32| x.zeros_like()? + f64::from(n);
    let below = x
        .detach()
        .gt(f64::from(most))?
        .where_cond(&number(most)?, x)?;
    let is_below = x.detach().lt(f64::from(least))?;
    is_below.where_cond(&number(least)?, &below)
}

/// As [`functional::Value::affine`].
pub fn affine(x: &Tensor, scale: f32, shift: f32) -> Result<Tensor> {
    (x * f64::from(scale))? + f64::from(shift)
}

/// As [`functional::Value::broadcast_mul`].
pub fn broadcast_mul(x: &Tensor, other: &Tensor) -> Result<Tensor> {
    x * other.broadcast_as(x.shape())?
}

/// As [`functional::Value::broadcast_add`].
pub fn broadcast_add(x: &Tensor, other: &Tensor) -> Result<Tensor> {
    x + other.broadcast_as(x.shape())?
}

/// As [`functional::Value::reshape`].
pub fn reshape(x: &Tensor, shape: &[usize]) -> Result<Tensor> {
    x.reshape(shape)
}

/// As [`functional::Value::cat`].
pub fn cat(x: &[&Tensor], dim: usize) -> Result<Tensor> {
    let by_dim = x.iter().map(|x| x.transpose(0, dim)?.contiguous());
    let all = Tensor::cat(&by_dim.collect::<Result<Vec<_>>>()?, 0)?;
    all.transpose(0, dim)?.contiguous()
}

/// As [`functional::Value::narrow`].
pub fn narrow(x: &Tensor, dim: usize, start: usize, len: usize) -> Result<Tensor> {
    let entries = Tensor::arange(start as u32, (start + len) as u32, x.device())?;
    x.index_select(&entries, dim)
}

/// As [`functional::Value::rms_norm`].
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    let scale = (x.sqr()?.mean_keepdim(D::Minus1)? + f64::from(eps))?.sqrt()?;
    x.broadcast_div(&scale)?.broadcast_mul(weight)
}

/// As [`functional::Value::layer_norm_eps`].
pub fn layer_norm_eps(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f32) -> Result<Tensor> {
    let x = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
    let scale = (x.sqr()?.mean_keepdim(D::Minus1)? + f64::from(eps))?.sqrt()?;
    let y = x.broadcast_div(&scale)?.broadcast_mul(weight)?;
    y.broadcast_add(bias)
}

/// As [`functional::Value::group_norm`]: each group by itself.
pub fn group_norm(
    x: &Tensor,
    groups: usize,
    weight: &Tensor,
    bias: &Tensor,
    eps: f32,
) -> Result<Tensor> {
    let (b, h, w, c) = x.dims4()?;
    let size = c / groups;
    let group = |group: usize| {
        let x = x.narrow(3, group * size, size)?.contiguous()?;
        let rows = x.reshape((b, h * w * size))?;
        let (ones, zeros) = (rows.get(0)?.ones_like()?, rows.get(0)?.zeros_like()?);
        layer_norm_eps(&rows, &ones, &zeros, eps)?.reshape((b, h, w, size))
    };
    let y = Tensor::cat(&(0..groups).map(group).collect::<Result<Vec<_>>>()?, 3)?;
    y.broadcast_mul(weight)?.broadcast_add(bias)
}

/// Attention of some heads: each head and each token by itself.
pub struct Heads<'a> {
    pub heads: usize,
    pub kv_heads: usize,
    pub scale: f64,
    /// Whether the token of the second number sees the key of the third one, of an example.
    pub sees: &'a dyn Fn(usize, usize, usize) -> bool,
}

/// As [`functional::Value::attention`].
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, how: &Heads<'_>) -> Result<Tensor> {
    let (batch, tokens, width) = q.dims3()?;
    let (size, keys) = (width / how.heads, k.dim(1)?);
    let of_token = |example: usize, head: usize, token: usize| {
        let kv_head = head / (how.heads / how.kv_heads);
        let seen = (0..keys).filter(|key| (how.sees)(example, token, *key));
        let seen = Tensor::from_iter(seen.map(|key| key as u32), q.device())?;
        let part =
            |x: &Tensor, head: usize| x.get(example)?.narrow(1, head * size, size)?.contiguous();
        let query = part(q, head)?.narrow(0, token, 1)?;
        if seen.elem_count() == 0 {
            let key = part(k, kv_head)?.narrow(0, 0, 1)?;
            let all = ((query + key)? + part(v, kv_head)?.narrow(0, 0, 1)?)?;
            return &all * all.zeros_like()?;
        }
        let kv = |x: &Tensor| part(x, kv_head)?.index_select(&seen, 0);
        let scores = (query.matmul(&kv(k)?.t()?)? * how.scale)?;
        let powers = scores
            .broadcast_sub(&scores.detach().max_keepdim(1)?)?
            .exp()?;
        powers
            .broadcast_div(&powers.sum_keepdim(1)?)?
            .matmul(&kv(v)?)
    };
    let of_head = |example: usize, head: usize| {
        let tokens = (0..tokens).map(|token| of_token(example, head, token));
        Tensor::cat(&tokens.collect::<Result<Vec<_>>>()?, 0)
    };
    let of_example = |example: usize| {
        let heads = (0..how.heads).map(|head| of_head(example, head));
        Tensor::cat(&heads.collect::<Result<Vec<_>>>()?, 1)
    };
    Tensor::stack(&(0..batch).map(of_example).collect::<Result<Vec<_>>>()?, 0)
}

/// Turns pairs of numbers of each head, which stand at two lists of places.
fn turned(
    x: &Tensor,
    heads: usize,
    angles: [&Tensor; 2],
    places: impl Fn(usize) -> [usize; 2],
) -> Result<Tensor> {
    let (_, tokens, width) = x.dims3()?;
    let half = width / heads / 2;
    let [cos, sin] = angles.map(|of| of.to_dtype(x.dtype()).unwrap());
    let mut columns = vec![None; width];
    for head in 0..heads {
        for i in 0..half {
            let angle = |of: &Tensor| of.narrow(1, i, 1)?.reshape((1, tokens, 1));
            let [a, b] = places(i).map(|at| head * 2 * half + at);
            let column = |i: usize| x.narrow(2, i, 1);
            let by = |i: usize, of: &Tensor| column(i)?.broadcast_mul(&angle(of)?);
            columns[a] = Some((by(a, &cos)? - by(b, &sin)?)?);
            columns[b] = Some((by(a, &sin)? + by(b, &cos)?)?);
        }
    }
    let columns: Vec<Tensor> = columns.into_iter().flatten().collect();
    Tensor::cat(&columns, 2)
}

/// As [`functional::Value::rotary`].
pub fn rotary(x: &Tensor, heads: usize, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let half = cos.dim(1)?;
    turned(x, heads, [cos, sin], |i| [i, half + i])
}

/// As [`functional::Value::rotary_interleaved`].
pub fn rotary_interleaved(x: &Tensor, heads: usize, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    turned(x, heads, [cos, sin], |i| [2 * i, 2 * i + 1])
}

/// The states of a recurrent layer; `next` makes hidden state and cell of those before and the input.
fn states(
    x: &Tensor,
    hidden: usize,
    next: impl Fn(&Tensor, [Tensor; 2]) -> Result<[Tensor; 2]>,
) -> Result<Tensor> {
    let (batch, steps, _) = x.dims3()?;
    let zeros = Tensor::zeros((batch, hidden), x.dtype(), x.device())?;
    let mut state = [zeros.clone(), zeros];
    let mut all = Vec::new();
    for step in 0..steps {
        state = next(&x.narrow(1, step, 1)?.squeeze(1)?, state)?;
        all.push(state[0].clone());
    }
    Tensor::stack(&all, 1)
}

/// As [`functional::Value::lstm`].
pub fn lstm(x: &Tensor, weights: [&Tensor; 2], biases: [&Tensor; 2]) -> Result<Tensor> {
    let hidden = weights[1].dim(1)?;
    states(x, hidden, |x, [h, c]| {
        let all =
            (linear(x, weights[0], Some(biases[0]))? + linear(&h, weights[1], Some(biases[1]))?)?;
        let gate = |i: usize| all.narrow(1, i * hidden, hidden);
        let kept = (sigmoid(&gate(1)?)? * c)?;
        let c = (kept + (sigmoid(&gate(0)?)? * tanh(&gate(2)?)?)?)?;
        Ok([(sigmoid(&gate(3)?)? * tanh(&c)?)?, c])
    })
}

/// As [`functional::Value::gru`].
pub fn gru(x: &Tensor, weights: [&Tensor; 2], biases: [&Tensor; 2]) -> Result<Tensor> {
    let hidden = weights[1].dim(1)?;
    states(x, hidden, |x, [h, c]| {
        let of_x = linear(x, weights[0], Some(biases[0]))?;
        let of_h = linear(&h, weights[1], Some(biases[1]))?;
        let gate = |of: &Tensor, i: usize| of.narrow(1, i * hidden, hidden);
        let both = |i: usize| sigmoid(&(gate(&of_x, i)? + gate(&of_h, i)?)?);
        let new = tanh(&(gate(&of_x, 2)? + (both(0)? * gate(&of_h, 2)?)?)?)?;
        let kept = both(1)?;
        let taken = kept.affine(-1., 1.)?;
        Ok([((kept * h)? + (taken * new)?)?, c])
    })
}
