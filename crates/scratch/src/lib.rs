//! "Training on Multiple GPUs", by hand: LeNet, and each step of its data-parallel training. The functions stand in
//! the order of the book's page.
//!
//! The steps: copy the parameters to every device, give each device its shard of the minibatch, add up the
//! gradients, take the same step everywhere. Fast operations are in `data_parallel_functional`, the few-line version is
//! in `concise`. The program around the training loop, with options and a record, is in [`program`].
//!
//! Ten names come from other crates:
//!
//! | name | in PyTorch |
//! |---|---|
//! | [`Param`] | a tensor with `requires_grad`, and its `grad` |
//! | [`Value`] | a tensor in the computational graph |
//! | [`cross_entropy`] | `F.cross_entropy(…, reduction="none")` |
//! | [`backward`] | `l.backward()` |
//! | [`view_to_device`] | `x.to(device)` |
//! | [`on_each`] | the loop over the devices: GPUs work in the background there |
//! | [`synchronize`] | `torch.cuda.synchronize` |
//! | [`sgd`], [`evaluate_accuracy_gpu`] | the book's `d2l.sgd`, `d2l.evaluate_accuracy_gpu` |
//! | [`Dataset`] | what `d2l.load_data_fashion_mnist` loads |
//!
//! What is written `d2l::…` here is the book's `d2l.…` or `torch.…`: `rng`, `normal`, `devices`, `to_device`, `Timer`.

use candle_core::{DType, Device, Result, Tensor, Var, bail};
use d2l::{Param, backward, evaluate_accuracy_gpu, on_each, sgd, synchronize, view_to_device};
use data_parallel_functional::{Value, cross_entropy};
use dataset::Dataset;

pub mod one_device;
pub mod program;

/// The initial parameters W1, b1 … W4, b4 on the CPU: weights from N(0, 0.01²), biases zero.
///
/// ```
/// let params = scratch::init_params(0)?;
/// let size: usize = params.iter().map(|p| p.elem_count()).sum();
/// assert_eq!(size, 129_068);
/// # candle_core::Result::Ok(())
/// ```
pub fn init_params(seed: u64) -> Result<Vec<Tensor>> {
    let rng = &mut d2l::rng(seed);
    let scale = 0.01;
    let zeros = |n: usize| Tensor::zeros(n, DType::F32, &Device::Cpu);
    let w1 = d2l::normal(rng, scale, (20, 1, 3, 3))?;
    let b1 = zeros(20)?;
    let w2 = d2l::normal(rng, scale, (50, 20, 5, 5))?;
    let b2 = zeros(50)?;
    let w3 = d2l::normal(rng, scale, (800, 128))?;
    let b3 = zeros(128)?;
    let w4 = d2l::normal(rng, scale, (128, 10))?;
    let b4 = zeros(10)?;
    Ok(vec![w1, b1, w2, b2, w3, b3, w4, b4])
}

/// The network: images `x` (B, 1, 28, 28) to `y_hat` (B, 10).
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// let device = d2l::try_gpu(0);
/// let params = scratch::get_params(&scratch::init_params(0)?, &device)?;
/// let x = Tensor::zeros((4, 1, 28, 28), DType::F32, &device)?;
/// assert_eq!(scratch::lenet(&x, &params)?.eval()?.dims(), [4, 10]);
/// # candle_core::Result::Ok(())
/// ```
pub fn lenet(x: &Tensor, params: &[Param]) -> Result<Value> {
    let [w1, b1, w2, b2, w3, b3, w4, b4] = params else {
        bail!("LeNet has 8 parameters, {} were given", params.len());
    };
    // These lines only write the network down; `backward` or `eval` computes it. Inside the network
    // a pixel's channels come last. `flatten` goes back to the book's order of channel, row, column
    let x = Value::new(x)?.nhwc()?; // (B, 28, 28, 1)
    let h1_conv = x.conv2d(w1, Some(b1), 1, 0)?; // stride 1, padding 0: (B, 26, 26, 20)
    let h1 = h1_conv.relu()?.avg_pool2d(2, 2)?; // (B, 13, 13, 20)
    let h2_conv = h1.conv2d(w2, Some(b2), 1, 0)?; // (B, 9, 9, 50)
    let h2 = h2_conv.relu()?.avg_pool2d(2, 2)?; // (B, 4, 4, 50)
    let h2 = h2.flatten()?; // (B, 800)
    let h3 = h2.matmul(w3, Some(b3))?.relu()?; // h2 · W3 + b3: (B, 128)
    h3.matmul(w4, Some(b4))
}

/// Cross-entropy of each example: `y_hat` (B, 10) and labels `y` (B,) to losses (B,).
///
/// ```
/// # use candle_core::{Device, Tensor};
/// # use data_parallel_functional::Value;
/// let y_hat = Value::new(&Tensor::new(&[[0f32, 0.0], [0.0, 0.0]], &Device::Cpu)?)?;
/// let l = scratch::loss(&y_hat, &Tensor::new(&[0u32, 1], &Device::Cpu)?)?;
/// assert_eq!(l.eval()?.to_vec1::<f32>()?, [2f32.ln(), 2f32.ln()]);
/// # candle_core::Result::Ok(())
/// ```
pub fn loss(y_hat: &Value, y: &Tensor) -> Result<Value> {
    cross_entropy(y_hat, y)
}

/// Copies the parameters to a device and attaches gradients.
///
/// Each call makes a copy, also on the CPU. Otherwise an update of one replica would change the other.
///
/// ```
/// let params = scratch::init_params(0)?;
/// let new_params = scratch::get_params(&params, &d2l::try_gpu(0))?;
/// println!("b1 weight: {}", *new_params[1]);
/// println!("b1 grad: {}", new_params[1].grad());
/// # candle_core::Result::Ok(())
/// ```
pub fn get_params(params: &[Tensor], device: &Device) -> Result<Vec<Param>> {
    params
        .iter()
        .map(|p| Param::new(&p.to_device(device)?))
        .collect()
}

/// A copy of the parameters on each device: the book's `[get_params(params, d) for d in devices]`.
///
/// ```
/// let device_params = scratch::replicas(&scratch::init_params(0)?, &d2l::devices(2)?)?;
/// assert_eq!((device_params.len(), device_params[1].len()), (2, 8));
/// # candle_core::Result::Ok(())
/// ```
pub fn replicas(params: &[Tensor], devices: &[Device]) -> Result<Vec<Vec<Param>>> {
    devices
        .iter()
        .map(|device| get_params(params, device))
        .collect()
}

/// Adds up all tensors on the device of the first, and broadcasts the sum back to all of them.
///
/// ```
/// # use candle_core::Var;
/// let (gpu0, gpu1) = (d2l::try_gpu(0), d2l::try_gpu(1));
/// let data = [Var::new(&[[1f32, 1.0]], &gpu0)?, Var::new(&[[2f32, 2.0]], &gpu1)?];
/// scratch::allreduce(&data)?;
/// assert_eq!(data[0].to_vec2::<f32>()?, [[3.0, 3.0]]);
/// assert_eq!(data[1].to_vec2::<f32>()?, [[3.0, 3.0]]);
/// # candle_core::Result::Ok(())
/// ```
#[tracing::instrument(skip_all, name = "all-reduce")]
pub fn allreduce(data: &[Var]) -> Result<()> {
    // detached, as with the book's `torch.no_grad()`: no gradient of the sum is needed
    for i in 1..data.len() {
        let other = d2l::to_device(&data[i], data[0].device())?;
        data[0].set(&(data[0].as_detached_tensor() + other)?)?; // data[0][:] += data[i]
    }
    for i in 1..data.len() {
        data[i].set(&d2l::to_device(&data[0], data[i].device())?)?; // data[i][:] = data[0]
    }
    Ok(())
}

/// Splits `x` and `y` into one shard for each device, of consecutive examples. Where the number
/// of devices does not divide that of the examples, the first shards get one example more. A shard of a
/// replica on the CPU may be empty.
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// let data = Tensor::arange(0f32, 20.0, &Device::Cpu)?.reshape((4, 5))?;
/// let y = Tensor::arange(0u32, 4, &Device::Cpu)?;
/// let (x_shards, y_shards) = scratch::split_batch(&data, &y, &d2l::devices(2)?)?;
/// assert_eq!(x_shards[1].to_vec2::<f32>()?[0], [10.0, 11.0, 12.0, 13.0, 14.0]);
/// assert_eq!(y_shards[1].to_vec1::<u32>()?, [2, 3]);
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// If `x` and `y` have different numbers of examples, or a GPU would be left without an example.
#[tracing::instrument(skip_all, name = "split")]
pub fn split_batch(
    x: &Tensor,
    y: &Tensor,
    devices: &[Device],
) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    let n = x.dim(0)?;
    if y.dim(0)? != n {
        bail!("x has {n} examples, y has {}", y.dim(0)?);
    }
    let k = devices.len();
    let start = |i: usize| i * (n / k) + i.min(n % k); // the first n % k shards have one more
    let shard = |data: &Tensor, i: usize| {
        let part = data.narrow(0, start(i), start(i + 1) - start(i))?;
        view_to_device(&part, &devices[i])
    };
    let x_shards = (0..k).map(|i| shard(x, i)).collect::<Result<_>>()?;
    let y_shards = (0..k).map(|i| shard(y, i)).collect::<Result<_>>()?;
    Ok((x_shards, y_shards))
}

/// One step of all devices on one minibatch. Returns the loss of each shard before it, summed over its examples.
///
/// A device without an example adds nothing to the gradient, and takes the step all the same.
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// let devices = d2l::devices(2)?;
/// let device_params = scratch::replicas(&scratch::init_params(0)?, &devices)?;
/// let x = Tensor::zeros((4, 1, 28, 28), DType::F32, &Device::Cpu)?;
/// let y = Tensor::zeros(4, DType::U32, &Device::Cpu)?;
/// let ls = scratch::train_batch(&x, &y, &device_params, &devices, 0.2)?;
/// let l = ls[1].to_scalar::<f32>()? / 2.0; // the mean over the two examples of the second device
/// assert!((l - 10f32.ln()).abs() < 1e-3); // ten classes, and nothing learned yet
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// If `x` and `y` have different numbers of examples or none, if there is not one copy of the
/// parameters for each device, or a label is none of the ten classes. Where a device fails, or what runs
/// on it panics, the message names it.
pub fn train_batch(
    x: &Tensor,
    y: &Tensor,
    device_params: &[Vec<Param>],
    devices: &[Device],
    lr: f64,
) -> Result<Vec<Tensor>> {
    let (x_shards, y_shards) = split_batch(x, y, devices)?;
    // Loss and backpropagation on each device separately, on all at once. Replica i gets the i-th inputs
    let inputs = (x_shards, y_shards, device_params);
    let ls = on_each(devices, inputs, |(x_shard, y_shard, w)| {
        let y_hat = lenet(&x_shard, w)?;
        let l = loss(&y_hat, &y_shard)?.sum()?;
        backward(&l, w) // computes l and its gradients, and returns l
    })?;
    // Sum all gradients from each device and broadcast them to all devices. A clone of a gradient shares
    // its memory, so `allreduce` changes the gradients themselves
    for i in 0..device_params[0].len() {
        let grads: Vec<_> = device_params.iter().map(|w| w[i].grad().clone()).collect();
        allreduce(&grads)?;
    }
    // The model parameters are updated separately on each device
    let batch_size = x.dim(0)?; // Here, we use a full-size batch
    on_each(devices, device_params, |w| sgd(w, lr, batch_size))?;
    Ok(ls)
}

/// Trains LeNet on `num_gpus` devices, and prints the book's line. Returns the test accuracy after each epoch. Device 0
/// alone computes it, as in the book.
///
/// ```
/// let data = dataset::load(&dataset::Options {
///     data: Some("synthetic".parse()?),
///     limit_train: Some(512),
///     limit_test: Some(100),
///     ..dataset::Options::default()
/// })?;
/// let test_acc = scratch::train(2, 256, 0.2, 1, &data)?;
/// assert_eq!(test_acc.len(), 1);
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// If there are fewer examples than devices, or a step fails.
pub fn train(
    num_gpus: usize,
    batch_size: usize,
    lr: f64,
    num_epochs: usize,
    data: &Dataset,
) -> anyhow::Result<Vec<f64>> {
    let (train_iter, test_iter) = data.iters(batch_size)?;
    let devices = d2l::devices(num_gpus)?;
    // Copy model parameters to `num_gpus` GPUs
    let device_params = replicas(&init_params(0)?, &devices)?;
    let mut timer = d2l::Timer::new();
    let mut test_acc = vec![];
    for epoch in 1..=num_epochs {
        timer.start();
        for batch in train_iter.epoch(epoch) {
            let (x, y) = batch?;
            // Perform multi-GPU training for a single minibatch
            train_batch(&x, &y, &device_params, &devices, lr)?;
        }
        synchronize(&devices)?;
        timer.stop();
        // Evaluate the model on GPU 0
        let net = |x: &Tensor| lenet(x, &device_params[0]);
        test_acc.push(evaluate_accuracy_gpu(net, &test_iter, &devices[0])?);
    }
    if let Some(last) = test_acc.last() {
        let sec = timer.avg();
        let names = d2l::device_names(&devices);
        println!("test acc: {last:.2}, {sec:.2} sec/epoch on {names}");
    }
    Ok(test_acc)
}
