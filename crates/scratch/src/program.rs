//! The program: the loop of [`train`](crate::train), with options, a record, progress and an end by Ctrl-C.

use candle_core::Tensor;
use d2l::{evaluate_accuracy_gpu, synchronize};
use run::{BatchLoss, Book, Options, Run, Summary};

use crate::{init_params, lenet, replicas, train_batch};

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

/// Trains LeNet as the options say. The clock counts the training of all devices, not the evaluation.
///
/// ```
/// use run::Options;
///
/// let summary = scratch::program::train(&Options {
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
    let mut run = Run::start(options, &BOOK)?;
    run.connect_gpus();
    // New parameters, or those of --init
    let names = NAMES.map(String::from);
    let params = run.init(names.into_iter().zip(init_params(options.seed)?))?;
    let device_params = replicas(&params, &run.devices)?;
    for epoch in run.epochs() {
        run.timer.start();
        for batch in run.train_iter.epoch(epoch) {
            let (x, y) = batch?;
            let ls = train_batch(&x, &y, &device_params, &run.devices, run.lr)?;
            run.step(BatchLoss::new(ls, x.dim(0)?), &device_params)?;
        }
        synchronize(&run.devices)?;
        run.timer.stop();
        let net = |x: &Tensor| lenet(x, &device_params[0]);
        let test_acc = evaluate_accuracy_gpu(net, &run.test_iter, &run.devices[0])?;
        run.epoch(test_acc, &device_params)?;
    }
    run.finish(&device_params)
}
