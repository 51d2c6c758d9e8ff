//! What comes before the first step: the processes agree on the run, and it takes up the state of an earlier one.

use std::sync::Arc;

use anyhow::{Context, Result};
use data_parallel::{DataParallel, Processes, Replication, Trainer, World};
use run::{BadInput, Book, Run, say};

use crate::options::Options;

/// A run before its network is built.
pub(crate) struct Started {
    pub run: Run,
    /// Where its replicas are.
    pub world: World,
    /// How they work together.
    pub how: Replication,
}

/// Makes the run of this process. All processes have the same settings.
pub(crate) fn start_run(
    processes: Arc<Processes>,
    options: &Options,
    book: &Book,
) -> Result<Started> {
    let mut run = Run::start_in(processes.process()?, &options.run, book)?;
    run.train_iter = run.train_iter.in_groups_of(options.accumulate)?;
    let world = World::of(processes, run.devices.clone());
    run.depends_on(&options.schedule_settings(&run));
    let how = options.replication(&world)?;
    let settings = format!("{}\n{how:?}\n{}", run.settings(), run.keeping());
    let agreed = world.processes().agree("settings", &settings);
    agreed.map_err(|error| with_advice_on_images(error, &run))?;
    Ok(Started { run, world, how })
}

/// Says what to do where one process reads images and another one draws them.
fn with_advice_on_images(error: candle_core::Error, run: &Run) -> candle_core::Error {
    if !error.to_string().contains("\"images ") {
        return error;
    }
    let variable = run.data_variable();
    error.context(format!(
        "each process needs the same images: give --data, or {variable} in every process (mpirun -x {variable})"
    ))
}

/// Prints what there is to know of the network, sets the shares of --split, and adds the settings of the network and the
/// trainer to the run's. Then the run begins: with the parameters of --init, or with the state of --resume.
pub(crate) fn init_run(
    run: &mut Run,
    net: &DataParallel,
    trainer: &mut Trainer,
    options: &Options,
) -> Result<()> {
    let lines = net.warnings().iter().cloned().chain(net.all_reduce()?);
    lines.for_each(|line| say(format_args!("{line}")));
    if let Some(weights) = &options.split {
        let split = net.set_split(weights).context("--split");
        split.map_err(BadInput::from)?;
        if run.train_iter.is_part() {
            run.train_iter = run.train_iter.clone().split_by(weights)?;
        }
    }
    run.depends_on(&net.settings());
    run.depends_on(&trainer.settings());
    let own = net.state_dict()?;
    let names: Vec<String> = own.iter().map(|(name, _)| name.clone()).collect();
    let state: Vec<_> = names.into_iter().zip(run.init(own)?).collect();
    net.load_state_dict(&state)?;
    run.stop_when(trainer.stopping());
    Ok(trainer.load_state_dict(run.take_extra_state())?)
}
