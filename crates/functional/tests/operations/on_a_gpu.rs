//! Each operation on a GPU equals the same on the CPU on random shapes, in the value and in all gradients; and so
//! do the steps that are taken with them.

mod bf16;

use crate::losses::gradients;
use crate::support::{
    assert_near, assert_refused, cases, coarse, given, labels, pass_over, random, tensor, tensors,
    upstream, values, variables,
};
use candle_core::{DType, Device, Result, Tensor, Var};
use functional::{
    Backward, Bucket, Gradients, Network, Precision, Sgd, Summation, Value, candle, cross_entropy,
    set_deterministic, set_precision, squared_error,
};
use proptest::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Both sum in f32, in different orders.
const TOLERANCE: f64 = 1e-4;
/// Inputs of products have 10 bits behind the point.
const TF32: f64 = 5e-3;

/// A GPU that computes as exactly as it can, and the turn of the test that has it.
struct Gpu {
    device: Device,
    _turn: MutexGuard<'static, ()>,
}

fn gpu() -> Gpu {
    static TURN: Mutex<()> = Mutex::new(());
    static DEVICE: OnceLock<Device> = OnceLock::new(); // to open one takes longer than a test
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    set_precision(Precision::F32);
    set_deterministic(false);
    Gpu {
        device: DEVICE
            .get_or_init(|| Device::new_cuda_with_stream(0).expect("a GPU"))
            .clone(),
        _turn: turn,
    }
}

/// `f(inputs)` on a device, and the gradient of each input; batch norms share their statistics with [`Others`] if
/// `shared`.
fn run_on(
    device: &Device,
    shared: bool,
    inputs: &[Tensor],
    f: impl Fn(&[Tensor], &Device) -> Result<Value>,
) -> Vec<Vec<f32>> {
    let run = || {
        let there = inputs.iter().map(|t| t.to_device(device));
        let vars = variables(&there.collect::<Result<Vec<_>>>()?)?;
        let y = f(&tensors(&vars), device)?;
        let up = upstream(y.dims()).to_device(device)?;
        let norms = shared.then(|| Arc::new(Others) as Arc<dyn Summation>);
        pass_over(norms, &vars, &y, up)
    };
    run().unwrap().iter().map(values).collect()
}

fn assert_as_on_the_cpu(
    gpu: &Gpu,
    inputs: &[Tensor],
    tolerance: f64,
    f: impl Fn(&[Tensor], &Device) -> Result<Value>,
) {
    assert_as_on_the_cpu_if(false, gpu, inputs, tolerance, f);
}

/// As [`assert_as_on_the_cpu`], with batch norms that share their statistics if `shared`.
fn assert_as_on_the_cpu_if(
    shared: bool,
    gpu: &Gpu,
    inputs: &[Tensor],
    tolerance: f64,
    f: impl Fn(&[Tensor], &Device) -> Result<Value>,
) {
    let (ours, theirs) = (
        run_on(&gpu.device, shared, inputs, &f),
        run_on(&Device::Cpu, shared, inputs, &f),
    );
    for (i, (a, e)) in ours.iter().zip(&theirs).enumerate() {
        let what = format!("result {i} (0 is the value, then the gradients)");
        assert_near(&what, a, e, tolerance);
    }
}

fn statistics(c: usize, device: &Device) -> [Var; 2] {
    let mean = random(c, 9).to_device(device).unwrap();
    let ones = Var::ones(c, DType::F32, device).unwrap();
    [Var::from_tensor(&mean).unwrap(), ones]
}

/// Other replicas that share statistics. They always bring the same sums of 8 values a channel: in forward
/// the sum and the sum of squares, in backward numbers that may be sums of gradients.
struct Others;

impl Summation for Others {
    fn sum(&self, values: &mut [f64]) -> Result<()> {
        let (count, sums) = values.split_first_mut().expect("a count");
        let (first, second) = sums.split_at_mut(sums.len() / 2);
        *count += 8.;
        first.iter_mut().for_each(|sum| *sum += 2.);
        second.iter_mut().for_each(|sum| *sum += 20.);
        Ok(())
    }
}

/// The batch norm of t, which is x, weight, bias and what may be added to it, with its ReLU if `relu`.
fn norm_of(t: &[Tensor], [mean, var]: &[Var; 2], [train, relu]: [bool; 2]) -> Result<Value> {
    let y = Value::new(&t[0])?.batch_norm2d(&t[1], &t[2], mean, var, train)?;
    let y = match t.get(3) {
        Some(other) => (y + Value::new(other)?)?,
        None => y,
    };
    if relu { y.relu() } else { Ok(y) }
}

/// Compares the running statistics of both devices, the CPU's first.
fn assert_same_statistics([on_cpu, on_gpu]: &[[Var; 2]; 2]) {
    for (a, e) in on_gpu.iter().zip(on_cpu) {
        assert_near("running statistics", &values(a), &values(e), 1e-5);
    }
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn convolution_relu_pooling(
        (b, i, o) in (1usize..4, 1usize..6, 1usize..40),
        (kh, kw) in (1usize..6, 1usize..6),
        (more_h, more_w) in (0usize..13, 0usize..13),
        (stride, padding, pool) in (1usize..3, 0usize..2, 1usize..4),
        (relu, with_bias, images) in any::<(bool, bool, bool)>(),
        seed in 0u64..1000,
    ) {
        // half of them of one channel and with a square kernel, which have kernels of our own
        let (i, kw) = if images { (1, kh) } else { (i, kw) };
        let (h, w) = (kh + more_h + (pool - 1) * stride, kw + more_w + (pool - 1) * stride);
        let mut inputs = vec![coarse((b, h, w, i), seed), coarse((o, i, kh, kw), seed + 1)];
        if with_bias {
            inputs.push(coarse(o, seed + 2));
        }
        assert_as_on_the_cpu(&gpu(), &inputs, TOLERANCE, |t, _| {
            let y = Value::new(&t[0])?.conv2d(&t[1], t.get(2), stride, padding)?;
            let y = if relu { y.relu()? } else { y };
            y.avg_pool2d(pool, pool)
        });
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn linear_relu((b, i, o) in (1usize..300, 1usize..40, 1usize..80), seed in 0u64..1000) {
        let gpu = gpu();
        let mut inputs = [coarse((b, i), seed), coarse((o, i), seed + 1), coarse(o, seed + 2)];
        assert_as_on_the_cpu(&gpu, &inputs, TOLERANCE, |t, _| {
            Value::new(&t[0])?.linear(&t[1], Some(&t[2]))?.relu()
        });
        assert_as_on_the_cpu(&gpu, &inputs[..2], TOLERANCE, |t, _| Value::new(&t[0])?.linear(&t[1], None));
        inputs[1] = coarse((i, o), seed + 3);
        assert_as_on_the_cpu(&gpu, &inputs, TOLERANCE, |t, _| {
            Value::new(&t[0])?.matmul(&t[1], Some(&t[2]))?.relu()
        });
        // a view, whose gradient arrives at its variable
        assert_as_on_the_cpu(&gpu, &inputs[..2], TOLERANCE, |t, _| {
            Value::new(&t[0])?.linear(&t[1].t()?, None)
        });
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn norm_sum_relu(
        (b, h, w, c) in (2usize..5, 1usize..20, 2usize..20, 1usize..150),
        (train, shortcut, relu, shared) in any::<(bool, bool, bool, bool)>(),
        seed in 0u64..1000,
    ) {
        let x = || random((b, h, w, c), seed);
        let inputs = [x(), random(c, seed + 1), random(c, seed + 2), random((b, h, w, c), seed + 3)];
        let inputs = if shortcut { &inputs[..] } else { &inputs[..3] };
        let gpu = gpu();
        let of_device = [Device::Cpu, gpu.device.clone()].map(|device| statistics(c, &device));
        assert_as_on_the_cpu_if(shared, &gpu, inputs, TOLERANCE, |t, device| {
            let running = &of_device[usize::from(device.is_cuda())];
            norm_of(t, running, [train, relu])
        });
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
        let gpu = gpu();
        let x = [random((b, kernel + more_h, kernel + more_w, c), seed)];
        assert_as_on_the_cpu(&gpu, &x, 1e-5, |t, _| Value::new(&t[0])?.avg_pool2d(kernel, stride));
        assert_as_on_the_cpu(&gpu, &x, 1e-5, |t, _| Value::new(&t[0])?.global_avg_pool2d());
        // few different values: most windows have several maxima, and the first gets the gradient
        let ties = values(&x[0]).iter().map(|v| (v * 2.).round()).collect();
        for x in [&x[0], &tensor(ties, x[0].shape())] {
            let x = [x.clone()];
            assert_as_on_the_cpu(&gpu, &x, 1e-5, |t, _| Value::new(&t[0])?.max_pool2d(kernel, stride));
        }
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn orders_relu_and_sums((b, h, w, c) in (1usize..4, 1usize..6, 1usize..6, 1usize..6), seed in 0u64..1000) {
        let gpu = gpu();
        let x = [random((b, h, w, c), seed), random((b, h, w, c), seed + 1)];
        assert_as_on_the_cpu(&gpu, &x[..1], 0., |t, _| Value::new(&t[0])?.nhwc());
        assert_as_on_the_cpu(&gpu, &x[..1], 0., |t, _| Value::new(&t[0])?.flatten());
        assert_as_on_the_cpu(&gpu, &x[..1], 0., |t, _| Value::new(&t[0])?.relu());
        assert_as_on_the_cpu(&gpu, &x, 0., |t, _| (Value::new(&t[0])? + Value::new(&t[1])?)?.relu());
        // one value read twice
        assert_as_on_the_cpu(&gpu, &x[..1], 0., |t, _| Value::new(&t[0])?.relu()? + Value::new(&t[0])?);
        assert_as_on_the_cpu(&gpu, &x[..1], 1e-5, |t, _| Value::new(&t[0])?.sum());
        assert_as_on_the_cpu(&gpu, &x[..1], 1e-5, |t, _| Value::new(&t[0])?.mean());
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn losses((b, c) in (1usize..300, 1usize..12), scale in 0.1f64..30., seed in 0u64..1000) {
        let y_hat = [(random((b, c), seed) * scale).unwrap()];
        let y = labels(b, c, seed + 1);
        let gpu = gpu();
        assert_as_on_the_cpu(&gpu, &y_hat, 1e-5, |t, device| {
            cross_entropy(&Value::new(&t[0])?, &y.to_device(device)?)
        });
        let y = random((b, c), seed + 2);
        assert_as_on_the_cpu(&gpu, &y_hat, 1e-5, |t, device| {
            squared_error(&Value::new(&t[0])?, &y.to_device(device)?)
        });
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn steps(n in 1usize..2000, (momentum, weight_decay) in (0.0f64..1., 0.0f64..1.), seed in 0u64..1000) {
        let gpu = gpu();
        let sgd = Sgd { lr: 0.3, momentum, weight_decay };
        let [on_cpu, on_gpu] = [&Device::Cpu, &gpu.device].map(|device| {
            let on = |n: usize, seed| random(n, seed).to_device(device).unwrap();
            let var = |t: Tensor| Var::from_tensor(&t).unwrap();
            let (w, b) = (var(on(n, seed)), var(on(3, seed + 1)));
            let (all, velocity) = (on(n + 9, seed + 2), on(n + 3, seed + 3));
            let sums = [(2, n), (n + 5, 3)].map(|(first, n)| all.narrow(0, first, n).unwrap());
            for _ in 0..3 {
                sgd.step(&[&w, &b], &sums, 7, Some(&velocity)).unwrap();
            }
            [values(&w), values(&b), values(&velocity)]
        });
        for (a, e) in on_gpu.iter().zip(&on_cpu) {
            assert_near("param and velocity", a, e, 1e-5);
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_label_that_is_no_class_shows() {
    let gpu = gpu();
    let y_hat = random((3, 4), 1).to_device(&gpu.device).unwrap();
    let y = Tensor::new(&[0u32, 4, 1], &gpu.device).unwrap();
    let losses = cross_entropy(&Value::new(&y_hat).unwrap(), &y).unwrap();
    let losses = values(&losses.eval().unwrap());
    let shows: Vec<bool> = losses.iter().map(|v| v.is_nan()).collect();
    assert_eq!(shows, [false, true, false]);
}

/// The running mean sees a convolution's bias, which the batch's own mean takes out again.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_bias_before_batch_norm() {
    let gpu = gpu();
    let inputs = [(3, 7, 6, 5), (8, 5, 3, 3)].map(|shape| random(shape, 1));
    let inputs = [&inputs[..], &[2, 3, 4].map(|seed| random(8, seed))].concat();
    for shared in [false, true] {
        let of_device = [Device::Cpu, gpu.device.clone()].map(|device| statistics(8, &device));
        assert_as_on_the_cpu_if(shared, &gpu, &inputs, TOLERANCE, |t, device| {
            let [mean, var] = &of_device[usize::from(device.is_cuda())];
            let y = Value::new(&t[0])?.conv2d(&t[1], Some(&t[2]), 1, 1)?;
            y.batch_norm2d(&t[3], &t[4], mean, var, true)?.relu()
        });
        assert_same_statistics(&of_device);
    }
}

/// One value a channel is a part of a batch.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_pixel_that_shares_statistics() {
    for c in [3, 8] {
        let inputs = [random((1, 1, 1, c), 1), random(c, 2), random(c, 3)];
        assert_as_on_the_cpu_if(true, &gpu(), &inputs, TOLERANCE, |t, device| {
            let [mean, var] = statistics(c, device);
            Value::new(&t[0])?.batch_norm2d(&t[1], &t[2], &mean, &var, true)
        });
    }
}

/// Four channels are read at once only where they begin at a multiple of 16 bytes.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn parameters_may_begin_anywhere() {
    let gpu = gpu();
    let [x, of_both] = [random((3, 4, 5, 8), 1), random(17, 2)];
    let norm = |x: &Tensor, of_both: &Tensor, device: &Device| {
        let [mean, var] = statistics(8, device);
        let [weight, bias] = [of_both.narrow(0, 1, 8)?, of_both.narrow(0, 9, 8)?];
        let y = Value::new(x)?.batch_norm2d(&weight, &bias, &mean, &var, true)?;
        y.relu()
    };
    // parts of a variable, which candle computes
    let inputs = [x.clone(), of_both.clone()];
    assert_as_on_the_cpu(&gpu, &inputs, TOLERANCE, |t, device| {
        norm(&t[0], &t[1], device)
    });
    // and of a tensor, which are read where they are
    assert_as_on_the_cpu(&gpu, &[x], TOLERANCE, |t, device| {
        norm(&t[0], &of_both.to_device(device)?, device)
    });
}

/// A network with everything that LeNet and ResNet-18 have.
fn network(t: &[Tensor], device: &Device) -> Result<Value> {
    let [mean, var] = statistics(8, device);
    let stem = Value::new(&t[0])?
        .nhwc()?
        .conv2d(&t[1], Some(&t[2]), 1, 1)?;
    let norm = stem.batch_norm2d(&t[3], &t[4], &mean, &var, true)?.relu()?;
    let inner = norm.conv2d(&t[5], None, 1, 1)?.relu()?;
    let sum = (inner + norm)?.relu()?.max_pool2d(3, 2)?;
    let pooled = sum.conv2d(&t[6], None, 2, 0)?.relu()?.avg_pool2d(2, 2)?;
    let y = pooled.flatten()?.linear(&t[7], None)?;
    let three = t[8].clone(); // which is neither ours nor a multiple of 16 bytes
    candle(move |y: &Tensor| y.broadcast_add(&three.mean_all()?)).forward(&y, true)
}

fn inputs() -> Vec<Tensor> {
    let shapes: [&[usize]; 9] = [
        &[6, 1, 22, 20],
        &[8, 1, 3, 3],
        &[8],
        &[8],
        &[8],
        &[8, 8, 3, 3],
        &[12, 8, 1, 1],
        &[5, 48],
        &[3],
    ];
    let numbered = shapes.iter().enumerate();
    numbered
        .map(|(i, shape)| random(*shape, i as u64))
        .collect()
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_network_in_f32_and_in_tf32() {
    let gpu = gpu();
    assert_as_on_the_cpu(&gpu, &inputs(), TOLERANCE, network);
    set_precision(Precision::Tf32);
    let y = &run_on(&gpu.device, false, &inputs(), network)[0];
    let expected = &run_on(&Device::Cpu, false, &inputs(), network)[0];
    assert_near("the value in TF32", y, expected, TF32);
}

/// Modules of candle's between our operations: what one of the two writes, the other reads.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_network_of_both() {
    let shapes: [&[usize]; 5] = [&[6, 9, 8, 3], &[8, 3, 3, 3], &[8], &[8, 8, 3, 3], &[5, 8]];
    let inputs = shapes.map(|shape| coarse(shape, 1));
    assert_as_on_the_cpu(&gpu(), &inputs, TOLERANCE, |t, _| {
        let scale = t[2].clone();
        let module = candle(move |x: &Tensor| x.broadcast_mul(&scale)?.tanh());
        // the first is one of candle's
        let y = module.forward(&Value::new(&t[0])?.conv2d(&t[1], None, 1, 1)?.relu()?, true)?;
        let y = (module.forward(&y.conv2d(&t[3], None, 1, 1)?, true)? + y)?;
        let weight = (&t[4] * 2.)?; // which candle has computed
        module
            .forward(&y.global_avg_pool2d()?, true)?
            .linear(&weight, None)
    });
}

/// Values that are the same to the bit, whether a backward pass follows or not.
fn evaluated(gpu: &Gpu) -> Vec<f32> {
    let there = inputs().into_iter().map(|t| t.to_device(&gpu.device));
    let there: Vec<Tensor> = there.collect::<Result<_>>().unwrap();
    values(&network(&there, &gpu.device).unwrap().eval().unwrap())
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn deterministic_algorithms_give_the_same_bits() {
    let gpu = gpu();
    set_deterministic(true);
    set_precision(Precision::Tf32);
    let first = run_on(&gpu.device, false, &inputs(), network);
    for _ in 0..5 {
        assert_eq!(run_on(&gpu.device, false, &inputs(), network), first);
    }
    assert_eq!(evaluated(&gpu), first[0]);
}

/// All gradients of the network, after the second of two passes that hand out their buckets.
fn in_buckets(device: &Device, bucket_len: usize) -> Vec<Vec<f32>> {
    let pass = |gradients: &mut Gradients, params: &[Var]| {
        gradients.zero();
        let mut of_params = tensors(params);
        of_params.rotate_left(1);
        let y = network(&of_params, device)?;
        // one parameter goes through candle's operations as well
        let last = params[8].as_tensor().clone();
        let squares = move |y: &Tensor| y.sqr()?.sum_all()? + last.sqr()?.sum_all()?;
        let loss = candle(squares).forward(&y, true)?;
        let mut buckets = Vec::new();
        let mut ready = |bucket: Bucket| {
            buckets.push(bucket);
            Ok(())
        };
        let how = Backward {
            ready: Some(&mut ready),
            ..Backward::default()
        };
        gradients.backward_with(&loss, how)?;
        assert!(buckets.iter().map(|b| b.index).eq(0..buckets.len()));
        buckets
            .into_iter()
            .try_for_each(|bucket| gradients.put_back(bucket))
    };
    let there = inputs().into_iter().map(|t| t.to_device(device));
    let mut params = variables(&there.collect::<Result<Vec<_>>>().unwrap()).unwrap();
    params.rotate_right(1); // the three floats first: in one bucket, all others are unaligned
    let named = params.iter().map(|p| ("", p));
    let mut gradients = Gradients::new(named, bucket_len).unwrap();
    for _ in 0..2 {
        pass(&mut gradients, &params).unwrap();
    }
    let mut buckets = given(&mut gradients);
    buckets.reverse(); // the order of the parameters
    buckets
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_gradients_of_a_classifier() {
    let gpu = gpu();
    let expected = gradients(&Device::Cpu).unwrap().concat();
    let actual = gradients(&gpu.device).unwrap().concat();
    assert_near("loss and gradients", &actual, &expected, TOLERANCE);
    let many = random((300, 100), 5);
    let sum = |device: &Device| {
        let sum = Value::new(&many.to_device(device)?)?.sum()?;
        sum.eval()?.to_scalar::<f32>()
    };
    assert_eq!(sum(&gpu.device).unwrap(), sum(&Device::Cpu).unwrap());
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn all_gradients_in_buckets() {
    let gpu = gpu();
    let expected = in_buckets(&Device::Cpu, usize::MAX).concat();
    for bucket_len in [0, 100, usize::MAX] {
        let actual = in_buckets(&gpu.device, bucket_len).concat();
        assert_near("all gradients", &actual, &expected, TOLERANCE);
    }
}

/// Parts of a gradient come from several steps, and a minibatch's are added to those of another.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gradients_add_up_and_unused_ones_are_zeros() {
    let gpu = gpu();
    let sums = |device: &Device| -> Result<Vec<Vec<f32>>> {
        let there = |t: Tensor| t.to_device(device);
        let params = variables(&[there(random((3, 3), 1))?, there(random(3, 2))?])?;
        let x = there(random((2, 3), 3))?;
        let (w, b) = (&params[0], &params[1]);
        let mut gradients = Gradients::new([("w", w), ("b", b)], usize::MAX)?;
        gradients.allow_unused(true);
        let twice = || {
            Value::new(&x)?
                .linear(w, None)?
                .relu()?
                .linear(&w.t()?, None)?
                .sum()
        };
        gradients.backward(&twice()?)?;
        let mut all: Vec<_> = gradients.values()?.iter().map(values).collect();
        assert_eq!(all[1], [0.; 3]);
        gradients.backward(&Value::new(&x)?.linear(w, Some(b))?.mean()?)?;
        all.extend(gradients.values()?.iter().map(values));
        gradients.zero();
        gradients.backward(&twice()?)?;
        all.extend(given(&mut gradients));
        Ok(all)
    };
    let (ours, expected) = (sums(&gpu.device).unwrap(), sums(&Device::Cpu).unwrap());
    for (ours, expected) in ours.iter().zip(&expected) {
        assert_near("gradients", ours, expected, TOLERANCE);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn evaluation_leaves_no_graph_and_two_devices_do_not_mix() {
    let gpu = gpu();
    let on = |t: &Tensor| t.to_device(&gpu.device).unwrap();
    let w = Var::from_tensor(&on(&random((5, 8), 1))).unwrap();
    let x = Value::new(&on(&random((3, 8), 2))).unwrap();
    let y = x.linear(&w, None).unwrap();
    assert!(!y.eval().unwrap().track_op());
    let expected = format!(
        "linear: x is on {:?}, weight on Cpu; move one with to_device",
        gpu.device.location()
    );
    let here = Var::from_tensor(&random((5, 8), 1)).unwrap();
    assert_refused(&expected, x.linear(&here, None));
    assert_refused("y on Cpu; move one", cross_entropy(&y, &labels(3, 5, 1)));
    assert_refused("y on Cpu; move one", squared_error(&y, &random((3, 5), 1)));
    let sum = &y + &Value::new(&random((3, 5), 1)).unwrap();
    assert_refused("other on Cpu; move one", sum);
    let mut gradients = Gradients::new([("here", &here)], usize::MAX).unwrap();
    let expected = format!(
        "backward: the loss is on {:?}, the parameter here on Cpu",
        gpu.device.location()
    );
    assert_refused(&expected, gradients.backward(&y.sum().unwrap()));
}
