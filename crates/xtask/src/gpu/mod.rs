//! `gpu-check`: whether training is right on the GPUs of a machine, and how long a step takes there. Each part adds a
//! table to one report, a file to send. `.ci/gpu.md` says what the parts show.

mod compare;
mod copies;
mod facts;
mod faults;
pub mod ours;
mod report;
mod right;
mod same_bits;
mod speed;
mod sums;
mod trainer;

use std::path::PathBuf;

use anyhow::Result;
use candle_core::Device;
use clap::{Args, ValueEnum};
use devices::{DeviceKind, devices_of_kind, find_devices};
use functional::Precision;

use report::Report;

/// Options of `gpu-check`.
#[derive(Args, Debug)]
pub struct GpuOptions {
    /// Run only this part (repeatable)
    #[arg(long, value_name = "PART")]
    only: Vec<Part>,

    /// Compare steps with PyTorch, by this Python
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,

    /// Compare steps with another build of this program (repeatable)
    #[arg(long, value_name = "PATH")]
    with: Vec<PathBuf>,

    /// Examples of a minibatch in the parts same-bits and speed
    #[arg(long, value_name = "N", default_value_t = 256)]
    batch: usize,

    /// The report
    #[arg(long, value_name = "FILE", default_value = "target/gpu-check.md")]
    out: PathBuf,
}

/// A part of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Programs, GPUs, links, libraries
    Facts,
    /// Copies between each pair of GPUs
    Copies,
    /// All-reduce by each algorithm, compared with the CPU
    Sums,
    /// Replicas on several GPUs, compared with replicas on one
    SameBits,
    /// Steps of each number of replicas, compared with the CPU
    Right,
    /// Replicas that fail, and replicas that do not come
    Faults,
    /// Milliseconds a step of each number of replicas
    Speed,
    /// Steps in turns with those of --python and --with
    Compare,
}

/// The GPUs of this machine.
struct Machine {
    /// Devices of replicas: one for each GPU, then again from GPU 0 on if there are less than three. They are opened once,
    /// because each has its libraries and keeps its memory.
    devices: Vec<Device>,
    gpus: usize,
}

impl Machine {
    /// # Errors
    /// If there is no GPU.
    fn open(report: &mut Report) -> Result<Self> {
        let (gpus, note) = find_devices(DeviceKind::Cuda, None, None)?;
        if let Some(note) = note {
            report.check("GPUs", &note, false)?;
        }
        let gpus = gpus.len();
        let devices = devices_of_kind(DeviceKind::Cuda, Some(gpus.max(3)))?;
        Ok(Self { devices, gpus })
    }

    /// A device for each GPU.
    fn gpus(&self) -> &[Device] {
        self.replicas(self.gpus)
    }

    /// Devices of k replicas.
    fn replicas(&self, k: usize) -> &[Device] {
        &self.devices[..k]
    }

    /// Two replicas, or one for each GPU if there are more.
    fn several(&self) -> &[Device] {
        self.replicas(self.gpus.max(2))
    }
}

/// Checks, prints the report and writes it.
///
/// # Errors
/// If there is no GPU, or something is not right.
pub fn check(options: &GpuOptions) -> Result<()> {
    let mut report = Report::new(&options.out)?;
    report.begin(Part::Facts)?;
    let machine = Machine::open(&mut report)?;
    facts::all(&machine, &mut report)?;
    for part in &Part::value_variants()[1..] {
        let is_wanted = match part {
            Part::Compare => options.python.is_some() || !options.with.is_empty(),
            _ => options.only.is_empty(),
        };
        if !is_wanted && !options.only.contains(part) {
            continue;
        }
        report.begin(*part)?;
        let done = match part {
            Part::Facts => Ok(()), // they were the first
            Part::Copies => copies::all(&machine, &mut report),
            Part::Sums => sums::all(&machine, &mut report),
            Part::SameBits => same_bits::all(&machine, options.batch, &mut report),
            Part::Right => right::all(&machine, &mut report),
            Part::Faults => faults::all(&machine, &mut report),
            Part::Speed => speed::all(&machine, options.batch, &mut report),
            Part::Compare => compare::all(options, &mut report),
        };
        functional::set_precision(Precision::default());
        functional::set_deterministic(false);
        if let Err(error) = done {
            report.check("it ends with an error", &format!("{error:#}"), false)?;
        }
    }
    facts::libraries(&mut report)?; // those that were loaded until now
    report.end(machine.gpus)
}
