//! The section's training function.

use anyhow::Result;
use d2l::synchronize;
use data_parallel::{DataParallel, Initializer, Trainer};
use functional::cross_entropy;
use run::{Book, Summary};

use crate::evaluate_accuracy_gpus;
use crate::options::Options;
use crate::processes::in_processes;
use crate::resnet::resnet18;
use crate::run_checkpoints::RunCheckpoints;
use crate::start::start_run;

/// What the book sets for this section: minibatch and learning rate grow with the devices.
pub const BOOK: Book = Book {
    program: "concise",
    section: "Concise Implementation for Multiple GPUs: ResNet-18 on Fashion-MNIST, data-parallel",
    network: "ResNet-18",
    batch_size: |num_gpus| 256 * num_gpus,
    lr: |num_gpus| 0.1 * num_gpus as f64,
};

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
    in_processes(options, |processes| {
        // Devices, data, timer and curve, as the options say
        let started = start_run(processes, options, &BOOK)?;
        let mut run = started.run;
        // Initialize the network on all devices
        let how = started.how;
        let world = &started.world;
        let init = Initializer::Normal(0.01);
        let net = DataParallel::with(how, world, init, options.run.seed, |vb| resnet18(10, vb))?;
        let mut trainer = Trainer::new(&net, cross_entropy, options.sgd(run.lr))
            .schedule(options.schedule(&run))
            .accumulate(options.accumulate)?
            .stop_when(run::asked_to_end())
            .depends_on(run.settings());
        // with the state of --init or --resume
        let mut checkpoints = RunCheckpoints::begin(&mut run, &net, &mut trainer, options)?;
        for epoch in checkpoints.epochs(options.run.epochs) {
            run.timer.start();
            for batch in checkpoints.minibatches(&run.train_iter, epoch) {
                let (x, y) = batch?;
                let step = trainer.step(&x, &y);
                checkpoints.step(&mut run, step, &trainer)?;
            }
            trainer.flush()?; // the step with what --accumulate has left
            synchronize(&run.devices)?;
            run.timer.stop();
            // Evaluate the model on all devices, and add the accuracy to the curve
            let test_acc = evaluate_accuracy_gpus(&net, &run.test_iter);
            checkpoints.epoch(&mut run, test_acc, &mut trainer)?;
        }
        checkpoints.finish(run, &trainer)
    })
}
