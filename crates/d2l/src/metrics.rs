//! The accuracy on one device.

use candle_core::{Device, Result, Tensor};
use devices::{cores, on_devices, to_device};
use functional::Value;
use training::{DataIter, accuracy};

use crate::accumulator::Accumulator;

/// The accuracy of `net` on a dataset, on one device ("Convolutional Neural Networks
/// (LeNet)"); on the CPU it may use all the cores of the run.
///
/// The other devices are idle meanwhile: the book does it so in its section from scratch.
///
/// ```
/// # use dataset::{Data, Options};
/// # use data_parallel_functional::Value;
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
        for batch in data_iter.in_order() {
            let (x, y) = batch?;
            let x = to_device(&x, device)?;
            let y = to_device(&y, device)?;
            let all_cores = || net(&x)?.eval();
            let y_hat = devices::threads::with_budget(cores(), all_cores)?;
            metric.add([accuracy(&y_hat, &y)? as f64, y.dim(0)? as f64]);
        }
        Ok(metric[0] / metric[1])
    };
    on_devices("evaluation", std::slice::from_ref(device), evaluate)
}
