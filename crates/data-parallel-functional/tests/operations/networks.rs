//! Random networks of each kind, with every operation in one of them. The tests compare them with the reference, and
//! on a GPU with the CPU. `least` is the smallest batch.

use crate::both::{Both, Running};
use crate::reference;
use crate::support::{coarse, from_0_to_1, labels, random, tensor, values};
use candle_core::{Result, Tensor};
use functional::{BatchNorm, Value};
use proptest::prelude::*;
use std::fmt;

type Network = dyn Fn(&[Tensor]) -> Result<Both>;

pub struct Case {
    /// What a failing test prints.
    sizes: String,
    pub inputs: Vec<Tensor>,
    pub network: Box<Network>,
    /// Whether no input is at a kink, so that central differences are gradients.
    pub smooth: bool,
}

impl Case {
    pub fn new(
        sizes: impl fmt::Debug,
        inputs: Vec<Tensor>,
        network: impl Fn(&[Tensor]) -> Result<Both> + 'static,
    ) -> Self {
        Self {
            sizes: format!("{sizes:?}"),
            inputs,
            network: Box::new(network),
            smooth: false,
        }
    }

    pub fn smooth_if(self, smooth: bool) -> Self {
        Self { smooth, ..self }
    }

    /// Whether ReLU cuts the same values off however they are rounded.
    pub fn is_away_from_edges(&self) -> bool {
        (self.network)(&self.inputs).unwrap().edge > 1e-5
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sizes)
    }
}

pub fn conv2d() -> impl Strategy<Value = Case> {
    let channels = (0usize..4, 1usize..6, 1usize..7);
    let (kernel, more) = ((1usize..5, 1usize..5), (0usize..9, 0usize..9));
    let window = (kernel, more, (1usize..4, 0usize..6));
    (channels, window, any::<bool>(), 0u64..1000).prop_map(|sizes| {
        let ((b, i, o), ((kh, kw), more, (stride, padding)), with_bias, seed) = sizes;
        // the kernel fits into the padded image
        let size = |kernel: usize, more: usize| (kernel + more).saturating_sub(2 * padding).max(1);
        let x = random((b, size(kh, more.0), size(kw, more.1), i), seed);
        let mut inputs = vec![x, random((o, i, kh, kw), seed + 1)];
        inputs.extend(with_bias.then(|| random(o, seed + 2)));
        let network =
            move |t: &[Tensor]| Both::new(&t[0])?.conv2d(&t[1], t.get(2), stride, padding);
        Case::new(sizes, inputs, network).smooth_if(true)
    })
}

/// Half of them have one input in each group, with one output or more; the others have several.
pub fn grouped_conv2d() -> impl Strategy<Value = Case> {
    let channels = (1usize..3, 1usize..20, (1usize..4, 1usize..4));
    let (kernel, more) = ((1usize..5, 1usize..5), (0usize..12, 0usize..12));
    let window = (kernel, more, (1usize..4, 0usize..6));
    (channels, window, any::<(bool, bool)>(), 0u64..1000).prop_map(|sizes| {
        let ((b, groups, (i, o)), ((kh, kw), more, (stride, padding)), flags, seed) = sizes;
        let (depthwise, with_bias) = flags;
        let i = if depthwise { 1 } else { i };
        // the kernel fits into the padded image
        let size = |kernel: usize, more: usize| (kernel + more).saturating_sub(2 * padding).max(1);
        let x = (b, size(kh, more.0), size(kw, more.1), i * groups);
        let mut inputs = vec![random(x, seed), random((o * groups, i, kh, kw), seed + 1)];
        inputs.extend(with_bias.then(|| random(o * groups, seed + 2)));
        let network = move |t: &[Tensor]| {
            Both::new(&t[0])?.grouped_conv2d(&t[1], t.get(2), stride, padding, groups)
        };
        Case::new(sizes, inputs, network).smooth_if(true)
    })
}

pub fn conv_transpose2d() -> impl Strategy<Value = Case> {
    let channels = (1usize..4, 1usize..20, 1usize..20);
    let image = ((1usize..8, 1usize..8), (1usize..5, 1usize..5));
    let steps = (1usize..4, 0usize..4, 0usize..3);
    (channels, image, steps, any::<bool>(), 0u64..1000).prop_map(|sizes| {
        let ((b, i, o), ((h, w), (kh, kw)), steps, with_bias, seed) = sizes;
        let (stride, padding, output_padding) = steps;
        // a pixel is left
        let padding = padding.min((h.min(w) - 1) * stride / 2).min(kh.min(kw) - 1);
        let output_padding = output_padding.min(stride - 1);
        let mut inputs = vec![random((b, h, w, i), seed), random((i, o, kh, kw), seed + 1)];
        inputs.extend(with_bias.then(|| random(o, seed + 2)));
        let network = move |t: &[Tensor]| {
            let x = Both::new(&t[0])?;
            x.conv_transpose2d(&t[1], t.get(2), stride, padding, output_padding)
        };
        Case::new(sizes, inputs, network).smooth_if(true)
    })
}

/// Larger and smaller images.
pub fn upsampling() -> impl Strategy<Value = Case> {
    let dims = (1usize..4, (1usize..9, 1usize..9), 1usize..20);
    let size = (1usize..25, 1usize..25);
    (dims, size, any::<bool>(), 0u64..1000).prop_map(|sizes| {
        let ((b, (h, w), c), (height, width), is_nearest, seed) = sizes;
        Case::new(sizes, vec![random((b, h, w, c), seed)], move |t| {
            let x = Both::new(&t[0])?;
            if is_nearest {
                x.upsample_nearest2d(height, width)
            } else {
                x.upsample_bilinear2d(height, width)
            }
        })
        .smooth_if(true)
    })
}

/// 3 × 3 with more than a few channels, which Winograd's algorithm computes: whole panels of 64 and others.
pub fn conv2d_of_many_channels() -> impl Strategy<Value = Case> {
    let image = (0usize..3, 1usize..15, 1usize..15);
    let channels = || prop_oneof![8usize..132, Just(64), Just(128)];
    let more = (1usize..3, 0usize..3, any::<bool>(), 0u64..1000);
    (image, (channels(), channels()), more).prop_map(|sizes| {
        let ((b, h, w), (i, o), (stride, padding, with_bias, seed)) = sizes;
        let padding = if stride == 2 { 1 } else { padding };
        // the kernel fits into the padded image
        let [h, w] = [h, w].map(|size| size.max(3 - 2.min(2 * padding)));
        let mut inputs = vec![random((b, h, w, i), seed), random((o, i, 3, 3), seed + 1)];
        inputs.extend(with_bias.then(|| random(o, seed + 2)));
        let network =
            move |t: &[Tensor]| Both::new(&t[0])?.conv2d(&t[1], t.get(2), stride, padding);
        Case::new(sizes, inputs, network).smooth_if(true)
    })
}

/// Half of them are of images: one channel and a square kernel, which have kernels of their own. Half of the others
/// have channels in eights, which cuDNN multiplies in bf16. The padding is smaller than the kernel if `narrow`.
pub fn convolution_relu_pooling(least: usize, narrow: bool) -> impl Strategy<Value = Case> {
    let channels = (least..4, 1usize..6, 1usize..40);
    let window = ((1usize..6, 1usize..6), (0usize..13, 0usize..13));
    let steps = (1usize..3, 0usize..2, 1usize..4);
    let flags = any::<(bool, bool, bool, bool)>();
    let sizes = (channels, window, steps, flags, 0u64..1000);
    sizes.prop_map(move |sizes| {
        let ((b, i, o), ((kh, kw), more), (stride, padding, pool), flags, seed) = sizes;
        let (relu, with_bias, images, eights) = flags;
        let (i, o) = if eights {
            (8 * i.div_ceil(3), 8 * o.div_ceil(14))
        } else {
            (i, o)
        };
        let (i, kw) = if images { (1, kh) } else { (i, kw) };
        let padding = if narrow {
            padding.min(kh.min(kw) - 1)
        } else {
            padding
        };
        let wider = (pool - 1) * stride;
        let x = coarse((b, kh + more.0 + wider, kw + more.1 + wider, i), seed);
        let mut inputs = vec![x, coarse((o, i, kh, kw), seed + 1)];
        // with a bias, no sum is 0: the others are multiples of 1/64
        inputs.extend(with_bias.then(|| (coarse(o, seed + 2) + 1. / 128.).unwrap()));
        Case::new(sizes, inputs, move |t| {
            let y = Both::new(&t[0])?.conv2d(&t[1], t.get(2), stride, padding)?;
            let y = if relu { y.relu_of_rounded()? } else { y };
            y.avg_pool2d(pool, pool)
        })
    })
}

/// With and without a bias, and by a view, whose gradient arrives at its variable.
pub fn linear(least: usize) -> impl Strategy<Value = Case> {
    let dims = (least..200, 1usize..40, 1usize..150);
    (dims, 0..6, any::<bool>(), 0u64..1000).prop_map(|sizes| {
        let ((b, i, o), which, relu, seed) = sizes;
        let draw = |dims: &[usize], seed| match relu {
            true => coarse(dims, seed),
            false => random(dims, seed),
        };
        let weight = if which < 2 { [o, i] } else { [i, o] };
        let mut inputs = vec![draw(&[b, i], seed), draw(&weight, seed + 1)];
        inputs.extend((which % 2 == 0).then(|| draw(&[o], seed + 2)));
        Case::new(sizes, inputs, move |t| {
            let x = Both::new(&t[0])?;
            let y = match which {
                0 | 1 => x.linear(&t[1], t.get(2)),
                2 | 3 => x.matmul(&t[1], t.get(2)),
                _ => x.linear(&t[1].t()?, t.get(2)),
            }?;
            if relu { y.relu() } else { Ok(y) }
        })
        .smooth_if(!relu)
    })
}

/// The operations of a transformer, each alone or all.
pub fn tokens() -> impl Strategy<Value = Case> {
    let dims = (1usize..4, 1usize..12, 1usize..4, 1usize..24);
    (dims, 0..7, 0u64..1000).prop_map(|sizes| {
        let ((b, t, heads, size), which, seed) = sizes;
        // a layer norm makes ±1 of 2 values, so that the gradient is rounding
        let c = heads * (size + 2);
        let (ids, y) = (labels(b * t, 5, seed), labels(b * t, c, seed + 1));
        let [ids, y] = [ids, y].map(|of_all| of_all.reshape((b, t)).unwrap());
        let draw = |dims: &[usize], i| random(dims, seed + i);
        let [h, weight, bias] = [draw(&[b, t, c], 0), draw(&[c], 1), draw(&[c], 2)];
        let [rows, up] = [draw(&[5, c], 3), draw(&[3 * c, c], 4)];
        let qkv = draw(&[b, t, 3 * c], 5);
        let inputs = match which {
            0 => vec![rows],
            1 | 2 | 5 => vec![h],
            3 => vec![h, weight, bias],
            4 => vec![qkv],
            _ => vec![h, weight, bias, rows, up, qkv],
        };
        Case::new(sizes, inputs, move |x| {
            let (first, y) = (Both::new(&x[0])?, y.to_device(x[0].device())?);
            match which {
                0 => first.embedding(&x[0], &ids),
                1 => first.apply(Value::gelu, reference::gelu),
                2 => first.cross_entropy(&y),
                3 => first.layer_norm(&x[1], &x[2]),
                4 => first.causal_attention(heads),
                5 => first.dropout(0.3, seed),
                _ => {
                    let h = Both::new(&x[3])?.embedding(&x[3], &ids)?.plus(&first)?;
                    let h = h.layer_norm(&x[1], &x[2])?.linear(&x[4], None)?;
                    let h = h.plus(&Both::new(&x[5])?)?.causal_attention(heads)?;
                    h.plus(&first)?.gelu()?.cross_entropy(&y)
                }
            }
        })
        .smooth_if(true)
    })
}

/// A batch norm makes ±1 of 2 values, so that the gradient is rounding.
const FEW: &str = "too few values a channel";

pub fn batch_norm2d() -> impl Strategy<Value = Case> {
    let dims = (1usize..5, 1usize..12, 1usize..12, 1usize..9);
    let dims = dims.prop_filter(FEW, |(b, h, w, _)| b * h * w > 3);
    let numbers = (1e-6f64..1e-2, 0f64..1.);
    (dims, any::<bool>(), numbers, 0u64..1000).prop_map(|sizes| {
        let ((b, h, w, c), train, (eps, momentum), seed) = sizes;
        let [weight, bias] = [1, 2].map(|i| random(c, seed + i));
        let inputs = vec![random((b, h, w, c), seed), weight, bias];
        let how = BatchNorm {
            eps: eps as f32,
            momentum,
        };
        let norm = move |t: &[Tensor]| {
            let running = Running::of(&t[1])?;
            Both::new(&t[0])?.batch_norm2d_with([&t[1], &t[2]], &running, train, how)
        };
        Case::new(sizes, inputs, norm).smooth_if(true)
    })
}

pub fn norm_sum_relu() -> impl Strategy<Value = Case> {
    let dims = (2usize..5, 1usize..20, 2usize..20, 1usize..150);
    let flags = any::<(bool, bool, bool, bool)>();
    (dims, flags, 0u64..1000).prop_map(|sizes| {
        let (dims, (train, shortcut, relu, first), seed) = sizes;
        let c = dims.3;
        let mut inputs = vec![coarse(dims, seed), random(c, seed + 1), random(c, seed + 2)];
        inputs.extend(shortcut.then(|| coarse(dims, seed + 3)));
        Case::new(sizes, inputs, move |t| {
            let y = Both::new(&t[0])?.batch_norm2d(&t[1], &t[2], &Running::of(&t[1])?, train)?;
            let y = match t.get(3) {
                Some(other) if first => Both::new(other)?.plus(&y)?,
                Some(other) => y.plus(&Both::new(other)?)?,
                None => y,
            };
            if relu { y.relu_of_rounded() } else { Ok(y) }
        })
    })
}

/// A block of the residual network; it reads its input twice. With a 1 × 1 convolution in the shortcut it goes from
/// 3 channels to `o`, without one from `o` to `o`.
pub fn residual_block() -> impl Strategy<Value = Case> {
    let dims = (2usize..4, 2usize..8, 2usize..8, 2usize..9);
    let sizes = (dims, any::<(bool, bool)>(), 1usize..3, 0u64..1000);
    let sizes = sizes.prop_filter(FEW, |((b, h, w, _), _, stride, _)| {
        b * h.div_ceil(*stride) * w.div_ceil(*stride) > 3
    });
    sizes.prop_map(|sizes| {
        let ((b, h, w, o), (with_conv, train), stride, seed) = sizes;
        let (i, stride) = if with_conv { (3, stride) } else { (o, 1) };
        let mut inputs = vec![random((b, h, w, i), seed)];
        for (n, shape) in [(o, i), (o, o)].into_iter().enumerate() {
            let seed = seed + 10 * n as u64;
            inputs.push(random((shape.0, shape.1, 3, 3), seed + 1));
            inputs.extend([2, 3].map(|n| random(o, seed + n)));
        }
        inputs.extend(with_conv.then(|| random((o, i, 1, 1), seed + 5)));
        Case::new(sizes, inputs, move |t| {
            let norm =
                |x: Both, t: &[Tensor]| x.batch_norm2d(&t[0], &t[1], &Running::of(&t[0])?, train);
            let x = Both::new(&t[0])?;
            let y = norm(x.conv2d(&t[1], None, stride, 1)?, &t[2..])?.relu_of_rounded()?;
            let y = norm(y.conv2d(&t[4], None, 1, 1)?, &t[5..])?;
            let x = match t.get(7) {
                Some(w) => x.conv2d(w, None, stride, 0)?,
                None => x,
            };
            y.plus(&x)?.relu_of_rounded()
        })
    })
}

pub fn pooling(least: usize) -> impl Strategy<Value = Case> {
    let dims = (least..4, (0usize..9, 0usize..9), 1usize..6);
    let window = (1usize..4, 1usize..4);
    (dims, window, 0..4, 0u64..1000).prop_map(|sizes| {
        let ((b, more, c), (kernel, stride), which, seed) = sizes;
        let dims = (b, kernel + more.0, kernel + more.1, c);
        let x = coarse(dims, seed);
        let x = match which {
            // the values of a window differ by more than the step of a central difference
            2 => {
                let distinct = |i| ((i * 100 + seed as usize) % 251) as f32 / 128.;
                tensor((0..x.elem_count()).map(distinct).collect(), dims)
            }
            // few different values: most windows have several maxima, and the first gets the gradient
            3 => (x * 2.).unwrap().round().unwrap(),
            _ => x,
        };
        Case::new(sizes, vec![x], move |t| {
            let x = Both::new(&t[0])?;
            match which {
                0 => x.avg_pool2d(kernel, stride),
                1 => x.global_avg_pool2d(),
                _ => x.max_pool2d(kernel, stride),
            }
        })
        .smooth_if(which < 3)
    })
}

/// Orders, sums of values and of elements, and ReLU; values that are read twice, so that a gradient is added to one
/// that is there. Every third value is exactly 0.
pub fn orders_sums_relu(least: usize) -> impl Strategy<Value = Case> {
    let dims = (least..4, 1usize..6, 1usize..6, 1usize..6);
    (dims, 0..9, 0u64..1000).prop_map(|sizes| {
        let (dims, which, seed) = sizes;
        let x = coarse(dims, seed);
        let zeros = values(&x).into_iter().enumerate();
        let zeros = zeros.map(|(i, v)| if i % 3 == 0 { 0. } else { v });
        let inputs = [tensor(zeros.collect(), x.shape()), coarse(dims, seed + 1)];
        let used = if which == 4 { 2 } else { 1 };
        Case::new(sizes, inputs[..used].to_vec(), move |t| {
            let x = Both::new(&t[0])?;
            match which {
                0 => x.nhwc(),
                1 => x.flatten(),
                2 => x.sum(),
                3 if dims.0 > 0 => x.mean(), // nothing has no mean
                4 => x.plus(&Both::new(&t[1])?)?.relu(),
                5 => x.relu()?.plus(&x),
                6 => {
                    let y = x.relu()?;
                    y.max_pool2d(1, 1)?.plus(&y)?.plus(&y)
                }
                7 => x.nhwc()?.sum()?.plus(&x.flatten()?.sum()?),
                _ => x.relu(),
            }
        })
        .smooth_if(which < 3)
    })
}

pub fn losses(least: usize) -> impl Strategy<Value = Case> {
    let dims = (least..150, 1usize..12);
    (dims, 0.1f64..30., 0usize..9, 0u64..1000).prop_map(|sizes| {
        let ((b, c), scale, which, seed) = sizes;
        let classes = which / 3 == 1;
        // the others have any shape
        let dims = [vec![b], vec![c; if classes { 1 } else { which % 3 }]].concat();
        let y_hat = (random(&dims[..], seed) * scale).unwrap();
        let y = match classes {
            true => labels(b, c, seed + 1),
            false => from_0_to_1(&random(&dims[..], seed + 2)),
        };
        let loss = move |t: &[Tensor]| {
            let (y_hat, y) = (Both::new(&t[0])?, y.to_device(t[0].device())?);
            match which / 3 {
                0 => y_hat.squared_error(&y),
                1 => y_hat.cross_entropy(&y),
                _ => y_hat.binary_cross_entropy(&y),
            }
        };
        Case::new(sizes, vec![y_hat], loss).smooth_if(true)
    })
}

/// Values of which a part has no gradient: a gradient goes through one of two terms, or through neither.
pub fn detached() -> impl Strategy<Value = Case> {
    ((1usize..9, 1usize..9), 0usize..3, 0u64..1000).prop_map(|sizes| {
        let ((b, n), which, seed) = sizes;
        let inputs = vec![random((b, n), seed), random((b, n), seed + 1)];
        Case::new(sizes, inputs, move |t| {
            let (x, y) = (Both::new(&t[0])?, Both::new(&t[1])?);
            let h = x.gelu()?;
            match which {
                0 => h.plus(&h.detach()?)?.plus(&y),
                1 => h.plus(&y)?.detach()?.plus(&x)?.plus(&y),
                _ => h.detach()?.gelu()?.plus(&x)?.plus(&y),
            }
        })
    })
}

/// Losses of several labels for each example, of which some count more than others, or not at all.
pub fn masked_losses(least: usize) -> impl Strategy<Value = Case> {
    let dims = (least..20, 1usize..7, 1usize..12);
    (dims, 0.1f64..30., 0usize..3, 0u64..1000).prop_map(|sizes| {
        let ((b, t, c), scale, dimensions, seed) = sizes;
        // (B,), (B, T) and (B, T, 2)
        let of_labels = [&[b, t, 2][..][..dimensions + 1]].concat();
        let y_hat = [&of_labels[..], &[c]].concat();
        let y_hat = (random(&y_hat[..], seed) * scale).unwrap();
        let n = of_labels.iter().product();
        let y = labels(n, c, seed + 1).reshape(&of_labels[..]).unwrap();
        let mask = random(&of_labels[..], seed + 2).relu().unwrap();
        let loss = move |t: &[Tensor]| {
            let on = |tensor: &Tensor| tensor.to_device(t[0].device());
            Both::new(&t[0])?.masked_cross_entropy(&on(&y)?, &on(&mask)?)
        };
        Case::new(sizes, vec![y_hat], loss).smooth_if(true)
    })
}

/// Networks of candle's operations among ours. They have parameters of their own.
pub fn modules() -> impl Strategy<Value = Case> {
    ((1usize..9, 1usize..9), 0..5, 0u64..1000).prop_map(|sizes| {
        let ((b, n), which, seed) = sizes;
        let weights = [1, 2].map(|i| random((n, n), seed + i));
        let inputs = [&[random((b, n), seed)], &weights[..]].concat();
        Case::new(sizes, inputs, move |t| {
            let [first, second] = [1, 2].map(|i| {
                let weight = t[i].clone();
                move |x: &Tensor| x.matmul(&weight)?.tanh()
            });
            let x = Both::new(&t[0])?;
            match which {
                // one before ours, and the same one behind them
                0 => {
                    let y = x.candle(first.clone())?.relu()?;
                    y.linear(&t[2], None)?.candle(first)
                }
                // none of ours
                1 => x.candle(first)?.candle(second),
                // one that gives its input, which is read elsewhere as well
                2 => {
                    let y = x.linear(&t[1], None)?.matmul(&t[2], None)?;
                    y.candle(|x| Ok(x.clone()))?.plus(&y)
                }
                // what one reads and gives is read elsewhere as well
                3 => {
                    let x = x.linear(&t[1], None)?;
                    let y = x.candle(second)?;
                    y.relu()?.plus(&y)?.plus(&x)
                }
                // candle has computed x and the weight
                _ => {
                    let x = t[0].matmul(&t[1])?.tanh()?;
                    let weight = (t[2].sqr()? + t[1].t()?)?;
                    Both::new(&x)?.linear(&weight, None)?.relu()
                }
            }
        })
        .smooth_if(which == 1 || which == 2)
    })
}
