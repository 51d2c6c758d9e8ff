//! The frame of a program: one process, or each of several that `mpirun` started, with its devices.
//!
//! It finds the processes and their devices, and calls the program with a [`World`](crate::World), which takes the
//! place of a list of devices.

use std::fmt::Display;
use std::sync::Arc;

use candle_core::{Error, Result};
use devices::{Context, DeviceKind, Launched, ensure, find_devices};

use crate::place::World;
use crate::processes::Processes;
use crate::replication::Replication;

/// Runs `train` in this process with `replicas` devices; or in each process that `mpirun` started, with its part of them.
/// The result has the same bits. Where the program has the feature `mpi`, `cargo run` and
/// `mpirun -n 2 target/release/program` run the same program.
///
/// Call it first in `main`. It sets the environment variable `CANDLE_NUM_THREADS` to 1, which child processes inherit:
/// otherwise candle computes on all cores beside the replicas. A variable that is set already stays.
///
/// Of several processes an error or a panic in one ends all with status 1, and a line on stderr names the process and the
/// error.
///
/// ```
/// use data_parallel::prelude::*;
///
/// fn train(world: &World) -> Result<()> {
///     let net = DataParallel::new(world, Initializer::Layers, 0, |vb| Linear::new(2, 3, vb))?;
///     let (x, y) = (Tensor::ones((4, 2), DType::F32, &Device::Cpu)?, Tensor::zeros(4, DType::U32, &Device::Cpu)?);
///     let data = net.part(DataIter::of_tensors(&x, &y, 4, Some(0))?); // this process's part
///     let mut trainer = Trainer::new(&net, cross_entropy, AdamW::default());
///     for batch in data.epoch(1) {
///         let (x, y) = batch?;
///         trainer.step(&x, &y)?;
///     }
///     if world.is_first() {
///         println!("loss {:.3}", trainer.mean_loss()?);
///     }
///     Ok(())
/// }
///
/// fn main() -> Result<()> {
///     launch(2, train)
/// }
/// ```
///
/// # Errors
/// Those of `train`. Before it: a launcher has started several processes, and the program was built without the feature
/// `mpi`, or MPI sees another number of them; there are more processes than replicas; or a device cannot be used.
pub fn launch<E: From<Error> + Display>(
    replicas: usize,
    train: impl FnOnce(&World) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    functional::threads::leave_the_cores_to_us();
    let processes = match devices::launched() {
        Some(launched) if launched.processes > 1 || asks_mpi(launched) => {
            Processes::mpi(Replication::default().timeout)?
        }
        _ => Processes::alone(),
    };
    if processes.are_one() {
        return train(&world(processes, replicas)?);
    }
    let processes = run(processes, replicas, train);
    Ok(processes.finish()?)
}

/// True for the first process of PMIx, which does not tell how many there are. MPI does.
fn asks_mpi(launched: Launched) -> bool {
    cfg!(feature = "mpi") && launched.variable == "PMIX_RANK"
}

/// Runs `train` in one of several processes. An error ends all.
fn run<E: From<Error> + Display>(
    processes: Processes,
    replicas: usize,
    train: impl FnOnce(&World) -> std::result::Result<(), E>,
) -> Processes {
    let trained = world(processes, replicas)
        .map_err(E::from)
        .and_then(|world| {
            train(&world)?;
            // others may still write what they have trained: an error here would end them
            world
                .processes
                .gather("nothing more, at the end of the program", &[])?;
            let processes = Arc::into_inner(world.processes);
            let left = "a network of this run is still there; drop it before launch returns";
            Ok(processes.context(left)?)
        });
    match trained {
        Ok(processes) => processes,
        // the others wait for this one
        Err(error) => Processes::abort_because(1, &format!("has failed: {error:#}")),
    }
}

fn world(processes: Processes, replicas: usize) -> Result<World> {
    let process = processes.process()?;
    let count = process.of;
    ensure!(
        replicas >= count,
        "{replicas} replicas are too few for {count} processes: each needs one"
    );
    processes.agree("numbers of replicas", &replicas.to_string())?;
    let own = process.replicas(replicas).len();
    if count > 1 {
        devices::limit_cores(process.share_of_cores(replicas));
    }
    let (devices, note) = find_devices(DeviceKind::Auto, Some(own), process.first_here(replicas))?;
    let mut world = World::of(Arc::new(processes), devices);
    world.notes.extend(note);
    Ok(world)
}
