//! `bench allreduce`: the all-reduces of `collective` compared with `x += 1` and with Open MPI's, and how much of
//! their time overlap hides in a training step.

pub mod measure;
mod overlap;
mod peer;
mod report;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;

use super::machine::{Load, Watch};
use super::{all_cores, chart, write};
use measure::{LENET, Measured, OWNER, RESNET18, Replicas, TURNS};
use overlap::Overlap;
use peer::{Beside, Peer};

/// What `bench allreduce` can be told.
#[derive(Args, Debug)]
pub struct Options {
    /// Number of rounds for training steps and Open MPI [default: 5, with --quick 1]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,

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
        self.rounds.unwrap_or(if self.quick { 1 } else { 5 })
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

/// Everything that was measured.
struct Results {
    cores: usize,
    before: Load,
    /// The most cores at other work.
    other: Option<f64>,
    all: Vec<Measured>,
    peers: Vec<(Peer, Vec<Beside>)>,
    overlap: Overlap,
}

/// Measures, prints the report and writes it.
///
/// # Errors
/// If a sum is wrong, a step or a peer fails, or the report cannot be written.
pub fn allreduce(options: &Options) -> Result<()> {
    let cores = all_cores();
    ensure!(cores >= 2, "an all-reduce is among 2 cores at least");
    ensure!(
        options.rounds != Some(0),
        "--rounds 0: at least 1 is needed"
    );
    let before = Load::now();
    before.warn();
    let results = measure(options, cores, before)?;
    let markdown = results.markdown();
    println!("\n{markdown}");
    write(&options.out, "allreduce.md", &markdown)?;
    let panels = tables(cores).into_iter();
    let panels: Vec<_> = panels.map(|k| (k, results.of(k).collect())).collect();
    let picture = chart::lines(cores, &panels)?;
    write(&options.out, "allreduce.svg", &picture)
}

fn measure(options: &Options, cores: usize, before: Load) -> Result<Results> {
    let peers = peers(cores, options)?; // first: they are the likeliest to fail
    let (mut all, mut others) = (Vec::new(), Vec::new());
    for k in tables(cores) {
        let watch = Watch::start(std::process::id());
        all.extend(at(k, &options.sizes(), options)?);
        let spent = watch.stop();
        others.extend(spent.other.map(|other| other / spent.seconds));
    }
    let overlap = overlap::measure(if options.quick { 16 } else { 64 }, options.rounds())?;
    Ok(Results {
        cores,
        before,
        other: others.into_iter().reduce(f64::max),
        all,
        peers,
        overlap,
    })
}

/// The peers that are there, each in turns with ours.
fn peers(k: usize, options: &Options) -> Result<Vec<(Peer, Vec<Beside>)>> {
    let mut replicas = Replicas::new(k);
    let mut all = Vec::new();
    for peer in peer::all(&options.python) {
        let beside = |len| {
            let calls = options.calls(len).min(100);
            peer.beside(&mut replicas, k, (len, calls), options.rounds())
        };
        let pairs = [LENET, RESNET18].into_iter().map(beside);
        let pairs = pairs.collect::<Result<_>>()?;
        all.push((peer, pairs));
    }
    Ok(all)
}

/// The numbers of threads that have a table: as many as cores, two, and twice as many as cores.
fn tables(cores: usize) -> Vec<usize> {
    let mut ks = vec![cores, 2, 2 * cores];
    ks.dedup();
    ks
}

/// All turns of `k` threads, size after size.
fn at(k: usize, sizes: &[usize], options: &Options) -> Result<Vec<Measured>> {
    let mut replicas = Replicas::new(k);
    let one = |&len| {
        let measured = replicas.measure(len, options.calls(len), &TURNS)?;
        let micros = measured.micros(OWNER).median;
        eprintln!("k = {k}, {} bytes: owner {micros:.1} µs", measured.bytes());
        Ok(measured)
    };
    sizes.iter().map(one).collect()
}

fn find(all: &[Measured], k: usize, len: usize) -> Option<&Measured> {
    all.iter().find(|m| (m.k, m.len) == (k, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_table_comes_twice() {
        assert_eq!(tables(2), [2, 4]);
        assert_eq!(tables(4), [4, 2, 8]);
    }
}
