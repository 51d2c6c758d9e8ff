//! With values of bf16 between the operations, each operation gives what it gives on the CPU in f32, to
//! about 8 bits. Values that have to stay f32 do so.
//!
//! Inputs are multiples of 1/8: bf16 holds them exactly, and the sums of their products are exact. So both
//! devices are on the same side of each ReLU's edge, and have the same maxima. What is left is the rounding of
//! results and gradients, at most 2⁻⁸ of each.

use super::{
    Gpu, assert_same_statistics, evaluated, gpu, in_buckets, inputs, network, norm_of, run_on,
    statistics,
};
use crate::support::{cases, coarse, random, tensor, tensors, values, variables};
use candle_core::{Device, Result, Tensor, Var};
use functional::{
    Gradients, Network, Precision, Sgd, Value, candle, set_deterministic, set_precision,
};
use proptest::prelude::*;

/// A result is rounded once, or twice with a bias: this is twice as much as one rounding.
const VALUE: f64 = 1. / 128.;
/// A gradient is rounded at each operation on its way.
const GRADIENT: f64 = 1. / 64.;

fn gpu_in_bf16() -> Gpu {
    let gpu = gpu();
    set_precision(Precision::Bf16);
    gpu
}

/// Checks each element to within `tolerance` of the largest one. As `terms` may cancel in a sum, it may also be
/// within `tolerance` of the size that such a sum has in the mean: that of the root of its terms.
fn assert_near(what: &str, actual: &[f32], expected: &[f32], terms: usize, tolerance: f64) {
    assert_eq!(actual.len(), expected.len(), "{what}: lengths");
    let terms = (terms as f64 / expected.len() as f64).sqrt();
    let largest = expected.iter().fold(0f32, |m, v| m.max(v.abs()));
    let scale = if terms >= 1. {
        terms.max(f64::from(largest))
    } else {
        f64::from(largest)
    };
    for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
        let error = f64::from((a - e).abs());
        // written so that NaN fails
        assert!(
            error <= tolerance * scale,
            "{what}[{i}]: {a}, expected {e} of at most {scale}"
        );
    }
}

fn assert_near_the_cpu(
    gpu: &Gpu,
    inputs: &[Tensor],
    f: impl Fn(&[Tensor], &Device) -> Result<Value>,
) {
    assert_near_the_cpu_if(false, gpu, inputs, f);
}

/// As [`assert_near_the_cpu`], with batch norms that share their statistics if `shared`.
fn assert_near_the_cpu_if(
    shared: bool,
    gpu: &Gpu,
    inputs: &[Tensor],
    f: impl Fn(&[Tensor], &Device) -> Result<Value>,
) {
    let (ours, theirs) = (
        run_on(&gpu.device, shared, inputs, &f),
        run_on(&Device::Cpu, shared, inputs, &f),
    );
    let (x, y) = (inputs[0].elem_count(), theirs[0].len());
    for (i, (a, e)) in ours.iter().zip(&theirs).enumerate() {
        let tolerance = if i == 0 { VALUE } else { GRADIENT };
        let what = format!("result {i} (0 is the value, then the gradients)");
        let terms = if i == 0 { x } else { y };
        assert_near(&what, a, e, terms, tolerance);
    }
}

/// How far apart two lists are, as vectors; of one that is all zeros, in itself.
fn apart(a: &[f32], e: &[f32]) -> f64 {
    let square = |v: f32| f64::from(v) * f64::from(v);
    let difference: f64 = a.iter().zip(e).map(|(a, e)| square(a - e)).sum();
    let whole: f64 = e.iter().map(|e| square(*e)).sum();
    match whole > 0. {
        true => (difference / whole).sqrt(),
        false => difference.sqrt(),
    }
}

fn is_bf16(value: &f32) -> bool {
    value.to_bits() & 0xffff == 0
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn convolution_relu_pooling(
        (b, i, o) in (1usize..4, 1usize..6, 1usize..40),
        (kh, kw) in (1usize..6, 1usize..6),
        (more_h, more_w) in (0usize..13, 0usize..13),
        (stride, padding, pool) in (1usize..3, 0usize..2, 1usize..4),
        (relu, with_bias, images, deterministic) in any::<(bool, bool, bool, bool)>(),
        seed in 0u64..1000,
    ) {
        let (i, kw) = if images { (1, kh) } else { (i, kw) };
        let (h, w) = (kh + more_h + (pool - 1) * stride, kw + more_w + (pool - 1) * stride);
        let mut inputs = vec![coarse((b, h, w, i), seed), coarse((o, i, kh, kw), seed + 1)];
        if with_bias {
            inputs.push(coarse(o, seed + 2));
        }
        let gpu = gpu_in_bf16();
        set_deterministic(deterministic);
        assert_near_the_cpu(&gpu, &inputs, |t, _| {
            let y = Value::new(&t[0])?.conv2d(&t[1], t.get(2), stride, padding)?;
            let y = if relu { y.relu()? } else { y };
            y.avg_pool2d(pool, pool)
        });
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn norm_sum_relu(
        (b, h, w, c) in (2usize..5, 1usize..20, 2usize..20, 1usize..150),
        (train, shortcut, relu, shared) in any::<(bool, bool, bool, bool)>(),
        seed in 0u64..1000,
    ) {
        let x = coarse((b, h, w, c), seed);
        let inputs = [x, random(c, seed + 1), random(c, seed + 2), coarse((b, h, w, c), seed + 3)];
        let inputs = if shortcut { &inputs[..] } else { &inputs[..3] };
        let gpu = gpu_in_bf16();
        let of_device = [Device::Cpu, gpu.device.clone()].map(|device| statistics(c, &device));
        assert_near_the_cpu_if(shared, &gpu, inputs, |t, device| {
            let running = &of_device[usize::from(device.is_cuda())];
            norm_of(t, running, [train, relu])
        });
        // sums are f32, and nothing of x was lost: as exact as in f32
        assert_same_statistics(&of_device);
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn pooling(
        (b, c) in (1usize..4, 1usize..6),
        (kernel, stride) in (1usize..4, 1usize..4),
        (more_h, more_w) in (0usize..9, 0usize..9),
        seed in 0u64..1000,
    ) {
        let gpu = gpu_in_bf16();
        let x = [coarse((b, kernel + more_h, kernel + more_w, c), seed)];
        assert_near_the_cpu(&gpu, &x, |t, _| Value::new(&t[0])?.avg_pool2d(kernel, stride));
        assert_near_the_cpu(&gpu, &x, |t, _| Value::new(&t[0])?.global_avg_pool2d());
        assert_near_the_cpu(&gpu, &x, |t, _| Value::new(&t[0])?.max_pool2d(kernel, stride));
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn orders_relu_and_sums((b, h, w, c) in (1usize..4, 1usize..6, 1usize..6, 1usize..6), seed in 0u64..1000) {
        let gpu = gpu_in_bf16();
        let x = [coarse((b, h, w, c), seed), coarse((b, h, w, c), seed + 1)];
        assert_near_the_cpu(&gpu, &x[..1], |t, _| Value::new(&t[0])?.nhwc());
        assert_near_the_cpu(&gpu, &x[..1], |t, _| Value::new(&t[0])?.flatten());
        assert_near_the_cpu(&gpu, &x[..1], |t, _| Value::new(&t[0])?.relu());
        assert_near_the_cpu(&gpu, &x, |t, _| (Value::new(&t[0])? + Value::new(&t[1])?)?.relu());
        // values that are read twice: a gradient is added to one that is there
        assert_near_the_cpu(&gpu, &x[..1], |t, _| Value::new(&t[0])?.relu()? + Value::new(&t[0])?);
        assert_near_the_cpu(&gpu, &x[..1], |t, _| {
            let y = Value::new(&t[0])?.relu()?;
            &(&y.max_pool2d(1, 1)? + &y)? + &y
        });
    }

    /// Matrix products are f32, and what they read from before is widened.
    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn linear((b, c, o) in (1usize..30, 1usize..9, 1usize..30), seed in 0u64..1000) {
        let gpu = gpu_in_bf16();
        let inputs = [random((b, c), seed), random((o, c), seed + 1), random(o, seed + 2)];
        let f = |t: &[Tensor], _: &Device| Value::new(&t[0])?.linear(&t[1], Some(&t[2]))?.relu();
        let narrow = run_on(&gpu.device, false, &inputs, f);
        set_precision(Precision::F32);
        assert_eq!(narrow, run_on(&gpu.device, false, &inputs, f));
        set_precision(Precision::Bf16);
        let inputs = [coarse((b, 3, 2, c), seed), coarse((o, 6 * c), seed + 1)];
        assert_near_the_cpu(&gpu, &inputs, |t, _| {
            Value::new(&t[0])?.relu()?.flatten()?.linear(&t[1], None)
        });
    }

    /// Operations of candle's are f32, and so is the sum of a loss.
    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn modules_and_sums((b, c) in (1usize..30, 1usize..9), seed in 0u64..1000) {
        let gpu = gpu_in_bf16();
        let inputs = [coarse((b, 3, 2, c), seed), coarse(c, seed + 1)];
        let module = |t: &[Tensor]| {
            let scale = t[1].clone();
            candle(move |x: &Tensor| x.broadcast_mul(&scale))
        };
        assert_near_the_cpu(&gpu, &inputs, |t, _| module(t).forward(&Value::new(&t[0])?.relu()?, true)?.relu());
        assert_near_the_cpu(&gpu, &inputs, |t, _| module(t).forward(&Value::new(&t[0])?.relu()?, true)?.sum());
        assert_near_the_cpu(&gpu, &inputs[..1], |t, _| Value::new(&t[0])?.relu()?.mean());
    }
}

/// A bias that only the running mean sees is f32, wherever it stands among the inputs.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_bias_before_batch_norm() {
    let gpu = gpu_in_bf16();
    let shapes = [(3, 7, 6, 5), (8, 5, 3, 3), (3, 7, 6, 8)];
    let [x, weight, other] = shapes.map(|shape| coarse(shape, 1));
    let [bias, scale, shift] = [2, 3, 4].map(|seed| random(8, seed));
    let inputs = [x, weight, bias, scale, shift, other];
    for (shared, shortcut) in [(false, false), (false, true), (true, false), (true, true)] {
        let inputs = if shortcut { &inputs[..] } else { &inputs[..5] };
        let of_device = [Device::Cpu, gpu.device.clone()].map(|device| statistics(8, &device));
        assert_near_the_cpu_if(shared, &gpu, inputs, |t, device| {
            let [mean, var] = &of_device[usize::from(device.is_cuda())];
            let y = Value::new(&t[0])?.conv2d(&t[1], Some(&t[2]), 1, 1)?;
            let y = y.batch_norm2d(&t[3], &t[4], mean, var, true)?;
            match t.get(5) {
                Some(other) => y + Value::new(other)?,
                None => Ok(y),
            }
        });
        let [on_cpu, on_gpu] = of_device;
        for (a, e) in on_gpu.iter().zip(&on_cpu) {
            assert_near("running statistics", &values(a), &values(e), 0, VALUE);
        }
    }
}

/// Four channels are read at once only where their weights begin at a multiple of 16 bytes.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn parameters_may_begin_anywhere() {
    for c in [8, 7] {
        let of_both = random(2 * c + 1, 2);
        let norm = |x: &Tensor, of_both: &Tensor, device: &Device| {
            let [mean, var] = statistics(c, device);
            let (weight, bias) = (of_both.narrow(0, 1, c)?, of_both.narrow(0, 1 + c, c)?);
            let y = Value::new(x)?.batch_norm2d(&weight, &bias, &mean, &var, true)?;
            y.relu()
        };
        let inputs = [coarse((3, 4, 5, c), 1), of_both.clone()];
        assert_near_the_cpu(&gpu_in_bf16(), &inputs, |t, device| {
            norm(&t[0], &t[1], device)
        });
        // of a tensor that is no variable, parts are read where they are
        assert_near_the_cpu(&gpu_in_bf16(), &inputs[..1], |t, device| {
            norm(&t[0], &of_both.to_device(device)?, device)
        });
        let many = coarse(9 * c * 9 + 1, 2);
        let conv = |x: &Tensor, many: &Tensor| {
            let weight = many.narrow(0, 1, 9 * c * 9)?.reshape((9, c, 3, 3))?;
            Value::new(x)?.conv2d(&weight, None, 1, 1)
        };
        let inputs = [coarse((2, 5, 5, c), 1), many.clone()];
        assert_near_the_cpu(&gpu_in_bf16(), &inputs, |t, _| conv(&t[0], &t[1]));
        assert_near_the_cpu(&gpu_in_bf16(), &inputs[..1], |t, device| {
            conv(&t[0], &many.to_device(device)?)
        });
    }
}

/// What an operation gives is bf16, and not f32 that was rounded for a product alone.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn values_are_bf16() {
    let gpu = gpu_in_bf16();
    let x = random((2, 6, 5, 8), 1).to_device(&gpu.device).unwrap();
    let [weight, images] = [random((8, 8, 3, 3), 2), random((2, 6, 5, 1), 3)]
        .map(|t| t.to_device(&gpu.device).unwrap());
    let [of_image, ones] = [
        random((8, 1, 3, 3), 4),
        Tensor::ones(8, x.dtype(), &Device::Cpu).unwrap(),
    ]
    .map(|t| t.to_device(&gpu.device).unwrap());
    let [mean, var] = statistics(8, &gpu.device);
    let all = || {
        let x = Value::new(&x).unwrap();
        [
            x.relu(),
            x.flatten(),
            &x + &x.relu().unwrap(),
            x.conv2d(&weight, None, 1, 1),
            x.avg_pool2d(3, 2),
            x.max_pool2d(3, 2),
            x.global_avg_pool2d(),
            x.batch_norm2d(&ones, &ones, &mean, &var, false),
            Value::new(&images).unwrap().conv2d(&of_image, None, 1, 1),
        ]
        .map(|y| values(&y.unwrap().eval().unwrap()))
    };
    let narrow = all();
    set_precision(Precision::F32);
    for (i, (narrow, wide)) in narrow.iter().zip(all()).enumerate() {
        assert!(narrow.iter().all(is_bf16), "operation {i}: {narrow:?}");
        assert!(!wide.iter().all(is_bf16), "operation {i} in f32: {wide:?}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_network_in_bf16() {
    let gpu = gpu_in_bf16();
    let ours = run_on(&gpu.device, false, &inputs(), network);
    let theirs = run_on(&Device::Cpu, false, &inputs(), network);
    let found = ours.iter().zip(&theirs).map(|(a, e)| apart(a, e));
    let found: Vec<f64> = found.collect();
    let (value, gradients) = (found[0], &found[1..]);
    assert!(value > 0. && value < 0.03, "the value is {value} apart");
    // a ReLU or a maximum here and there is on its other side, which counts in a gradient
    assert!(
        gradients.iter().all(|g| *g < 0.15),
        "the gradients are {gradients:?} apart"
    );
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn deterministic_algorithms_give_the_same_bits() {
    let gpu = gpu_in_bf16();
    set_deterministic(true);
    let first = run_on(&gpu.device, false, &inputs(), network);
    for _ in 0..5 {
        assert_eq!(run_on(&gpu.device, false, &inputs(), network), first);
    }
    // nor does it matter whether something is left for backward
    assert_eq!(evaluated(&gpu), first[0]);
}

/// Gradients of parameters are f32 in the buckets, wherever these end.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn all_gradients_in_buckets() {
    let gpu = gpu_in_bf16();
    set_deterministic(true);
    let whole = in_buckets(&gpu.device, usize::MAX).concat();
    for bucket_len in [0, 100] {
        assert_eq!(in_buckets(&gpu.device, bucket_len).concat(), whole);
    }
    let of_each = in_buckets(&gpu.device, 0);
    for (i, (found, expected)) in of_each.iter().zip(in_buckets(&Device::Cpu, 0)).enumerate() {
        let found = apart(found, &expected);
        assert!(found < 0.15, "parameter {i} is {found} apart");
    }
}

/// Backward is of the types of its forward, also if another thread changes the precision between them: here a
/// module at the end of forward does.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_precision_may_change_before_backward() {
    let gpu = gpu_in_bf16();
    set_deterministic(true);
    let gradient = |then: Precision| {
        let there = inputs().into_iter().map(|t| t.to_device(&gpu.device));
        let vars = variables(&there.collect::<Result<Vec<_>>>()?)?;
        let y = network(&tensors(&vars), &gpu.device)?;
        let change = candle(move |y: &Tensor| {
            set_precision(then);
            Ok(y.clone())
        });
        let loss = change.forward(&y, true)?.sum()?;
        set_precision(Precision::Bf16); // to find the module's shape has changed it
        // not those of the images, which are f32: they are rounded as it is set then
        let named = vars[1..].iter().map(|v| ("", v));
        let mut gradients = Gradients::new(named, usize::MAX)?;
        gradients.backward(&loss)?;
        let of_params = gradients.values()?;
        Ok::<_, candle_core::Error>(of_params.iter().map(values).collect::<Vec<_>>())
    };
    let expected = gradient(Precision::Bf16).unwrap();
    assert_eq!(gradient(Precision::F32).unwrap(), expected);
    assert_eq!(gradient(Precision::Tf32).unwrap(), expected);
}

/// A step that is smaller than half of what bf16 can tell apart is not lost: the parameter itself is f32, and what
/// convolutions see of it moves when many steps have come together.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn small_steps_add_up() {
    let gpu = gpu_in_bf16();
    let weight = tensor(vec![1.; 4], (2, 2, 1, 1)).to_device(&gpu.device);
    let weight = Var::from_tensor(&weight.unwrap()).unwrap();
    let x = tensor(vec![1.; 2], (1, 1, 1, 2))
        .to_device(&gpu.device)
        .unwrap();
    let sgd = Sgd {
        lr: 1. / 4096.,
        momentum: 0.,
        weight_decay: 0.,
    };
    let forward = || Value::new(&x).unwrap().conv2d(&weight, None, 1, 0).unwrap();
    let first = |y: &Value| values(&y.eval().unwrap())[0];
    let mut gradients = Gradients::new([("weight", &weight)], usize::MAX).unwrap();
    let mut seen = Vec::new();
    for step in 1..=32u16 {
        let y = forward();
        seen.push(first(&y));
        gradients.zero();
        gradients.backward(&y.sum().unwrap()).unwrap();
        let of_weight = gradients.values().unwrap();
        assert_eq!(values(&of_weight[0]), [1.; 4]);
        sgd.step(&[&weight], &of_weight, 1, None).unwrap();
        assert_eq!(values(&weight), [1. - f32::from(step) / 4096.; 4]);
    }
    assert_eq!(seen[..8], [2.; 8]);
    assert_eq!(first(&forward()), 2. - 4. / 256.);
}
