//! `bench allreduce`: the all-reduces of `collective` compared with `x += 1` and with Open MPI's, and how much of
//! their time overlap hides in a training step.

mod chart;
pub mod measure;
mod open_mpi;
mod overlap;
pub mod report;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;

use super::machine::Watch;
use super::options::{all_cores, write};
use measure::{LENET, RESNET18, TURNS};
use open_mpi::OpenMpi;
use report::Table;

/// What `bench allreduce` can be told.
#[derive(Args, Debug)]
pub struct Options {
    /// Number of rounds for training steps and Open MPI [default: 5, with --quick 1]
    #[arg(long, value_name = "N")]
    rounds: Option<NonZeroUsize>,

    /// Short run of a few minutes; do not quote its figures
    #[arg(long)]
    quick: bool,

    /// Python with mpi4py and numpy; without them, Open MPI is not measured
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: PathBuf,

    /// Folder for allreduce.md and allreduce.svg
    #[arg(long, value_name = "DIR", default_value = "benches/results")]
    out: PathBuf,
}

const SIZES: [usize; 11] = [
    1000 / 4,
    4000 / 4,
    16_000 / 4,
    64_000 / 4,
    256_000 / 4,
    LENET,
    1_000_000 / 4,
    4_000_000 / 4,
    16_000_000 / 4,
    RESNET18,
    128_000_000 / 4,
];

impl Options {
    fn rounds(&self) -> usize {
        let default = if self.quick { 1 } else { 5 };
        self.rounds.map_or(default, NonZeroUsize::get)
    }

    /// The elements of the buffers.
    fn sizes(&self) -> Vec<usize> {
        match self.quick {
            true => vec![SIZES[0], LENET, RESNET18],
            false => SIZES.into(),
        }
    }

    /// How often an all-reduce of so many elements is called: fewer times where it takes long.
    fn calls(&self, len: usize) -> usize {
        let (bytes, least, most) = match self.quick {
            true => (100_000_000, 3, 100),
            false => (4_000_000_000, 31, 1000),
        };
        (bytes / (len * size_of::<f32>())).clamp(least, most)
    }
}

/// Measures, prints the report and writes it.
///
/// # Errors
/// If a step or Open MPI fails, or the report cannot be written.
pub fn allreduce(options: &Options) -> Result<()> {
    let cores = all_cores();
    ensure!(cores >= 2, "an all-reduce is among 2 cores at least");
    let open_mpi = open_mpi(cores, options)?; // first: it is the likeliest to fail
    let (mut tables, mut other) = (Vec::new(), f64::NAN);
    for k in threads(cores) {
        let watch = Watch::start(std::process::id());
        tables.push(table(k, options)?);
        other = watch.stop().other_cores().max(other);
    }
    let batch = if options.quick { 16 } else { 64 };
    let overlap = overlap::measure(batch, options.rounds())?;
    let markdown = report::markdown(cores, other, &tables, [open_mpi, overlap]);
    println!("\n{markdown}");
    write(&options.out, "allreduce.md", &markdown)?;
    let picture = chart::lines(cores, &tables)?;
    write(&options.out, "allreduce.svg", &picture)
}

/// The section of Open MPI.
fn open_mpi(cores: usize, options: &Options) -> Result<String> {
    let Some(open_mpi) = OpenMpi::find(&options.python) else {
        let text = "\n## Open MPI\n\nNot measured: it needs `mpirun`, and a Python with mpi4py and numpy \
                    (`--python`).\n";
        return Ok(text.to_owned());
    };
    let lens = [LENET, RESNET18].map(|len| (len, options.calls(len).min(100)));
    open_mpi.markdown(cores, &lens, options.rounds())
}

/// The numbers of threads that have a table: as many as cores, two, and twice as many as cores.
fn threads(cores: usize) -> Vec<usize> {
    let mut ks = vec![cores, 2, 2 * cores];
    ks.dedup();
    ks
}

/// All turns of `k` threads, size after size.
fn table(k: usize, options: &Options) -> Result<Table> {
    let mut rows = Vec::new();
    for len in options.sizes() {
        let micros = measure::measure(k, len, options.calls(len), &TURNS)?;
        eprintln!("k = {k}, {}: measured", report::size(len));
        rows.push((len, micros));
    }
    Ok(Table { k, rows })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_table_comes_twice() {
        assert_eq!(threads(2), [2, 4]);
        assert_eq!(threads(4), [4, 2, 8]);
    }
}
