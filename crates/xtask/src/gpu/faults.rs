//! Whether a step ends with a line where a replica fails, and where one does not come.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use candle_core::Device;
use concise::{DataParallel, Initializer, Replication, Sgd, Trainer};
use data_parallel::layers::Sequential;
use functional::Value;

use super::Machine;
use super::report::Report;
use crate::bench::networks::layers;
use crate::bench::ours::minibatch;
use crate::bench::work::Network;

/// True where the next pass of a replica has the fault.
static ARMED: AtomicBool = AtomicBool::new(false);

/// What that replica does.
type Fault = fn();

pub fn all(machine: &Machine, report: &mut Report) -> Result<()> {
    let replicas = machine.several()?;
    let panics = || panic!("on purpose");
    fault(&replicas, "a replica panics", panics, "on purpose", report)?;
    let sleeps = || sleep(Duration::from_secs(6));
    fault(
        &replicas,
        "a replica does not come in time",
        sleeps,
        "3s",
        report,
    )
}

fn fault(
    replicas: &[Device],
    what: &str,
    fault: Fault,
    expected: &'static str,
    report: &mut Report,
) -> Result<()> {
    let how = Replication {
        timeout: Some(Duration::from_secs(3)),
        ..Replication::default()
    };
    let k = replicas.len();
    let net = DataParallel::with(how, replicas, Initializer::Layers, 0, move |vb| {
        let faulty = move |x: &Value, _train: bool| {
            if ARMED.swap(false, Ordering::SeqCst) {
                fault();
            }
            Ok(x.clone())
        };
        Ok(Sequential::new()
            .add(faulty)
            .add(layers(Network::Lenet, vb)?))
    })?;
    let mut trainer =
        Trainer::new(&net, Network::Lenet.loss(), Sgd::new(0.01)).check_gradients(false);
    let (x, y) = minibatch(Network::Lenet, 16 * k)?;
    trainer.step(&x, &y)?;
    ARMED.store(true, Ordering::SeqCst);
    let start = Instant::now();
    let said = match trainer.step(&x, &y) {
        Ok(_) => "the step is taken".to_owned(),
        Err(error) => devices::without_backtrace(error).to_string(),
    };
    let seconds = start.elapsed().as_secs_f64();
    let is_right = said.contains(expected) && seconds < 10.0;
    report.check(what, &format!("{said} ({seconds:.1} s)"), is_right)
}
