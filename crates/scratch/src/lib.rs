//! "Training on Multiple GPUs", by hand: LeNet, and data-parallel training of it with nothing
//! but tensors. The functions stand in the order of the book's page.
//!
//! The steps: copy the parameters to every device, give each device its shard of the minibatch, add up the
//! gradients, take the same step everywhere. Fast operations are in `functional`, the few-line version in `concise`.

use candle_core::{DType, Device, Result, Tensor, Var, bail};
use d2l::{
    Param, backward, evaluate_accuracy_gpu, num_examples, on_each, sgd, synchronize, view_to_device,
};
use data_parallel_functional::{Value, cross_entropy};
use run::{BatchLoss, Book, Options, Run, Summary};

/// What the book sets for this section: the batch size and the learning rate stay the same
/// however many devices there are.
pub const BOOK: Book = Book {
    program: "scratch",
    section: "Training on Multiple GPUs, by hand: LeNet on Fashion-MNIST, data-parallel",
    network: "LeNet",
    batch_size: |_num_gpus| 256,
    lr: |_num_gpus| 0.2,
};

/// The names of the parameters in files.
const NAMES: [&str; 8] = ["W1", "b1", "W2", "b2", "W3", "b3", "W4", "b4"];

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
    let params = params.iter();
    params.map(|p| Param::new(&p.to_device(device)?)).collect()
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
        let other = data[i].to_device(data[0].device())?;
        data[0].set(&(data[0].as_detached_tensor() + other)?)?; // data[0][:] += data[i]
    }
    for i in 1..data.len() {
        data[i].set(&data[0].to_device(data[i].device())?)?; // data[i][:] = data[0]
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
    let n = num_examples(x, y)?; // an error if x and y have different numbers
    let k = devices.len();
    let (mut x_shards, mut y_shards, mut start) = (vec![], vec![], 0);
    for (i, device) in devices.iter().enumerate() {
        let len = if i < n % k { n / k + 1 } else { n / k };
        x_shards.push(view_to_device(&x.narrow(0, start, len)?, device)?);
        y_shards.push(view_to_device(&y.narrow(0, start, len)?, device)?);
        start += len;
    }
    Ok((x_shards, y_shards))
}

/// One step of all devices on one minibatch; returns the minibatch's loss before it.
///
/// A device without an example adds nothing to the gradient, and takes the step all the same.
///
/// ```
/// # use candle_core::{DType, Device, Result, Tensor};
/// let (devices, params) = (d2l::devices(2)?, scratch::init_params(0)?);
/// let copies = devices.iter().map(|device| scratch::get_params(&params, device));
/// let device_params = copies.collect::<Result<Vec<_>>>()?;
/// let x = Tensor::zeros((4, 1, 28, 28), DType::F32, &Device::Cpu)?;
/// let y = Tensor::zeros(4, DType::U32, &Device::Cpu)?;
/// let l = scratch::train_batch(&x, &y, &device_params, &devices, 0.2)?;
/// assert!((l.mean()? - 10f32.ln()).abs() < 1e-3); // ten classes, and nothing learned yet
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
) -> Result<BatchLoss> {
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
    Ok(BatchLoss::new(ls, batch_size))
}

/// Trains LeNet as the options say. The clock counts the training of all devices, not the evaluation. Device 0
/// alone computes the accuracy, as in the book.
///
/// ```
/// use run::Options;
///
/// let summary = scratch::train(&Options {
///     gpus: Some(2),
///     epochs: 1,
///     data: Some("synthetic".parse()?),
///     limit_train: Some(512),
///     limit_test: Some(100),
///     ..Options::default() // the book's
/// })?;
/// assert_eq!(summary.test_acc.len(), 1);
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// If an option, the data or the parameters cannot be used, or a step or a file fails.
pub fn train(options: &Options) -> anyhow::Result<Summary> {
    // Devices, data, timer and curve, as the options say
    let mut run = Run::start(options, &BOOK)?;
    // New parameters, or those of --init
    let names = NAMES.map(str::to_owned).into_iter();
    let params = run.init(names.zip(init_params(options.seed)?))?;
    let (devices, lr) = (run.devices.clone(), run.lr);
    // Copy model parameters to all devices
    let copies = devices.iter().map(|device| get_params(&params, device));
    let device_params: Vec<_> = copies.collect::<Result<_>>()?;
    for epoch in run.epochs() {
        run.timer.start();
        for batch in run.train_iter.epoch(epoch) {
            let (x, y) = batch?;
            // Perform multi-GPU training for a single minibatch
            let l = train_batch(&x, &y, &device_params, &devices, lr)?;
            run.step(l, &device_params)?;
        }
        synchronize(&devices)?;
        run.timer.stop();
        // Evaluate the model on GPU 0, and add the accuracy to the curve
        let net = |x: &Tensor| lenet(x, &device_params[0]);
        let test_acc = evaluate_accuracy_gpu(net, &run.test_iter, &devices[0])?;
        run.epoch(test_acc, &device_params)?;
    }
    run.finish(&device_params)
}
