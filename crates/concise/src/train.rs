//! The section's training function.

use std::sync::Arc;

use anyhow::Result;
use candle_nn::VarBuilder;
use d2l::synchronize;
use functional::cross_entropy;
use run::{BadInput, Book, Summary, say};

use crate::evaluate::evaluate_accuracy_gpus;
use crate::options::Options;
use crate::replication::{DataParallel, Initializer, Processes, Trainer};
use crate::resnet::resnet18;
use crate::start::{load, start};

/// What the book sets for this section: minibatch and learning rate grow with the devices.
pub const BOOK: Book = Book {
    program: "concise",
    section: "Concise Implementation for Multiple GPUs: ResNet-18 on Fashion-MNIST, data-parallel",
    network: "ResNet-18",
    batch_size: |num_gpus| 256 * num_gpus,
    lr: |num_gpus| 0.1 * num_gpus as f64,
};

const INIT: Initializer = Initializer::Normal(0.01);

/// Trains ResNet-18 as the options say; the clock does not include the evaluation.
///
/// ```no_run
/// let options = run::Options { gpus: Some(2), ..run::Options::default() }; // the book's
/// let summary = concise::train(&options.into())?;
/// println!("{:.2}", summary.test_acc[9]);
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// If an option, the data or the parameters cannot be used, or a step or a file fails.
pub fn train(options: &Options) -> Result<Summary> {
    options.check().map_err(BadInput::from)?;
    let processes = Arc::new(options.processes()?);
    let result = train_among(&processes, options);
    let processes = Arc::into_inner(processes).expect("the network is gone");
    processes.finish(result)
}

/// As [`train`], in each of several processes.
fn train_among(processes: &Arc<Processes>, options: &Options) -> Result<Summary> {
    // Devices, data, timer and curve, as the options say
    let mut run = start(options, &BOOK, processes)?;
    let (how, devices) = (options.replication(), run.devices.clone());
    // Initialize the network on all devices
    let network = |vb: VarBuilder<'_>| resnet18(10, vb);
    let net = DataParallel::among(processes, how, &devices, INIT, run.seed, network)?;
    load(&mut run, &net)?; // the parameters of --init or --resume, where it is given
    let trainer = Trainer::new(&net, cross_entropy, options.sgd(run.lr));
    let trainer = trainer.schedule(options.schedule(&run)).check_losses(false); // the run does
    let mut trainer = trainer.accumulate(options.accumulate);
    trainer.go_on(run.take_extra_state())?;
    for epoch in run.epochs() {
        run.timer.start();
        for batch in run.train_iter.epoch(epoch) {
            let (x, y) = batch?;
            let step = trainer.step(&x, &y)?;
            run.step(step.loss, &trainer)?;
        }
        trainer.flush()?; // the step with what --accumulate has left
        synchronize(&devices)?;
        run.timer.stop();
        // Evaluate the model on all devices, and add the accuracy to the curve
        let test_acc = evaluate_accuracy_gpus(&net, &run.test_iter)?;
        run.epoch(test_acc, &trainer)?;
        if let Some(split) = trainer.measured() {
            say(format_args!("split as measured: {split:.2?}"));
        }
    }
    run.finish(&trainer)
}
