//! Checks that a step ends with a line if a replica fails in the middle of its pass, or does not come.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use concise::Replication;

use super::machine::Machine;
use super::report::Report;
use super::trainer::{Job, trainer};
use crate::bench::ours::minibatch;
use crate::bench::work::Network;

/// True where the next replica that comes to it has the fault.
static ARMED: AtomicBool = AtomicBool::new(false);

pub fn all(machine: &Machine, report: &mut Report) -> Result<()> {
    let panics: Job = || {
        let armed = ARMED.swap(false, Ordering::SeqCst);
        assert!(!armed, "on purpose");
    };
    let sleeps: Job = || {
        if ARMED.swap(false, Ordering::SeqCst) {
            sleep(Duration::from_secs(6));
        }
    };
    for (what, job, expected) in [
        ("a replica panics", panics, "on purpose"),
        ("a replica does not come in time", sleeps, "3s"),
    ] {
        let how = Replication {
            timeout: Some(Duration::from_secs(3)),
            ..Replication::default()
        };
        let replicas = machine.several();
        let (_net, mut trainer) = trainer(Network::Lenet, how, replicas, job)?;
        let (x, y) = minibatch(Network::Lenet, 16 * replicas.len())?;
        trainer.step(&x, &y)?;
        ARMED.store(true, Ordering::SeqCst);
        let start = Instant::now();
        let said = match trainer.step(&x, &y) {
            Ok(_) => "the step is taken".to_owned(),
            Err(error) => devices::without_backtrace(error).to_string(),
        };
        let seconds = start.elapsed().as_secs_f64();
        let is_right = said.contains(expected) && seconds < 10.0;
        report.check(what, &format!("{said} ({seconds:.1} s)"), is_right)?;
    }
    Ok(())
}
