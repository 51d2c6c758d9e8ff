//! The section's training function.

use std::io::Write;
use std::sync::Arc;

use anyhow::{Context, Result};
use candle_core::Tensor;
use candle_nn::VarBuilder;
use d2l::synchronize;
use data_parallel::{DataParallel, Error, Initializer, Processes, Trainer, World};
use functional::cross_entropy;
use run::{BadInput, Book, Run, Summary, TrainState, say};

use crate::evaluate_accuracy_gpus;
use crate::options::Options;
use crate::resnet::resnet18;

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
    let (alone, rank) = (processes.are_one(), processes.rank());
    let ended = result.and_then(|summary| {
        processes.finish()?;
        Ok(summary)
    });
    match ended {
        Err(error) if !alone => {
            // The others wait for this one. The line is one write: mpirun prints lines of its own between two.
            let line = format!("error: process {rank}: {error:#}\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            Processes::abort(if error.is::<BadInput>() { 2 } else { 1 })
        }
        ended => ended,
    }
}

/// As [`train`], in each of several processes.
fn train_among(processes: &Arc<Processes>, options: &Options) -> Result<Summary> {
    // Devices, data, timer and curve, as the options say; the network on all devices
    let (mut run, net, mut trainer) = start(processes, options).map_err(|error| {
        if disagree(&error) {
            BadInput::from(error).into()
        } else {
            error
        }
    })?;
    let devices = run.devices.clone();
    run.stop_when(trainer.stopping());
    trainer.load_state_dict(run.take_extra_state())?; // that of --resume
    for epoch in run.epochs() {
        run.timer.start();
        for batch in run.train_iter.epoch(epoch) {
            let (x, y) = batch?;
            let step = trainer.step(&x, &y)?;
            run.step(step.loss, &State(&net, &trainer))?;
        }
        trainer.flush()?; // the step with what --accumulate has left
        synchronize(&devices)?;
        run.timer.stop();
        // Evaluate the model on all devices, and add the accuracy to the curve
        let test_acc = run.unless_ended(evaluate_accuracy_gpus(&net, &run.test_iter))?;
        run.epoch(test_acc, &State(&net, &trainer))?;
    }
    run.finish(&State(&net, &trainer))
}

/// Says what to do where one process reads images and another one draws them.
fn where_images_come_from(error: candle_core::Error, run: &Run) -> candle_core::Error {
    if !error.to_string().contains("\"images ") {
        return error;
    }
    let variable = run.data_variable();
    error.context(format!(
        "each process needs the same images: give --data, or {variable} in every process (mpirun -x {variable})"
    ))
}

/// Whether the error is that processes have different settings or parameters.
fn disagree(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<candle_core::Error>();
    error.is_some_and(Error::is_disagreement)
}

/// The run, its network and its trainer, once all processes have the same settings and parameters.
fn start(processes: &Arc<Processes>, options: &Options) -> Result<(Run, DataParallel, Trainer)> {
    let mut run = Run::start_in(processes.process()?, &options.run, &BOOK)?;
    run.train_iter = run.train_iter.in_groups_of(options.accumulate)?;
    let how = options.replication(processes, &run.devices)?;
    run.depends_on(&options.schedule_settings(&run));
    let settings = format!("{}\n{how:?}\n{}", run.settings(), run.keeping());
    processes
        .agree("settings", &settings)
        .map_err(|error| where_images_come_from(error, &run))?;
    // Initialize the network on all devices
    let model = |vb: VarBuilder<'_>| resnet18(10, vb);
    let world = World::of(processes.clone(), run.devices.clone());
    let net = DataParallel::with(how, &world, INIT, options.run.seed, model)?;
    let lines = net.warnings().iter().cloned().chain(net.all_reduce()?);
    lines.for_each(|line| say(format_args!("{line}")));
    if let Some(weights) = &options.split {
        let split = net.set_split(weights).context("--split");
        split.map_err(BadInput::from)?;
        if !processes.are_one() {
            run.train_iter = run.train_iter.split_by(weights)?;
        }
    }
    let trainer = Trainer::new(&net, cross_entropy, options.sgd(run.lr))
        .schedule(options.schedule(&run))
        .check_losses(false) // the run does
        .stop_when(run::asked_to_end())
        .accumulate(options.accumulate)?;
    run.depends_on(&net.settings());
    run.depends_on(&trainer.settings());
    // The parameters of --init or --resume, if it is given
    let own = net.state_dict()?;
    let names = own.iter().map(|(name, _)| name.clone());
    let state = names.zip(run.init(own.clone())?);
    net.load_state_dict(&state.collect::<Vec<_>>())?;
    Ok((run, net, trainer))
}

/// What a run keeps in checkpoints, and compares.
struct State<'a>(&'a DataParallel, &'a Trainer);

impl TrainState for State<'_> {
    fn tensors(&self) -> Result<Vec<Tensor>> {
        let state = self.0.state_dict()?;
        Ok(state.into_iter().map(|(_, tensor)| tensor).collect())
    }

    fn extra_state(&self) -> Result<Vec<(String, Tensor)>> {
        Ok(self.1.state_dict()?)
    }

    fn is_between_steps(&self) -> bool {
        self.1.is_between_steps()
    }

    fn check_replicas(&self, _: &[String]) -> Result<()> {
        Ok(self.0.check_replicas()?)
    }
}
