//! How many predictions are right.

use candle_core::{D, DType, Device, Result, Tensor};
use devices::{cores, on_devices, to_device};
use functional::Value;
use training::DataIter;

use crate::accumulator::Accumulator;

/// The number of examples with the largest output at the label ("Softmax Regression
/// Implementation from Scratch"): `y_hat` (B, classes), `y` (B,). It is 0 for 0 examples: a replica may
/// get none.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// let y_hat = Tensor::new(&[[0.1f32, 0.3, 0.6], [0.3, 0.2, 0.5]], &Device::Cpu)?;
/// let y = Tensor::new(&[0u32, 2], &Device::Cpu)?;
/// assert_eq!(d2l::accuracy(&y_hat, &y)?, 1);
/// assert_eq!(d2l::accuracy(&y_hat.narrow(0, 0, 0)?, &y.narrow(0, 0, 0)?)?, 0);
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// If the numbers of examples differ.
pub fn accuracy(y_hat: &Tensor, y: &Tensor) -> Result<usize> {
    if y_hat.elem_count() == 0 && y.elem_count() == 0 {
        return Ok(0); // candle has no largest of nothing
    }
    let right = y_hat.argmax(D::Minus1)?.eq(y)?;
    Ok(right.to_dtype(DType::U32)?.sum_all()?.to_scalar::<u32>()? as usize)
}

/// The accuracy of `net` on a dataset, on one device ("Convolutional Neural Networks
/// (LeNet)"); on the CPU it may use all the cores of the run.
///
/// The other devices are idle meanwhile: the book does it so in its section from scratch.
///
/// ```
/// # use dataset::{Data, Options};
/// # use functional::Value;
/// let options = Options { data: Some(Data::Synthetic), limit_test: Some(30), limit_train: Some(1), ..Options::default() };
/// let (_, test_iter) = dataset::load(&options)?.iters(16)?;
/// let net = |x: &candle_core::Tensor| Value::new(&x.flatten_from(1)?.narrow(1, 0, 10)?); // ten pixels
/// let accuracy = d2l::evaluate_accuracy_gpu(net, &test_iter, &d2l::try_gpu(0))?;
/// assert!((0.0..=1.0).contains(&accuracy));
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// If the device or the data fail; the message names the device.
pub fn evaluate_accuracy_gpu(
    net: impl Fn(&Tensor) -> Result<Value>,
    data_iter: &DataIter,
    device: &Device,
) -> Result<f64> {
    let evaluate = || {
        let _span = tracing::info_span!("evaluate").entered();
        // No. of correct predictions, no. of predictions
        let mut metric = Accumulator::<2>::new();
        for batch in data_iter.iter() {
            let (x, y) = batch?;
            let (x, y) = (to_device(&x, device)?, to_device(&y, device)?);
            let all_cores = || net(&x)?.eval();
            let y_hat = devices::threads::with_budget(cores(), all_cores)?;
            metric.add([accuracy(&y_hat, &y)? as f64, y.dim(0)? as f64]);
        }
        Ok(metric[0] / metric[1])
    };
    on_devices("evaluation", std::slice::from_ref(device), evaluate)
}
