//! The work before there is a network: devices, data, and processes that agree on the run.

use std::sync::Arc;

use anyhow::Result;
use data_parallel::{Processes, Replication, World};
use run::{Book, Run};

use crate::options::Options;

/// A run before its network is built.
pub(crate) struct Started {
    pub run: Run,
    /// The devices and processes of its replicas.
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
    let mut run = Run::start_in(processes.process()?, &options.run_options(), book)?;
    run.train_iter = run.train_iter.in_groups_of(options.accumulate)?;
    let world = World::of(processes, run.devices.clone());
    let how = options.replication(&world)?;
    let settings = format!(
        "{}\n{}\n{how:?}\n{}",
        run.settings(),
        options.schedule_settings(&run),
        options.keeping()
    );
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
