//! Networks and losses that are drawn from the rows that are right, and a step of a trainer on each.

use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use candle_core::{D, DType, Device, Module, ModuleT, Tensor};
use candle_nn::rnn::{GRUConfig, LSTMConfig, RNN};
use candle_nn::{Activation as Act, Conv2dConfig, ConvTranspose2dConfig, Init, VarBuilder, ops};
use concise::layers::Linear;
use concise::{DataParallel, Initializer, Replication, Sgd, Trainer};
use functional::{Network, Value, candle, cross_entropy, squared_error};

use super::row::Output;
use crate::kit::{cpus, formula_tensor};

/// Draws whole numbers of a seed (SplitMix64).
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    /// A number from `first` to `last`.
    fn between(&mut self, first: usize, last: usize) -> usize {
        first + self.below(last - first + 1)
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// Layers that make equal numbers of one cause, or sums of zeros. There candle's gradient of a maximum or minimum is wrong.
const EQUAL: &str = "equal numbers:";

/// Layers that make equal numbers without a gradient. Behind other layers they can be equal numbers with one.
const ZEROS: [&str; 7] = [
    "relu",
    "Relu",
    "residual Relu",
    "HardSwish",
    "HardSigmoid",
    "dropout",
    "of elements",
];

/// True if candle's gradient of a maximum or minimum can be wrong behind the layers with these names.
fn makes_equal(names: &[String]) -> bool {
    let is_zeros = |name: &String| ZEROS.iter().any(|start| name.starts_with(start));
    let before_last = &names[..names.len() - 1];
    names.iter().any(|name| name.starts_with(EQUAL)) || before_last.iter().any(is_zeros)
}

type Forward = dyn Fn(&Tensor, bool) -> Output;

/// A layer of candle's, which is told whether it trains.
struct Layer {
    name: String,
    forward: Box<Forward>,
}

struct Layers(Vec<Layer>);

impl ModuleT for Layers {
    fn forward_t(&self, x: &Tensor, train: bool) -> Output {
        let mut layers = self.0.iter();
        layers.try_fold(x.clone(), |x, layer| (layer.forward)(&x, train))
    }
}

fn layer(name: impl Into<String>, f: impl Fn(&Tensor) -> Output + 'static) -> Layer {
    Layer {
        name: name.into(),
        forward: Box::new(move |x, _train| f(x)),
    }
}

const ACTIVATIONS: [Act; 15] = [
    Act::Gelu,
    Act::NewGelu,
    Act::GeluPytorchTanh,
    Act::Relu,
    Act::Relu2,
    Act::Relu6,
    Act::LeakyRelu(0.1),
    Act::Silu,
    Act::Swish,
    Act::HardSwish,
    Act::Sigmoid,
    Act::HardSigmoid,
    Act::Mish,
    Act::Elu(0.7),
    Act::Swiglu,
];

const OF_ELEMENTS: [fn(&Tensor) -> Output; 21] = [
    |x| x.tanh()?.exp(),
    |x| (x.sqr()? + 1.)?.log(),
    Tensor::sin,
    Tensor::cos,
    Tensor::tanh,
    Tensor::abs,
    Tensor::neg,
    |x| (x.sqr()? + 1.)?.recip(),
    |x| x.tanh()?.sqr(),
    |x| (x.sqr()? + 0.1)?.sqrt(),
    Tensor::erf,
    Tensor::gelu_erf,
    |x| x.elu(0.7),
    |x| x.affine(2., 1.),
    |x| x.clamp(-0.5, 0.5)? + (x * 0.1)?,
    |x| x.ge(0.5)?.where_cond(x, &(x * 0.2)?),
    |x| x.maximum(&(x * 0.3)?),
    |x| x.minimum(&x.sin()?),
    |x| (x.sqr()? + 2.)?.powf(0.5),
    |x| x / (x.sqr()? + 2.)?,
    |x| (x.sqr()? + 1.)?.pow(&x.tanh()?),
];

fn activation(draw: &mut Draw, dims: &[usize]) -> Layer {
    if draw.below(8) == 0 {
        let dropout = candle_nn::Dropout::new(0.5);
        return Layer {
            name: "dropout".into(),
            forward: Box::new(move |x, train| dropout.forward(x, train)),
        };
    }
    if draw.below(3) == 0 {
        let number = draw.below(OF_ELEMENTS.len());
        return layer(format!("of elements {number}"), OF_ELEMENTS[number]);
    }
    let halves = dims[dims.len() - 1].is_multiple_of(2);
    let count = if halves {
        ACTIVATIONS.len()
    } else {
        ACTIVATIONS.len() - 1
    };
    let activation = ACTIVATIONS[draw.below(count)];
    layer(format!("{activation:?}"), move |x| activation.forward(x))
}

/// Of images (B, C, H, W).
fn of_images(draw: &mut Draw, dims: &[usize], vb: VarBuilder<'_>) -> candle_core::Result<Layer> {
    let &[batch, channels, height, width] = dims else {
        candle_core::bail!("{dims:?}")
    };
    let outputs = draw.of(&[1, 2, 3, 4, 8]);
    let divides = |n: usize| height.is_multiple_of(n) && width.is_multiple_of(n);
    Ok(match draw.below(12) {
        0..=2 => {
            let groups = draw.of(&[1, 1, 2]);
            let groups = if channels.is_multiple_of(groups) {
                groups
            } else {
                1
            };
            let kernel = draw.of(&[1, 2, 3]);
            let mut config = Conv2dConfig {
                padding: draw.below(kernel.min(2)), // of a kernel of 1 the padding would give equal numbers
                stride: draw.between(1, 2),
                dilation: draw.between(1, 2),
                groups,
                cudnn_fwd_algo: None,
            };
            let reach = |size: usize, config: &Conv2dConfig| {
                (size + 2 * config.padding).checked_sub(config.dilation * (kernel - 1) + 1)
            };
            let [Some(of_height), Some(of_width)] = [reach(height, &config), reach(width, &config)]
            else {
                return Ok(activation(draw, dims));
            };
            if of_height % config.stride != of_width % config.stride {
                config.stride = 1;
            }
            let conv = candle_nn::conv2d(channels, outputs * groups, kernel, config, vb)?;
            layer(format!("conv2d {kernel}, {config:?}"), move |x| {
                conv.forward(x)
            })
        }
        3 => {
            let (stride, padding, dilation) = draw.of(&[(1, 0, 1), (2, 1, 1), (1, 0, 2)]);
            let config = ConvTranspose2dConfig {
                padding,
                output_padding: stride - 1,
                stride,
                dilation,
            };
            let conv = candle_nn::conv_transpose2d(channels, outputs, 3, config, vb)?;
            layer(format!("conv_transpose2d {config:?}"), move |x| {
                conv.forward(x)
            })
        }
        4 | 5 if batch * height * width > 1 => {
            let norm = candle_nn::batch_norm(channels, 1e-5, vb)?;
            Layer {
                name: "batch_norm".into(),
                forward: Box::new(move |x, train| norm.forward_t(x, train)),
            }
        }
        6 if height * width > 1 => {
            let groups = if channels.is_multiple_of(2) { 2 } else { 1 };
            let norm = candle_nn::group_norm(groups, channels, 1e-5, vb)?;
            layer("group_norm", move |x| norm.forward(x))
        }
        7 if divides(2) => layer("avg_pool2d", |x| x.avg_pool2d(2)),
        7 if divides(3) => layer("avg_pool2d", |x| x.avg_pool2d(3)),
        8 if height * width < 50 => layer(format!("{EQUAL} upsample_nearest2d"), move |x| {
            x.upsample_nearest2d(2 * height, 2 * width)
        }),
        8 if divides(2) => layer("pixel_unshuffle", |x| ops::pixel_unshuffle(x, 2)),
        9 if channels.is_multiple_of(4) => layer("pixel_shuffle", |x| ops::pixel_shuffle(x, 2)),
        9 => layer(format!("{EQUAL} replication_pad2d"), |x| {
            ops::replication_pad2d(x, 1)
        }),
        10 => {
            let weight = vb.get_with_hints((1, channels, 1, 1), "scale", Init::Const(1.5))?;
            let scale: [fn(&Tensor, &Tensor) -> Output; 3] = [
                Tensor::broadcast_mul,
                Tensor::broadcast_add,
                Tensor::broadcast_maximum,
            ];
            let number = draw.below(scale.len());
            let scale = scale[number];
            layer(format!("{EQUAL} with a parameter {number}"), move |x| {
                scale(x, &weight)
            })
        }
        _ => activation(draw, dims),
    })
}

/// Of sequences (B, T, C).
fn of_sequences(draw: &mut Draw, dims: &[usize], vb: VarBuilder<'_>) -> candle_core::Result<Layer> {
    let &[_, tokens, width] = dims else {
        candle_core::bail!("{dims:?}")
    };
    let outputs = draw.of(&[2, 3, 4, 6, 8]);
    Ok(match draw.below(8) {
        0 => {
            let lstm = candle_nn::lstm(width, outputs, LSTMConfig::default(), vb)?;
            layer("lstm", move |x| lstm.states_to_tensor(&lstm.seq(x)?))
        }
        1 => {
            let gru = candle_nn::gru(width, outputs, GRUConfig::default(), vb)?;
            layer("gru", move |x| gru.states_to_tensor(&gru.seq(x)?))
        }
        2 => {
            let [q, k, v] =
                ["q", "k", "v"].map(|name| candle_nn::linear_no_bias(width, outputs, vb.pp(name)));
            let (q, k, v) = (q?, k?, v?);
            layer("attention", move |x| {
                let scores = q.forward(x)?.matmul(&k.forward(x)?.t()?)?;
                ops::softmax(&(scores * 0.5)?, D::Minus1)?.matmul(&v.forward(x)?)
            })
        }
        3 if tokens > 2 => {
            let weight = vb.get_with_hints(
                (width, 1, 3),
                "weight",
                candle_nn::init::DEFAULT_KAIMING_UNIFORM,
            )?;
            // a convolution with one output channel for each group
            layer("conv1d", move |x| {
                x.transpose(1, 2)?
                    .contiguous()?
                    .conv1d(&weight, 1, 1, 1, width)?
                    .transpose(1, 2)?
                    .contiguous()
            })
        }
        4 => {
            let linear = candle_nn::linear(width, outputs, vb)?;
            layer("linear", move |x| linear.forward(x))
        }
        5 => layer(format!("{EQUAL} cumsum"), |x| x.cumsum(1)? * 0.3),
        6 => normed(draw, width, vb)?,
        _ => activation(draw, dims),
    })
}

/// A normalization of the last dimension.
fn normed(draw: &mut Draw, width: usize, vb: VarBuilder<'_>) -> candle_core::Result<Layer> {
    if width == 1 {
        return Ok(layer("tanh", Tensor::tanh));
    }
    let weight = vb.get_with_hints(width, "weight", Init::Const(1.))?;
    Ok(match draw.below(3) {
        0 => {
            let bias = vb.get_with_hints(width, "bias", Init::Const(0.))?;
            layer("layer_norm_slow", move |x| {
                ops::layer_norm_slow(x, &weight, &bias, 1e-5)
            })
        }
        1 => layer("rms_norm_slow", move |x| {
            ops::rms_norm_slow(x, &weight, 1e-5)
        }),
        _ => {
            let norm = candle_nn::LayerNorm::new_no_bias(weight, 1e-5);
            layer("LayerNorm", move |x| norm.forward(x))
        }
    })
}

/// Of vectors (B, C), which may have `equal` numbers of one cause.
fn of_vectors(
    draw: &mut Draw,
    dims: &[usize],
    equal: bool,
    vb: VarBuilder<'_>,
) -> candle_core::Result<Layer> {
    let width = dims[1];
    let outputs = draw.of(&[1, 2, 3, 4, 6, 8, 32]);
    Ok(match draw.below(13) {
        0..=2 => {
            let linear = candle_nn::linear(width, outputs, vb)?;
            layer("linear", move |x| linear.forward(x))
        }
        3 => {
            let linear = candle_nn::linear(width, width, vb)?;
            let activation = draw.of(&[Act::Gelu, Act::Relu, Act::Silu]);
            layer(format!("residual {activation:?}"), move |x| {
                x + activation.forward(&linear.forward(x)?)?
            })
        }
        4 => normed(draw, width, vb)?,
        5 => {
            let prelu = candle_nn::prelu(None, vb)?;
            layer("prelu", move |x| prelu.forward(x))
        }
        6 => layer("softmax", |x| ops::softmax(x, 1)),
        7 => layer("log_softmax", |x| ops::log_softmax(x, D::Minus1)),
        8 => {
            let other = candle_nn::linear(width, width, vb)?;
            let two: [fn(&Tensor, &Tensor) -> Output; 7] = [
                Tensor::mul,
                Tensor::sub,
                |x, y| x.maximum(y),
                |x, y| x.minimum(y),
                |x, y| Tensor::cat(&[x, y], 1),
                |x, y| Tensor::stack(&[x, y], 1)?.mean(1),
                |x, y| x / (y.sqr()? + 1.)?,
            ];
            let number = draw.below(two.len());
            let two = two[number];
            layer(format!("of two {number}"), move |x| {
                two(x, &other.forward(x)?)
            })
        }
        9 => {
            let reduced: [fn(&Tensor) -> Output; 7] = [
                |x| x.broadcast_sub(&x.mean_keepdim(1)?),
                |x| x.broadcast_add(&x.log_sum_exp(1)?.unsqueeze(1)?),
                |x| x.broadcast_div(&(x.sqr()?.sum_keepdim(1)? + 0.5)?.sqrt()?),
                |x| x.broadcast_mul(&(x.norm()? * 0.1)?),
                |x| Ok(x.contiguous()?.sort_last_dim(true)?.0),
                |x| x.broadcast_sub(&x.max_keepdim(1)?),
                |x| x.broadcast_add(&x.min_keepdim(1)?),
            ];
            let number = draw.below(if equal { 5 } else { 7 });
            layer(format!("reduced {number}"), reduced[number])
        }
        10 => {
            let moved: [fn(&Tensor) -> Output; 4] = [
                |x| x.contiguous()?.flip(&[1]),
                |x| x.roll(1, 1),
                |x| x.t()?.contiguous()?.t(),
                |x| x.narrow(1, 0, x.dim(1)?.div_ceil(2)),
            ];
            let number = draw.below(moved.len());
            layer(format!("moved {number}"), moved[number])
        }
        11 => {
            let copied: [fn(&Tensor) -> Output; 4] = [
                |x| x.pad_with_zeros(1, 1, 1),
                |x| x.pad_with_same(1, 1, 1),
                |x| x.repeat((1, 2)),
                |x| {
                    x.contiguous()?
                        .index_select(&Tensor::new(&[0u32, 0], x.device())?, 1)
                },
            ];
            let number = draw.below(copied.len());
            layer(format!("{EQUAL} {number}"), copied[number])
        }
        _ => activation(draw, dims),
    })
}

/// What follows a tensor of these dimensions. Images and sequences become vectors at last.
fn next(
    draw: &mut Draw,
    dims: &[usize],
    last: bool,
    equal: bool,
    vb: VarBuilder<'_>,
) -> candle_core::Result<Layer> {
    Ok(match (dims.len(), draw.below(8)) {
        (4, 0 | 1) => layer("flatten", |x| x.flatten_from(1)),
        (4, 2) => layer("mean", |x| x.mean((2, 3))),
        (4, 3) => layer("sequence", |x| {
            x.flatten_from(2)?.transpose(1, 2)?.contiguous()
        }),
        (4, _) if last => layer("mean", |x| x.mean((2, 3))),
        (4, _) => of_images(draw, dims, vb)?,
        (3, 0) if !equal => layer("max", |x| x.max(1)),
        (3, 1) => layer("mean", |x| x.mean(1)),
        (3, 2) => layer("flatten", |x| x.flatten_from(1)),
        (3, _) if last => layer("sum", |x| x.sum(1)),
        (3, _) => of_sequences(draw, dims, vb)?,
        _ => of_vectors(draw, dims, equal, vb)?,
    })
}

/// The input of a network: images, sequences, vectors or tokens.
fn input(draw: &mut Draw) -> Result<Tensor> {
    let batch = draw.between(1, 6);
    let sizes = [1, 2, 3, 4, 5, 6, 8];
    let dims = match draw.below(4) {
        0 | 1 => vec![
            batch,
            draw.between(1, 4),
            draw.between(4, 9),
            draw.between(4, 9),
        ],
        2 => vec![batch, draw.between(2, 5), draw.of(&sizes)],
        _ => vec![batch, draw.of(&sizes)],
    };
    let x = formula_tensor(1, 1.0, &dims)?;
    Ok(match dims.len() {
        3 if draw.below(2) == 0 => (x.abs()? * 4.)?.to_dtype(DType::U32)?.max(2)?,
        _ => x,
    })
}

/// A network with the names of its layers and the shapes after them.
struct Drawn<N> {
    net: N,
    names: String,
}

/// Some modules of candle's with some layers each, and layers of ours between them. A wrong one loses a quarter of the
/// gradient of its first layer.
fn network(
    draw: &mut Draw,
    x: &Tensor,
    is_wrong: bool,
    vb: VarBuilder<'_>,
) -> candle_core::Result<Drawn<impl Network + use<>>> {
    let mut layers: Vec<Box<dyn Network>> = Vec::new();
    let mut dims = x.dims().to_vec();
    let (mut part, mut names) = (Layers(Vec::new()), vec![format!("{dims:?}")]);
    if !x.dtype().is_float() {
        let embedding = candle_nn::embedding(8, draw.between(2, 6), vb.pp("embedding"))?;
        part.0.push(layer(format!("{EQUAL} embedding"), move |x| {
            embedding.forward(x)
        }));
        dims = part.forward_t(x, false)?.dims().to_vec();
        names.push(EQUAL.to_owned() + "embedding");
    } else if draw.below(3) == 0 {
        let width = dims[dims.len() - 1];
        layers.push(Box::new(Linear::new(width, width, vb.pp("before"))?));
    }
    let depth = draw.between(1, 8);
    for i in 0..depth + 2 {
        let equal = makes_equal(&names);
        let following = next(draw, &dims, i >= depth, equal, vb.pp(i))?;
        let ones = Tensor::ones(&dims[..], DType::F32, &Device::Cpu)?;
        let y = (following.forward)(&ones, false)?;
        if y.elem_count() > 4000 {
            continue; // too large for a quick test
        }
        dims = y.dims().to_vec();
        names.push(format!("{} -> {dims:?}", following.name));
        part.0.push(following);
        if is_wrong && i == 0 {
            part.0.push(layer("three quarters of the gradient", |x| {
                (x * 0.75)? + (x.detach() * 0.25)?
            }));
        }
        if draw.below(4) == 0 {
            names.push("next module".into());
            layers.push(Box::new(candle(std::mem::replace(
                &mut part,
                Layers(Vec::new()),
            ))));
            if draw.below(2) == 0 {
                names.push("relu".into());
                layers.push(Box::new(|x: &Value, _: bool| x.relu()));
            }
        }
    }
    layers.push(Box::new(candle(part)));
    let last = Linear::new(dims[1..].iter().product(), 3, vb.pp("last"))?;
    let net = move |x: &Value, train: bool| {
        let mut layers = layers.iter();
        let y = layers.try_fold(x.clone(), |x, layer| layer.forward(&x, train))?;
        last.forward(&y, train)
    };
    Ok(Drawn {
        net,
        names: names.join("; "),
    })
}

type Loss = fn(&Value, &Tensor) -> candle_core::Result<Value>;

/// Losses of each example, of scores (B, 3).
const LOSSES: [Loss; 8] = [
    cross_entropy,
    |y_hat, y| squared_error(y_hat, &one_hot(y)?),
    |y_hat, y| {
        let y = y.unsqueeze(1)?;
        let nll =
            candle(move |x: &Tensor| ops::log_softmax(x, 1)?.gather(&y, 1)?.squeeze(1)?.neg());
        nll.forward(y_hat, true)
    },
    |y_hat, y| {
        let y = y.unsqueeze(1)?;
        let focal = candle(move |x: &Tensor| {
            let p = ops::softmax(x, D::Minus1)?.gather(&y, 1)?.squeeze(1)?;
            p.affine(-1., 1.)?.sqr()? * p.log()?.neg()?
        });
        focal.forward(y_hat, true)
    },
    |y_hat, y| {
        let y = one_hot(y)?;
        // log(1 + exp(x)) - x · y
        let logit = candle(move |x: &Tensor| ((x.exp()? + 1.)?.log()? - (x * &y)?)?.mean(1));
        logit.forward(y_hat, true)
    },
    |y_hat, y| {
        let y = one_hot(y)?;
        let sigmoid = candle(ops::sigmoid).forward(y_hat, true)?;
        let of_p = candle(move |p: &Tensor| {
            let other = p.affine(-1., 1.)?.log()? * y.affine(-1., 1.)?;
            ((p.log()? * &y)? + other)?.sum(1)?.neg()
        });
        of_p.forward(&sigmoid, true)
    },
    |y_hat, y| {
        let y = one_hot(y)?;
        let hinge =
            candle(move |x: &Tensor| (x * y.affine(-2., 1.)?)?.affine(1., 1.)?.relu()?.sum(1));
        hinge.forward(y_hat, true)
    },
    |y_hat, y| {
        let y = one_hot(y)?;
        let huber = candle(move |x: &Tensor| {
            let apart = (x - &y)?.abs()?;
            let (near, far) = ((apart.sqr()? * 0.5)?, (&apart * 0.5)?.affine(1., -0.125)?);
            apart.lt(0.5)?.where_cond(&near, &far)?.mean(1)
        });
        huber.forward(y_hat, true)
    },
];

fn one_hot(y: &Tensor) -> Output {
    let classes = Tensor::arange(0u32, 3, y.device())?;
    let is = y.unsqueeze(1)?.broadcast_eq(&classes.unsqueeze(0)?)?;
    is.to_dtype(DType::F32)
}

/// Builds the network of a seed, a right or a wrong one, and takes a step.
pub fn step(seed: u64, is_wrong: bool) -> Result<()> {
    let mut draw = Draw(seed << 20);
    let x = input(&mut draw)?;
    let loss = draw.of(&LOSSES);
    let y = (0..x.dim(0)? as u32).map(|i| i % 3);
    let y = Tensor::from_iter(y, &Device::Cpu)?;
    let names: Arc<Mutex<String>> = Arc::default();
    let (example, kept) = (x.clone(), names.clone());
    let build = move |vb: VarBuilder<'_>| {
        let drawn = network(&mut Draw((seed << 20) + 1), &example, is_wrong, vb)?;
        *kept.lock().expect("no thread panicked") = drawn.names;
        Ok(drawn.net)
    };
    let how = Replication {
        allow_unused: true, // layers that were left out
        ..Replication::default()
    };
    let net = DataParallel::with(how, &cpus(1), Initializer::Layers, seed, build)?;
    let trainer = Trainer::new(&net, loss, Sgd::new(0.01));
    let step = trainer.check_numbers(false).step(&x, &y);
    let names = names.lock().expect("no thread panicked");
    step.map(drop).with_context(|| names.clone())
}
