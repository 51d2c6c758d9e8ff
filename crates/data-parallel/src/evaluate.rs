//! Accuracy on all devices at once, or another metric.

use std::sync::Arc;

use candle_core::{Result, Tensor};
use devices::ensure;
use training::{Minibatches, accuracy, with_tensors};

use crate::batch_tensors::BatchTensors;
use crate::data_parallel::DataParallel;

/// The accuracy of `net` on a dataset, on all its devices in parallel: each minibatch is split
/// over them, and each replica uses its own batch-norm statistics. An example may have several labels. Of several
/// processes each evaluates its part of each minibatch of a [`DataIter`](training::DataIter).
///
/// ```
/// # use data_parallel::prelude::*;
/// let net = DataParallel::new(&devices(2)?, Initializer::Normal(0.01), 0, |vb| {
///     Linear::new(3, 2, vb)
/// })?;
/// let (x, y) = (Tensor::ones((5, 3), DType::F32, &Device::Cpu)?, Tensor::ones(5, DType::U32, &Device::Cpu)?);
/// let test_iter = DataIter::of_tensors(&x, &y, 2, None)?;
/// let accuracy = evaluate_accuracy(&net, &test_iter)?;
/// assert!((0.0..=1.0).contains(&accuracy));
/// # data_parallel::Result::Ok(())
/// ```
///
/// # Errors
/// If no minibatch came, or a running statistic is NaN or infinite; the message names it and its replica. If a step has made
/// a parameter so: [`Error::Diverged`](crate::Error::Diverged), which names it. If a replica
/// fails; the message names it. If a minibatch or the metric fails in one process, all processes return an error. The
/// network can train on. If the processes have different parameters.
pub fn evaluate_accuracy(
    net: &DataParallel,
    data_iter: impl Minibatches<Y = Tensor>,
) -> Result<f64> {
    // No. of correct predictions, no. of predictions
    let [correct, all] = evaluate(net, data_iter, |y_hat, y| {
        Ok([accuracy(y_hat, y)? as f64, y.elem_count() as f64])
    })?;
    ensure!(all > 0.0, "the accuracy of no example: no minibatch came");
    Ok(correct / all)
}

/// The sums of a metric over a dataset, from all devices and processes: `metric` gets the outputs and the labels or
/// targets of each shard. [`predict`](crate::predict) returns the outputs themselves.
///
/// ```
/// # use data_parallel::prelude::*;
/// let net = DataParallel::new(&devices(2)?, Initializer::Normal(0.01), 0, |vb| {
///     Linear::new(3, 1, vb)
/// })?;
/// let (x, y) = (Tensor::ones((5, 3), DType::F32, &Device::Cpu)?, Tensor::ones((5, 1), DType::F32, &Device::Cpu)?);
/// let [absolute, examples] = evaluate(&net, &DataIter::of_tensors(&x, &y, 2, None)?, |y_hat, y| {
///     let errors = (y_hat - y)?.abs()?.sum_all()?;
///     Ok([errors.to_scalar::<f32>()?.into(), y.dim(0)? as f64])
/// })?;
/// assert_eq!(examples, 5.0);
/// assert!(absolute > 0.0);
/// # data_parallel::Result::Ok(())
/// ```
///
/// # Errors
/// As [`evaluate_accuracy`].
#[tracing::instrument(skip_all)]
pub fn evaluate<M: Minibatches, const N: usize>(
    net: &DataParallel,
    data_iter: M,
    metric: impl Fn(&Tensor, &M::Y) -> Result<[f64; N]> + Send + Sync + 'static,
) -> Result<[f64; N]> {
    net.check_replicas()?;
    let mut sums = in_all_processes(net, sums_here(net, data_iter, metric))?;
    net.processes.sum(&mut sums)?;
    Ok(sums)
}

/// The result `evaluated` of this process, once all processes have theirs.
///
/// # Errors
/// In all processes, if it is an error in one of them, or they have divided different data.
pub(crate) fn in_all_processes<T>(net: &DataParallel, evaluated: Result<T>) -> Result<T> {
    let failed = [f64::from(u8::from(evaluated.is_err()))];
    let all = net
        .processes
        .gather_numbers("ends of an evaluation", &failed)?;
    if all.iter().any(|failed| failed[0] > 0.0) {
        return Err(net.processes.why(evaluated.err())?);
    }
    let settings = net.take_shared_settings();
    net.processes.agree("settings", &settings)?;
    evaluated
}

/// The sums over the minibatches of this process.
fn sums_here<M: Minibatches, const N: usize>(
    net: &DataParallel,
    data_iter: M,
    metric: impl Fn(&Tensor, &M::Y) -> Result<[f64; N]> + Send + Sync + 'static,
) -> Result<[f64; N]> {
    net.check_numbers()?;
    let metric = Arc::new(metric);
    let mut sums = [0.0; N];
    for batch in data_iter.minibatches(|data| net.part(data)) {
        let (x, y) = batch?;
        let data = BatchTensors::new(&x, &y)?;
        let metric = metric.clone();
        let of_shards = net.infer_on_each(&data, move |replica, shard| {
            metric(&replica.infer(&shard.x)?, &with_tensors(&y, shard.y)?)
        })?;
        for shard in of_shards {
            sums.iter_mut().zip(shard).for_each(|(sum, n)| *sum += n);
        }
    }
    Ok(sums)
}
