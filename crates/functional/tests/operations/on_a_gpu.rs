//! Each operation on a GPU equals its twin on the CPU on random shapes, in the value and in all
//! gradients; and so do the steps that are taken with them.

mod bf16;

use crate::short_way::gradients;
use crate::support::{
    assert_close, cases, coarse, given, labels, random, tensor, upstream, values,
};
use candle_core::{DType, Device, Result, Tensor, Var};
use functional::{
    Expr, Gradients, Precision, Sgd, Summation, cross_entropy, set_deterministic, set_precision,
    with_synchronized_norms,
};
use proptest::prelude::*;
use std::sync::mpsc::channel;
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

/// `f(inputs)` on a device, and the gradient of each input.
fn run_on(
    device: &Device,
    inputs: &[Tensor],
    f: impl Fn(&[Tensor], &Device) -> Result<Tensor>,
) -> Vec<Vec<f32>> {
    let var = |t: &Tensor| Var::from_tensor(&t.to_device(device)?).map(Var::into_inner);
    let vars: Vec<Tensor> = inputs.iter().map(var).collect::<Result<_>>().unwrap();
    let y = f(&vars, device).unwrap();
    let up = upstream(y.shape()).to_device(device).unwrap();
    let loss = (&y * up).unwrap().sum_all().unwrap();
    let grads = loss.backward().unwrap();
    let grad = |v: &Tensor| values(grads.get(v).expect("each input has a gradient"));
    let mut results = vec![values(&y)];
    results.extend(vars.iter().map(grad));
    results
}

fn assert_twins(
    gpu: &Gpu,
    inputs: &[Tensor],
    tolerance: f64,
    f: impl Fn(&[Tensor], &Device) -> Result<Tensor>,
) {
    let (ours, theirs) = (
        run_on(&gpu.device, inputs, &f),
        run_on(&Device::Cpu, inputs, &f),
    );
    for (i, (a, e)) in ours.iter().zip(&theirs).enumerate() {
        let expected: Vec<f64> = e.iter().map(|v| f64::from(*v)).collect();
        let what = format!("result {i} (0 is the value, then the gradients)");
        assert_close(&what, a, &expected, tolerance);
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

/// Evaluates, with others if `shared`.
fn eval(expr: &Expr, shared: bool) -> Result<Tensor> {
    let others: Arc<dyn Summation> = Arc::new(Others);
    match shared {
        true => with_synchronized_norms(&others, || expr.eval()),
        false => expr.eval(),
    }
}

/// The batch norm of t, which is x, weight, bias and what may be added to it, with its ReLU if `relu`.
fn norm_of(
    t: &[Tensor],
    [mean, var]: &[Var; 2],
    [train, relu, shared]: [bool; 3],
) -> Result<Tensor> {
    let y = Expr::new(&t[0]).batch_norm2d(&t[1], &t[2], mean, var, train);
    let y = match t.get(3) {
        Some(other) => y + Expr::new(other),
        None => y,
    };
    eval(&if relu { y.relu() } else { y }, shared)
}

/// Compares the running statistics of both devices, the CPU's first.
fn assert_same_statistics([on_cpu, on_gpu]: &[[Var; 2]; 2]) {
    for (a, e) in on_gpu.iter().zip(on_cpu) {
        let expected: Vec<f64> = values(e).iter().map(|v| f64::from(*v)).collect();
        assert_close("running statistics", &values(a), &expected, 1e-5);
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
        assert_twins(&gpu(), &inputs, TOLERANCE, |t, _| {
            let y = Expr::new(&t[0]).conv2d(&t[1], t.get(2), stride, padding);
            let y = if relu { y.relu() } else { y };
            y.avg_pool2d(pool, pool).eval()
        });
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn linear_relu((b, i, o) in (1usize..300, 1usize..40, 1usize..80), seed in 0u64..1000) {
        let gpu = gpu();
        let mut inputs = [coarse((b, i), seed), coarse((o, i), seed + 1), coarse(o, seed + 2)];
        assert_twins(&gpu, &inputs, TOLERANCE, |t, _| {
            Expr::new(&t[0]).linear(&t[1], Some(&t[2])).relu().eval()
        });
        assert_twins(&gpu, &inputs[..2], TOLERANCE, |t, _| functional::linear(&t[0], &t[1], None));
        inputs[1] = coarse((i, o), seed + 3);
        assert_twins(&gpu, &inputs, TOLERANCE, |t, _| {
            Expr::new(&t[0]).matmul(&t[1], Some(&t[2])).relu().eval()
        });
        // a transposed view, which is read without a copy
        assert_twins(&gpu, &inputs[..2], TOLERANCE, |t, _| functional::linear(&t[0], &t[1].t()?, None));
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
        assert_twins(&gpu, inputs, TOLERANCE, |t, device| {
            let running = &of_device[usize::from(device.is_cuda())];
            norm_of(t, running, [train, relu, shared])
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
        assert_twins(&gpu, &x, 1e-5, |t, _| functional::avg_pool2d(&t[0], kernel, stride));
        assert_twins(&gpu, &x, 1e-5, |t, _| functional::global_avg_pool2d(&t[0]));
        // few different values: most windows have several maxima, and the first gets the gradient
        let ties = values(&x[0]).iter().map(|v| (v * 2.).round()).collect();
        for x in [&x[0], &tensor(ties, x[0].shape())] {
            let x = [x.clone()];
            assert_twins(&gpu, &x, 1e-5, |t, _| functional::max_pool2d(&t[0], kernel, stride));
        }
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn orders_relu_and_sums((b, h, w, c) in (1usize..4, 1usize..6, 1usize..6, 1usize..6), seed in 0u64..1000) {
        let gpu = gpu();
        let x = [random((b, h, w, c), seed), random((b, h, w, c), seed + 1)];
        assert_twins(&gpu, &x[..1], 0., |t, _| functional::nhwc(&t[0]));
        assert_twins(&gpu, &x[..1], 0., |t, _| functional::flatten(&t[0]));
        assert_twins(&gpu, &x[..1], 0., |t, _| functional::relu(&t[0]));
        assert_twins(&gpu, &x, 0., |t, _| (Expr::new(&t[0]) + Expr::new(&t[1])).relu().eval());
        // one value read twice
        assert_twins(&gpu, &x[..1], 0., |t, _| (Expr::new(&t[0]).relu() + Expr::new(&t[0])).eval());
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn losses((b, c) in (1usize..300, 1usize..12), scale in 0.1f64..30., seed in 0u64..1000) {
        let y_hat = [(random((b, c), seed) * scale).unwrap()];
        let y = labels(b, c, seed + 1);
        assert_twins(&gpu(), &y_hat, 1e-5, |t, device| cross_entropy(&t[0], &y.to_device(device)?));
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
                sgd.step_all(&[&w, &b], &sums, 7, Some(&velocity)).unwrap();
            }
            [values(&w), values(&b), values(&velocity)]
        });
        for (a, e) in on_gpu.iter().zip(&on_cpu) {
            let expected: Vec<f64> = e.iter().map(|v| f64::from(*v)).collect();
            assert_close("param and velocity", a, &expected, 1e-5);
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_label_that_is_no_class_shows() {
    let gpu = gpu();
    let y_hat = random((3, 4), 1).to_device(&gpu.device).unwrap();
    let y = Tensor::new(&[0u32, 4, 1], &gpu.device).unwrap();
    let losses = values(&cross_entropy(&y_hat, &y).unwrap());
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
        assert_twins(&gpu, &inputs, TOLERANCE, |t, device| {
            let [mean, var] = &of_device[usize::from(device.is_cuda())];
            let y = Expr::new(&t[0]).conv2d(&t[1], Some(&t[2]), 1, 1);
            let y = y.batch_norm2d(&t[3], &t[4], mean, var, true).relu();
            eval(&y, shared)
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
        assert_twins(&gpu(), &inputs, TOLERANCE, |t, device| {
            let [mean, var] = statistics(c, device);
            let y = Expr::new(&t[0]).batch_norm2d(&t[1], &t[2], &mean, &var, true);
            eval(&y, true)
        });
    }
}

/// Four channels are read at once only where they begin at a multiple of 16 bytes.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn parameters_may_begin_anywhere() {
    let inputs = [random((3, 4, 5, 8), 1), random(9, 2), random(9, 3)];
    assert_twins(&gpu(), &inputs, TOLERANCE, |t, device| {
        let [mean, var] = statistics(8, device);
        let part = |t: &Tensor| t.narrow(0, 1, 8);
        let norm = Expr::new(&t[0]).batch_norm2d(&part(&t[1])?, &part(&t[2])?, &mean, &var, true);
        norm.relu().eval()
    });
}

/// A network with everything that LeNet and ResNet-18 have.
fn network(t: &[Tensor], device: &Device) -> Result<Tensor> {
    let [mean, var] = statistics(8, device);
    let stem = Expr::new(&t[0]).nhwc().conv2d(&t[1], Some(&t[2]), 1, 1);
    let norm = stem.batch_norm2d(&t[3], &t[4], &mean, &var, true).relu();
    let inner = norm.clone().conv2d(&t[5], None, 1, 1).relu();
    let sum = (inner + norm).relu().max_pool2d(3, 2);
    let pooled = sum.conv2d(&t[6], None, 2, 0).relu().avg_pool2d(2, 2);
    let y = pooled.flatten().linear(&t[7], None).eval()?;
    y.broadcast_add(&t[8].mean_all()?) // which is neither ours nor a multiple of 16 bytes
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
    assert_twins(&gpu, &inputs(), TOLERANCE, network);
    set_precision(Precision::Tf32);
    let y = &run_on(&gpu.device, &inputs(), network)[0];
    let expected = &run_on(&Device::Cpu, &inputs(), network)[0];
    let expected: Vec<f64> = expected.iter().map(|v| f64::from(*v)).collect();
    assert_close("the value in TF32", y, &expected, TF32);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn deterministic_algorithms_give_the_same_bits() {
    let gpu = gpu();
    set_deterministic(true);
    set_precision(Precision::Tf32);
    let first = run_on(&gpu.device, &inputs(), network);
    for _ in 0..5 {
        assert_eq!(run_on(&gpu.device, &inputs(), network), first);
    }
}

/// All gradients of the network, after the second of two passes that hand out their buckets.
fn in_buckets(device: &Device, bucket_len: usize) -> Vec<Vec<f32>> {
    let on = |t: &Tensor| Var::from_tensor(&t.to_device(device).unwrap()).unwrap();
    let mut params: Vec<Var> = inputs().iter().map(on).collect();
    params.rotate_right(1); // the three floats first: in one bucket, all others are unaligned
    let mut tensors: Vec<Tensor> = params.iter().map(|p| p.as_tensor().clone()).collect();
    tensors.rotate_left(1);
    let named = params.iter().map(|p| ("", p));
    let mut gradients = Gradients::new(named, bucket_len).unwrap();
    for _ in 0..2 {
        gradients.zero();
        let loss = network(&tensors, device).unwrap().sqr().unwrap();
        // one parameter goes through candle's operations as well
        let loss = (loss.sum_all().unwrap() + params[8].sqr().unwrap().sum_all().unwrap()).unwrap();
        let (ready, buckets) = channel();
        gradients.backward_giving(&loss, &ready).unwrap();
        buckets
            .try_iter()
            .try_for_each(|bucket| gradients.put_back(bucket))
            .unwrap();
    }
    let mut buckets = given(&mut gradients);
    buckets.reverse(); // the order of the parameters
    buckets
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_short_way_back() {
    let gpu = gpu();
    let on_the_cpu = gradients(&Device::Cpu, true).unwrap().concat();
    let expected: Vec<f64> = on_the_cpu.iter().map(|v| f64::from(*v)).collect();
    for short in [true, false] {
        let actual = gradients(&gpu.device, short).unwrap().concat();
        assert_close("loss and gradients", &actual, &expected, TOLERANCE);
    }
    let many = random((300, 100), 5);
    let sum = |device: &Device| functional::sum(&many.to_device(device).unwrap()).unwrap();
    assert_eq!(values(&sum(&gpu.device)), values(&sum(&Device::Cpu)));
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn all_gradients_in_buckets() {
    let gpu = gpu();
    let expected = in_buckets(&Device::Cpu, usize::MAX).concat();
    let expected: Vec<f64> = expected.iter().map(|v| f64::from(*v)).collect();
    for bucket_len in [0, 100, usize::MAX] {
        let actual = in_buckets(&gpu.device, bucket_len).concat();
        assert_close("all gradients", &actual, &expected, TOLERANCE);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn evaluation_leaves_no_graph_and_two_devices_do_not_mix() {
    let gpu = gpu();
    let on = |t: &Tensor| t.to_device(&gpu.device).unwrap();
    let w = Var::from_tensor(&on(&random((5, 8), 1))).unwrap();
    let x = random((3, 8), 2);
    let y = functional::no_grad(|| functional::linear(&on(&x), &w, None)).unwrap();
    assert!(!y.track_op());
    let error = functional::linear(&on(&x), &random((5, 8), 1), None).unwrap_err();
    assert!(error.to_string().contains("different devices"), "{error}");
}
