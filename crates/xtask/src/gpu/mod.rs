//! `gpu-check`: whether training is right on the GPUs of a machine, and how long a step takes there. Each part adds a
//! table to one report, a file to send. `.ci/gpu.md` says what the parts show.

mod compare;
mod copies;
mod facts;
mod faults;
mod machine;
mod options;
mod report;
mod right;
mod same_bits;
mod speed;
mod sums;
mod trainer;

use anyhow::Result;
use clap::ValueEnum;
use functional::Precision;

use machine::Machine;
pub use options::GpuOptions;
use options::Part;
use report::Report;

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
