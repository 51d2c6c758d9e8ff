//! The command line that both programs share.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::ValueHint;
use clap::builder::{PathBufValueParser, PossibleValuesParser, TypedValueParser};
use dataset::{Data, Name};

use crate::DeviceKind;

/// More replicas or threads than this are a slip of the keyboard.
const MANY: usize = 1024;

/// What the book sets for a section: it depends on the number of devices.
#[derive(Debug, Clone, Copy)]
pub struct Book {
    /// The name of the section's program.
    pub program: &'static str,
    /// What the program does, in a line.
    pub section: &'static str,
    /// The network's name, as it is printed.
    pub network: &'static str,
    /// The minibatch over all devices for k devices.
    pub batch_size: fn(usize) -> usize,
    /// The learning rate for k devices.
    pub lr: fn(usize) -> f64,
}

/// How exactly GPUs multiply, and what they keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Precision {
    /// f32 throughout.
    F32,
    /// Inputs rounded to 10 bits, sums in f32: PyTorch's default.
    #[default]
    Tf32,
    /// Activations and their gradients kept with 7 bits, and convolutions of such numbers; parameters in f32.
    Bf16,
}

impl From<Precision> for functional::Precision {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::F32 => Self::F32,
            Precision::Tf32 => Self::Tf32,
            Precision::Bf16 => Self::Bf16,
        }
    }
}

// The groups of `--help`, in the order in which they are first used.
const TRAINING: &str = "Training";
const DATA: &str = "Data";
const RECORD: &str = "Record";
const DEVICES: &str = "Devices";

/// The datasets' names, so that a shell can complete them.
fn names() -> impl TypedValueParser<Value = Name> {
    PossibleValuesParser::new(["fashion-mnist", "mnist"]).try_map(|name| name.parse())
}

/// A folder or a word, and not nothing.
fn source() -> impl TypedValueParser<Value = Data> {
    PathBufValueParser::new().map(|says| Data::from(&says))
}

/// The options of a run; what is left out is as in the book.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Replicas of the network [default: one for each GPU, or 1]
    ///
    /// With as many GPUs or more, each has one of its own; with fewer they share them in turn;
    /// with none they are replicas on the CPU, each with its share of the cores.
    #[arg(long, value_name = "K", help_heading = TRAINING)]
    pub gpus: Option<usize>,

    /// Examples in a minibatch, over all replicas together
    #[arg(long, value_name = "N", help_heading = TRAINING)]
    pub batch_size: Option<usize>,

    /// Learning rate
    #[arg(long, allow_negative_numbers = true, help_heading = TRAINING)]
    pub lr: Option<f64>,

    /// Passes over the training set
    #[arg(long, default_value_t = 10, value_name = "N", help_heading = TRAINING)]
    pub epochs: usize,

    /// Which images
    #[arg(long, default_value_t = Name::FashionMnist, value_name = "NAME", value_parser = names(), help_heading = DATA)]
    pub dataset: Name,

    /// A folder with the four IDX files (.gz or raw), or "synthetic"
    ///
    /// Without it: the folder in FASHION_MNIST_DIR (MNIST_DIR), else an earlier download, else
    /// a download from the Hugging Face Hub, else, where that cannot be reached, a synthetic set.
    #[arg(long, value_name = "DIR|synthetic", value_parser = source(), value_hint = ValueHint::DirPath, help_heading = DATA)]
    pub data: Option<Data>,

    /// Seed of the initial parameters, the order of the data and the synthetic set
    #[arg(long, default_value_t = 0, value_name = "N", help_heading = TRAINING)]
    pub seed: u64,

    /// Use only the first N training examples
    #[arg(long, value_name = "N", help_heading = DATA)]
    pub limit_train: Option<usize>,

    /// Use only the first N test examples
    #[arg(long, value_name = "N", help_heading = DATA)]
    pub limit_test: Option<usize>,

    /// Keep the training examples in the file's order
    #[arg(long, help_heading = DATA)]
    pub no_shuffle: bool,

    /// Start from the parameters in a safetensors file (PyTorch's names and layouts)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = TRAINING)]
    pub init: Option<PathBuf>,

    /// Leave steps.csv, epochs.csv, loss.svg, accuracy.svg, model.safetensors and checkpoints in a folder
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = RECORD)]
    pub out: Option<PathBuf>,

    /// Go on with the run that --out left in a folder, from its last checkpoint, with the same options
    ///
    /// The end of the run is to the bit that of a run which was never interrupted. Options may be given again if
    /// they are the same; what the result does not depend on may differ, such as --threads and where --data lies. A
    /// run that went to its end is left as it is.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = RECORD)]
    pub resume: Option<PathBuf>,

    /// With --out, keep a checkpoint every N minibatches as well, not only after every epoch
    #[arg(long, value_name = "N", help_heading = RECORD)]
    pub checkpoint_every: Option<usize>,

    /// Leave a Chrome trace of the first steps in a file, for Perfetto (ui.perfetto.dev), and a picture of one
    /// step beside it, in FILE with .svg
    ///
    /// The first 50 steps, and an evaluation that falls among them: when each replica split, went forward and
    /// backward, reduced and updated. Of a GPU it shows what the host does, not when the GPU has done it.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = RECORD)]
    pub trace: Option<PathBuf>,

    /// Let --out and --trace replace what an earlier run has left
    #[arg(long, help_heading = RECORD)]
    pub overwrite: bool,

    /// Where the replicas live
    #[arg(long, value_enum, default_value_t = DeviceKind::Auto, value_name = "KIND", help_heading = DEVICES)]
    pub device: DeviceKind,

    /// Arithmetic of convolutions on GPUs, and with bf16 what lies between operations; matrix products and the
    /// CPU always use f32
    #[arg(long, value_enum, default_value_t = Precision::Tf32, value_name = "P", help_heading = DEVICES)]
    pub precision: Precision,

    /// Compare the parameters of all replicas after every step, not only after every epoch
    #[arg(long, help_heading = DEVICES)]
    pub check_replicas: bool,

    /// On GPUs, use only algorithms that give the same bits every time
    #[arg(long, help_heading = DEVICES)]
    pub deterministic: bool,

    /// Give a GPU the whole step in one call, as a CUDA graph: scratch with one replica
    ///
    /// The result is the same. A small network's step takes the host longer than the GPU; recorded once, it costs
    /// one call. It takes memory of its own, and a trace shows no parts of it.
    #[arg(long, help_heading = DEVICES)]
    pub cuda_graph: bool,

    /// Cores that the run may use, in each of its processes [default: all]
    #[arg(long, value_name = "N", help_heading = DEVICES)]
    pub threads: Option<usize>,

    /// The command line, which a checkpoint keeps for --resume.
    #[arg(skip)]
    pub arguments: Vec<String>,
}

impl Default for Options {
    /// The book's run.
    fn default() -> Self {
        Self {
            gpus: None,
            batch_size: None,
            lr: None,
            epochs: 10,
            dataset: Name::FashionMnist,
            data: None,
            seed: 0,
            limit_train: None,
            limit_test: None,
            no_shuffle: false,
            init: None,
            out: None,
            resume: None,
            checkpoint_every: None,
            trace: None,
            overwrite: false,
            device: DeviceKind::Auto,
            check_replicas: false,
            precision: Precision::Tf32,
            deterministic: false,
            cuda_graph: false,
            threads: None,
            arguments: Vec::new(),
        }
    }
}

impl AsMut<Options> for Options {
    fn as_mut(&mut self) -> &mut Options {
        self
    }
}

impl AsRef<Options> for Options {
    fn as_ref(&self) -> &Options {
        self
    }
}

impl Options {
    /// What can be said without looking at devices or data.
    pub(crate) fn check(&self) -> Result<()> {
        let counts = [
            ("--gpus", self.gpus),
            ("--batch-size", self.batch_size),
            ("--epochs", Some(self.epochs)),
            ("--limit-train", self.limit_train),
            ("--limit-test", self.limit_test),
            ("--threads", self.threads),
            ("--checkpoint-every", self.checkpoint_every),
        ];
        for (option, count) in counts {
            ensure!(count != Some(0), "{option} 0: at least 1 is needed");
        }
        for (option, count) in [("--gpus", self.gpus), ("--threads", self.threads)] {
            let count = count.unwrap_or(1);
            ensure!(
                count <= MANY,
                "{option} {count}: at most {MANY} are possible"
            );
        }
        let replaces = self.trace.is_some() || (self.out.is_some() && self.resume.is_none());
        ensure!(
            !self.overwrite || replaces,
            "--overwrite: there is nothing to replace without --trace, or --out for a new run"
        );
        if let (Some(out), Some(resume)) = (&self.out, &self.resume) {
            ensure!(
                is_same_folder(out, resume),
                "--out {}: --resume {} goes on in that folder",
                out.display(),
                resume.display()
            );
        }
        ensure!(
            self.checkpoint_every.is_none() || self.out.is_some() || self.resume.is_some(),
            "--checkpoint-every: checkpoints are kept in the folder of --out"
        );
        ensure!(
            self.precision != Precision::Bf16 || self.device != DeviceKind::Cpu,
            "--precision bf16: the CPU computes in f32; leave it out, or --device cpu"
        );
        ensure!(
            !self.cuda_graph || self.device != DeviceKind::Cpu,
            "--cuda-graph: the CPU has none; leave it out, or --device cpu"
        );
        if let Some(lr) = self.lr {
            ensure!(
                lr.is_finite() && lr >= 0.0,
                "--lr {lr}: a learning rate is a finite number, not below 0"
            );
        }
        Ok(())
    }

    pub(crate) fn dataset(&self) -> dataset::Options {
        dataset::Options {
            name: self.dataset,
            data: self.data.clone(),
            seed: self.seed,
            shuffle: !self.no_shuffle,
            limit_train: self.limit_train,
            limit_test: self.limit_test,
            threads: self.threads,
        }
    }
}

fn is_same_folder(a: &Path, b: &Path) -> bool {
    let folders = a.canonicalize().ok().zip(b.canonicalize().ok());
    a == b || folders.is_some_and(|(a, b)| a == b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, Command, FromArgMatches};

    #[test]
    fn the_default_is_the_empty_command_line() {
        let command = Options::augment_args(Command::new("program"));
        let matches = command.get_matches_from(["program"]);
        let parsed = Options::from_arg_matches(&matches).unwrap();
        assert_eq!(format!("{parsed:?}"), format!("{:?}", Options::default()));
    }
}
