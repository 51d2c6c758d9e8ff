//! Accuracy on all devices at once.

use anyhow::Result;
use d2l::{Accumulator, accuracy};
use dataset::DataIter;

use crate::replication::DataParallel;

/// The accuracy of `net` on a dataset, on all its devices in parallel: each minibatch is split
/// over them, and each replica uses its own batch-norm statistics.
///
/// ```
/// # use concise::{DataParallel, Initializer, evaluate_accuracy_gpus, layers::Linear};
/// # use dataset::{Data, Options};
/// # use functional::{Network, Value};
/// let options = Options { data: Some(Data::Synthetic), limit_test: Some(30), limit_train: Some(1), ..Options::default() };
/// let (_, test_iter) = dataset::load(&options)?.iters(16)?;
/// let net = DataParallel::new(&d2l::devices(2)?, Initializer::Normal(0.01), 0, |vb| {
///     let fc = Linear::new(784, 10, vb)?;
///     Ok(move |x: &Value, train| fc.forward(&x.nhwc()?.flatten()?, train))
/// })?;
/// let accuracy = evaluate_accuracy_gpus(&net, &test_iter)?;
/// assert!((0.0..=1.0).contains(&accuracy));
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// If a replica fails; the message names it, and the network can train on. With several processes it cannot: the
/// others wait for this one's counts, so that it has to end ([`Processes::finish`](crate::Processes::finish)).
#[tracing::instrument(skip_all, name = "evaluate")]
pub fn evaluate_accuracy_gpus(net: &DataParallel, data_iter: &DataIter) -> Result<f64> {
    // No. of correct predictions, no. of predictions
    let mut metric = Accumulator::<2>::new();
    for batch in data_iter.iter() {
        let (x, y) = batch?;
        let correct = net.on_each(net.scatter(&x, &y)?, |replica, (x, y)| {
            if y.dim(0)? == 0 {
                return Ok(0); // an empty shard
            }
            Ok(accuracy(&replica.infer(&x)?, &y)?)
        })?;
        metric.add([correct.iter().sum::<usize>() as f64, y.dim(0)? as f64]);
    }
    let mut counts = [metric[0], metric[1]]; // and those of the other processes
    net.processes.sum(&mut counts)?;
    Ok(counts[0] / counts[1])
}
