//! Each operation on a GPU equals the same on the CPU on random shapes, in the value and in all gradients; and so
//! do the steps that are taken with them. In f32, and with values of bf16 between the operations ([`bf16`]).

mod bf16;

use crate::both::{Both, Running};
use crate::networks::{self, Case};
use crate::support::*;
use candle_core::{DType, Device, Error, Result, Tensor, Var};
use functional::{
    AdamW, Bucket, BucketMemory, Gradients, Optimizer, OptimizerState, Part, Precision, Sgd, Slice,
    Summation, Update, Value, cross_entropy, set_deterministic, set_precision, squared_error,
};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Both sum in f32, in different orders.
const TOLERANCE: f64 = 1e-4;
/// Inputs of products have 10 bits behind the point.
const TF32: f64 = 5e-3;

/// A GPU that computes in this precision, and the turn of the test that has it.
struct Gpu {
    device: Device,
    precision: Precision,
    _turn: MutexGuard<'static, ()>,
}

fn gpu(precision: Precision) -> Gpu {
    static TURN: Mutex<()> = Mutex::new(());
    static DEVICE: OnceLock<Device> = OnceLock::new(); // to open one takes longer than a test
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    set_precision(precision);
    set_deterministic(false);
    let device = DEVICE.get_or_init(|| Device::new_cuda_with_stream(0).expect("a GPU"));
    Gpu {
        device: device.clone(),
        precision,
        _turn: turn,
    }
}

impl Gpu {
    /// Batch norms share their statistics with [`Others`] if `shared`.
    fn assert_as_on_the_cpu(
        &self,
        shared: bool,
        inputs: &[Tensor],
        network: impl Fn(&[Tensor]) -> Result<Both>,
    ) {
        let ours = run_on(&self.device, shared, inputs, &network);
        let theirs = run_on(&Device::Cpu, shared, inputs, &network);
        for (i, (a, e)) in ours.iter().zip(&theirs).enumerate() {
            let precision = self.precision;
            let what = format!("{precision:?}: result {i} of [value, gradients, statistics]");
            let is_statistic = i > inputs.len();
            let (terms, of_bf16) = match i {
                _ if is_statistic => (0, bf16::VALUE),
                0 => (inputs[0].elem_count(), bf16::VALUE),
                _ => (theirs[0].len(), bf16::GRADIENT),
            };
            match precision {
                Precision::Bf16 => bf16::assert_near(&what, a, e, terms, of_bf16),
                _ => assert_near(&what, a, e, if is_statistic { 1e-5 } else { TOLERANCE }),
            }
        }
    }
}

/// The value of a network on a device, the gradient of each input, and the running statistics of its norms.
fn run_on(
    device: &Device,
    shared: bool,
    inputs: &[Tensor],
    network: impl Fn(&[Tensor]) -> Result<Both>,
) -> Vec<Vec<f32>> {
    try_on(device, shared, inputs, network).unwrap()
}

fn try_on(
    device: &Device,
    shared: bool,
    inputs: &[Tensor],
    network: impl Fn(&[Tensor]) -> Result<Both>,
) -> Result<Vec<Vec<f32>>> {
    let there = inputs.iter().map(|t| t.to_device(device));
    let vars = variables(&there.collect::<Result<Vec<_>>>()?)?;
    let y = network(&tensors(&vars))?;
    let up = upstream(y.ours().dims()).to_device(device)?;
    let norms = shared.then(|| Arc::new(Others) as Arc<dyn Summation>);
    let mut results = pass_over(norms, &vars, &y.ours(), up)?;
    let statistics = y.running.iter().flat_map(|running| &running.ours);
    results.extend(statistics.map(|v| v.as_tensor().clone()));
    Ok(results.iter().map(values).collect())
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

const F32_AND_BF16: [Precision; 2] = [Precision::F32, Precision::Bf16];

/// Compares random networks of a kind with the CPU. Norms share their statistics if `shared`.
fn check<S: Strategy<Value = Case>>(
    precisions: &[Precision],
    [shared, deterministic]: [bool; 2],
    networks: fn() -> S,
) {
    for precision in precisions {
        let gpu = gpu(*precision);
        set_deterministic(deterministic);
        let equal = |case: Case| {
            prop_assume!(case.is_away_from_edges());
            gpu.assert_as_on_the_cpu(shared, &case.inputs, &case.network);
            Ok(())
        };
        TestRunner::new(cases(64)).run(&networks(), equal).unwrap();
    }
}

/// A test for each kind of network: the precisions, and of each run whether norms share their statistics, and whether
/// algorithms are deterministic.
macro_rules! tests {
    ($($kind:ident($($which:literal),*): $precisions:expr, $runs:expr;)*) => {
        $(#[test]
        #[ignore = "needs an NVIDIA GPU"]
        fn $kind() {
            for run in $runs {
                check(&$precisions, run, || networks::$kind($($which),*));
            }
        })*
    };
}

tests! {
    convolution_relu_pooling(1, true): F32_AND_BF16, [[false, false], [false, true]];
    linear(1): [Precision::F32], [[false; 2]];
    norm_sum_relu(): F32_AND_BF16, [[false, false], [true, false]];
    pooling(1): F32_AND_BF16, [[false; 2]];
    orders_sums_relu(1): F32_AND_BF16, [[false; 2]];
    losses(1): [Precision::F32], [[false; 2]];
    tokens(): [Precision::F32], [[false; 2]];
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn steps(n in 1usize..2000, (momentum, weight_decay) in (0.0f64..1., 0.0f64..1.), seed in 0u64..1000) {
        let gpu = gpu(Precision::F32);
        let sgd = |nesterov| Sgd { lr: 0.3, momentum, weight_decay, nesterov };
        let adamw = AdamW { lr: 0.3, weight_decay, ..AdamW::default() };
        for optimizer in [&sgd(false) as &dyn Optimizer, &sgd(true), &adamw, &Own] {
            for (max_norm, rate) in [(None, 1.), (Some(0.1), 0.5)] {
                let how = Update { lr: 0.3, rates: &[1., rate], max_norm, examples: 7. };
                let [on_cpu, on_gpu] = [&Device::Cpu, &gpu.device].map(|device| {
                    three_steps(device, n, seed, optimizer, how).unwrap()
                });
                for (a, e) in on_gpu.iter().zip(&on_cpu) {
                    assert_near("param and state", a, e, 1e-4);
                }
            }
        }
    }
}

/// What two parameters and the optimizer's state are after three steps.
fn three_steps(
    device: &Device,
    n: usize,
    seed: u64,
    optimizer: &dyn Optimizer,
    how: Update,
) -> Result<Vec<Vec<f32>>> {
    let on = |n: usize, seed| random(n, seed).to_device(device);
    let w = Var::from_tensor(&on(n, seed)?)?;
    let b = Var::from_tensor(&on(3, seed + 1)?)?;
    let part = |parameter, range| Part { parameter, range };
    let sums = on(n + 3, seed + 2)?;
    let bucket = Bucket {
        index: 0,
        parts: [part(0, 0..n), part(1, n..n + 3)].into(),
        values: match device.is_cpu() {
            true => BucketMemory::Floats(sums.to_vec1()?),
            false => BucketMemory::Tensor(sums),
        },
    };
    let (mut state, buckets) = (OptimizerState::default(), [bucket]);
    for _ in 0..3 {
        state.step(optimizer, &[("w", &w), ("b", &b)], &buckets, how)?;
    }
    let mut found = vec![values(&w), values(&b)];
    for kept in &state.buckets()[0] {
        found.push(values(&kept.get(0..n + 3)?));
    }
    Ok(found)
}

/// Has no kernel on a GPU.
#[derive(Debug)]
struct Own;

impl Optimizer for Own {
    fn lr(&self) -> f64 {
        0.3
    }

    fn state(&self) -> &'static [&'static str] {
        &["mean"]
    }

    fn step(&self, slices: &mut [Slice<'_>]) -> Result<()> {
        for slice in slices {
            let (lr, examples) = (slice.lr as f32, slice.examples as f32);
            slice.each(|p, sum, [m]| {
                *m = 0.5 * *m + sum / examples;
                *p -= lr * *m;
            })?;
        }
        Ok(())
    }
}

/// cuDNN may refuse a padding as large as the kernel, which the random shapes leave out. The error says so.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn padding_as_large_as_the_kernel_is_right_or_refused() {
    let inputs = [coarse((3, 6, 5, 8), 1), coarse((8, 8, 1, 1), 2)];
    let network = |t: &[Tensor]| Both::new(&t[0])?.conv2d(&t[1], None, 1, 1);
    for precision in F32_AND_BF16 {
        let gpu = gpu(precision);
        match try_on(&gpu.device, false, &inputs, network) {
            Ok(_) => gpu.assert_as_on_the_cpu(false, &inputs, network),
            refused => assert_refused(
                "a padding of 1 is not smaller than the kernel, 1 × 1: choose a smaller padding",
                refused,
            ),
        }
    }
}

/// The gradient of a weight is zeros where there is no example, and adding it changes nothing.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn an_empty_batch_gives_zeros_and_adds_nothing() {
    for precision in F32_AND_BF16 {
        let gpu = gpu(precision);
        let there = |t: Tensor| t.to_device(&gpu.device).unwrap();
        for (channels, kernel) in [(8, 1), (8, 3), (1, 3)] {
            let shape = (8, channels, kernel, kernel);
            let weight = Var::from_tensor(&there(coarse(shape, 1))).unwrap();
            let mut gradients = Gradients::new([("weight", &weight)], usize::MAX).unwrap();
            let examples = there(coarse((3, 6, 5, channels), 2));
            let mut add_batch = |batch: usize| {
                let x = Value::new(&examples.narrow(0, 0, batch).unwrap()).unwrap();
                let y = x.conv2d(&weight, None, 1, 0).unwrap();
                gradients.backward(&y.sum().unwrap()).unwrap();
                values(&gradients.values().unwrap()[0])
            };
            let of_none = add_batch(0);
            assert!(of_none.iter().all(|v| *v == 0.), "{of_none:?}");
            let of_three = add_batch(3);
            assert!(of_three.iter().any(|v| *v != 0.));
            assert_eq!(add_batch(0), of_three);
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_label_that_is_no_class_shows() {
    let gpu = gpu(Precision::F32);
    let y_hat = random((3, 4), 1).to_device(&gpu.device).unwrap();
    let y = Tensor::new(&[0u32, 4, 1], &gpu.device).unwrap();
    let losses = cross_entropy(&Value::new(&y_hat).unwrap(), &y).unwrap();
    let losses = values(&losses.eval().unwrap());
    let shows: Vec<bool> = losses.iter().map(|v| v.is_nan()).collect();
    assert_eq!(shows, [false, true, false]);
}

/// The running mean sees a convolution's bias, which the batch's own mean takes out again. A bias that only the
/// running mean sees is f32, wherever it stands among the inputs.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_bias_before_batch_norm() {
    let shapes = [(3, 7, 6, 5), (8, 5, 3, 3), (3, 7, 6, 8)];
    let [x, weight, other] = shapes.map(|shape| coarse(shape, 1));
    let [bias, scale, shift] = [2, 3, 4].map(|seed| random(8, seed));
    let inputs = [x, weight, bias, scale, shift, other];
    for precision in F32_AND_BF16 {
        let gpu = gpu(precision);
        for (shared, used) in [(false, 5), (false, 6), (true, 5), (true, 6)] {
            gpu.assert_as_on_the_cpu(shared, &inputs[..used], |t| {
                let y = Both::new(&t[0])?.conv2d(&t[1], Some(&t[2]), 1, 1)?;
                let y = y.batch_norm2d(&t[3], &t[4], &Running::of(&t[3])?, true)?;
                match t.get(5) {
                    Some(other) => y.plus(&Both::new(other)?),
                    None => Ok(y),
                }
            });
        }
    }
}

/// One value a channel is a part of a batch.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_pixel_that_shares_statistics() {
    for c in [3, 8] {
        let inputs = [random((1, 1, 1, c), 1), random(c, 2), random(c, 3)];
        gpu(Precision::F32).assert_as_on_the_cpu(true, &inputs, |t| {
            Both::new(&t[0])?.batch_norm2d(&t[1], &t[2], &Running::of(&t[1])?, true)
        });
    }
}

/// Four channels are read at once only where they begin at a multiple of 16 bytes.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn parameters_may_begin_anywhere() {
    let [wide, narrow] = F32_AND_BF16;
    for (precision, c) in [(wide, 8), (narrow, 8), (narrow, 7)] {
        let gpu = gpu(precision);
        let norm = |x: &Tensor, of_both: &Tensor| {
            let (weight, bias) = (of_both.narrow(0, 1, c)?, of_both.narrow(0, 1 + c, c)?);
            let x = Both::new(x)?;
            x.batch_norm2d(&weight, &bias, &Running::of(&weight)?, true)?
                .relu()
        };
        let conv = |x: &Tensor, many: &Tensor| {
            let weight = many.narrow(0, 1, 9 * c * 9)?.reshape((9, c, 3, 3))?;
            Both::new(x)?.conv2d(&weight, None, 1, 1)
        };
        let (x, many) = (coarse((3, 4, 5, c), 1), coarse(9 * c * 9 + 1, 3));
        let inputs = [x, random(2 * c + 1, 2), many];
        let [_, of_both, many] = &inputs;
        // parts of a variable, which candle computes
        gpu.assert_as_on_the_cpu(false, &inputs[..2], |t| norm(&t[0], &t[1]));
        let of_conv = [inputs[0].clone(), many.clone()];
        gpu.assert_as_on_the_cpu(false, &of_conv, |t| conv(&t[0], &t[1]));
        // and of a tensor, which are read where they are
        let there = |t: &[Tensor], all: &Tensor| all.to_device(t[0].device());
        gpu.assert_as_on_the_cpu(false, &inputs[..1], |t| norm(&t[0], &there(t, of_both)?));
        gpu.assert_as_on_the_cpu(false, &inputs[..1], |t| conv(&t[0], &there(t, many)?));
    }
}

/// A network with everything that LeNet and ResNet-18 have.
fn network(t: &[Tensor]) -> Result<Both> {
    let stem = Both::new(&t[0])?.nhwc()?.conv2d(&t[1], Some(&t[2]), 1, 1)?;
    let norm = stem.batch_norm2d(&t[3], &t[4], &Running::of(&t[3])?, true)?;
    let norm = norm.relu()?;
    let inner = norm.conv2d(&t[5], None, 1, 1)?.relu()?;
    let sum = inner.plus(&norm)?.relu()?.max_pool2d(3, 2)?;
    let pooled = sum.conv2d(&t[6], None, 2, 0)?.relu()?.avg_pool2d(2, 2)?;
    let y = pooled.flatten()?.linear(&t[7], None)?;
    let three = t[8].clone(); // which is neither ours nor a multiple of 16 bytes
    y.candle(move |y| y.broadcast_add(&three.mean_all()?))
}

fn inputs() -> Vec<Tensor> {
    let first: [&[usize]; 5] = [&[6, 1, 22, 20], &[8, 1, 3, 3], &[8], &[8], &[8]];
    let rest: [&[usize]; 4] = [&[8, 8, 3, 3], &[16, 8, 1, 1], &[5, 64], &[3]];
    let shapes = first.into_iter().chain(rest).zip(0..);
    shapes.map(|(shape, seed)| random(shape, seed)).collect()
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_network_in_f32_and_in_tf32() {
    let gpu = gpu(Precision::F32);
    gpu.assert_as_on_the_cpu(false, &inputs(), network);
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
    gpu(Precision::F32).assert_as_on_the_cpu(false, &inputs, |t| {
        let scale = t[2].clone();
        let module = move |x: &Tensor| x.broadcast_mul(&scale)?.tanh();
        // the first is one of candle's
        let y = Both::new(&t[0])?.conv2d(&t[1], None, 1, 1)?.relu()?;
        let y = y.candle(module.clone())?;
        let conv = y.conv2d(&t[3], None, 1, 1)?;
        let y = conv.candle(module.clone())?.plus(&y)?;
        let weight = (&t[4] * 2.)?; // which candle has computed
        y.global_avg_pool2d()?.candle(module)?.linear(&weight, None)
    });
}

/// The same bits each time, whether a backward pass follows or not.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn deterministic_algorithms_give_the_same_bits() {
    for precision in [Precision::Tf32, Precision::Bf16] {
        let gpu = gpu(precision);
        set_deterministic(true);
        let first = run_on(&gpu.device, false, &inputs(), network);
        for _ in 0..5 {
            assert_eq!(run_on(&gpu.device, false, &inputs(), network), first);
        }
        let there = inputs().into_iter().map(|t| t.to_device(&gpu.device));
        let there: Vec<Tensor> = there.collect::<Result<_>>().unwrap();
        let y = network(&there).unwrap().ours();
        assert_eq!(values(&y.eval().unwrap()), first[0], "{precision:?}");
    }
}

/// All gradients of the network, after the second of two passes that hand out their buckets.
fn gradients_in_buckets(device: &Device, bucket_len: usize) -> Vec<Vec<f32>> {
    let pass = |gradients: &mut Gradients, params: &[Var]| {
        gradients.zero();
        let mut of_params = tensors(params);
        of_params.rotate_left(1);
        // one parameter goes through candle's operations as well
        let last = params[8].as_tensor().clone();
        let squares = move |y: &Tensor| y.sqr()?.sum_all()? + last.sqr()?.sum_all()?;
        let loss = network(&of_params)?.candle(squares)?.ours();
        let buckets = in_buckets(gradients, &loss)?;
        assert!(buckets.iter().map(|b| b.0).eq(0..buckets.len()));
        Ok::<_, Error>(())
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
fn a_sum_of_many_is_that_of_the_cpu() {
    let gpu = gpu(Precision::F32);
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
    let gpu = gpu(Precision::F32);
    let expected = gradients_in_buckets(&Device::Cpu, usize::MAX).concat();
    for bucket_len in [0, 100, usize::MAX] {
        let actual = gradients_in_buckets(&gpu.device, bucket_len).concat();
        assert_near("all gradients", &actual, &expected, TOLERANCE);
    }
}

/// Parts of a gradient come from several steps, and a minibatch's are added to those of another.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gradients_add_up_and_unused_ones_are_zeros() {
    let gpu = gpu(Precision::F32);
    let sums = |device: &Device| -> Result<Vec<Vec<f32>>> {
        let there = |t: Tensor| t.to_device(device);
        let params = variables(&[there(random((3, 3), 1))?, there(random(3, 2))?])?;
        let x = there(random((2, 3), 3))?;
        let (w, b) = (&params[0], &params[1]);
        let mut gradients = Gradients::new([("w", w), ("b", b)], usize::MAX)?;
        gradients.allow_unused(true);
        let once = || Value::new(&x)?.linear(w, None)?.relu();
        let twice = || once()?.linear(&w.t()?, None)?.sum();
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
    let gpu = gpu(Precision::F32);
    let on = |t: &Tensor| t.to_device(&gpu.device).unwrap();
    let w = Var::from_tensor(&on(&random((5, 8), 1))).unwrap();
    let x = Value::new(&on(&random((3, 8), 2))).unwrap();
    let y = x.linear(&w, None).unwrap();
    assert!(!y.eval().unwrap().track_op());
    let there = gpu.device.location();
    let expected = format!("linear: x is on {there:?}, weight on Cpu; move one with to_device");
    let here = Var::from_tensor(&random((5, 8), 1)).unwrap();
    assert_refused(&expected, x.linear(&here, None));
    assert_refused("y on Cpu; move one", cross_entropy(&y, &labels(3, 5, 1)));
    assert_refused("y on Cpu; move one", squared_error(&y, &random((3, 5), 1)));
    let sum = &y + &Value::new(&random((3, 5), 1)).unwrap();
    assert_refused("other on Cpu; move one", sum);
    let mut gradients = Gradients::new([("here", &here)], usize::MAX).unwrap();
    let expected = format!("backward: the loss is on {there:?}, the parameter here on Cpu");
    assert_refused(&expected, gradients.backward(&y.sum().unwrap()));
}

fn free_bytes(device: &Device) -> usize {
    let stream = device.as_cuda_device().unwrap().cuda_stream();
    stream.context().mem_get_info().unwrap().0
}

/// Memory of the GPU, of which about 1 GiB stays free: a large GPU has room for more floats than a kernel takes.
fn all_but_a_gib(device: &Device) -> Vec<Tensor> {
    devices::empty_gpu_cache();
    let mut taken = Vec::new();
    let mut size = free_bytes(device);
    while size >= 1 << 20 {
        if free_bytes(device) < size + (1 << 30) {
            size /= 2;
            continue;
        }
        match Tensor::zeros(size, DType::U8, device) {
            Ok(tensor) => taken.push(tensor),
            Err(_) => size /= 2, // the memory is in pieces
        }
    }
    taken
}

/// A program may open a device with candle alone.
#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn on_a_gpu_that_computes_cudarc_records_no_events() {
    let device = Device::new_cuda_with_stream(0).unwrap();
    let gpu = device.as_cuda_device().unwrap();
    assert!(gpu.is_event_tracking());
    let ones = Tensor::ones(8, DType::F32, &device).unwrap();
    Value::new(&ones).unwrap().relu().unwrap().eval().unwrap();
    assert!(!gpu.is_event_tracking());
}

/// A network may have thousands of tensors, and its replicas threads with small stacks.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn on_a_gpu_a_step_takes_thousands_of_tensors() {
    let step = || {
        let gpu = gpu(Precision::F32);
        let one = |_| Var::ones(4, DType::F32, &gpu.device);
        let params = (0..3000).map(one).collect::<Result<Vec<_>>>()?;
        let ones = (0..3000).map(|_| Tensor::ones(4, DType::F32, &gpu.device));
        let sums = ones.collect::<Result<Vec<_>>>()?;
        functional::sgd(&params.iter().collect::<Vec<_>>(), &sums, 0.5, 1)?;
        params[2999].to_vec1::<f32>()
    };
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(step);
    assert_eq!(thread.unwrap().join().unwrap().unwrap(), [0.5; 4]);
}

/// A step keeps a third of the memory for the next one. A tensor of candle's and a sum of two replicas get it.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn memory_that_is_kept_is_given_back() {
    let gpu = gpu(Precision::F32);
    let device = &gpu.device;
    let _taken = all_but_a_gib(device);
    let keep = || {
        devices::empty_gpu_cache();
        let free = free_bytes(device) / size_of::<f32>();
        let x = Value::new(&Tensor::zeros(free / 10 * 3, DType::F32, device).unwrap()).unwrap();
        x.relu().unwrap().relu().unwrap().eval().unwrap();
        free / 10
    };
    let tenth = keep();
    let most = || Tensor::zeros(8 * tenth, DType::F32, device);
    assert!(most().is_err(), "the test needs memory that is kept");
    devices::retry_with_empty_cache(most).unwrap();

    let tenth = keep();
    let members = collective::group(2, Default::default());
    let sums = members.into_iter().map(|mut member| {
        let device = device.clone();
        std::thread::spawn(move || {
            let ones = Tensor::ones(tenth * 6 / 5, DType::F32, &device)?;
            member.all_reduce_tensor(&ones).map_err(Error::wrap)?;
            ones.ne(2f32)?.max_all()?.to_scalar::<u8>()
        })
    });
    for differs in sums.collect::<Vec<_>>() {
        assert_eq!(differs.join().unwrap().unwrap(), 0);
    }
}
