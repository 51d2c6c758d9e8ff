//! The command line that both programs share.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::builder::{PathBufValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Args, FromArgMatches, Parser};
use dataset::{Data, Name};
use devices::DeviceKind;
use functional::Precision;

use crate::interrupt::ends;

/// More replicas or threads than this are a slip of the keyboard.
const MANY: usize = 1024;

/// Settings of the book for a section: they depend on the number of devices.
#[derive(Debug, Clone, Copy)]
pub struct Book {
    /// The name of the section's program.
    pub program: &'static str,
    /// Says in a line what the program does.
    pub section: &'static str,
    /// The network's name, as it is printed.
    pub network: &'static str,
    /// The minibatch over all devices for k devices.
    pub batch_size: fn(usize) -> usize,
    /// The learning rate for k devices.
    pub lr: fn(usize) -> f64,
}

// The groups of `--help`, in the order in which they are first used.
const TRAINING: &str = "Training";
const DATA: &str = "Data";
const RECORD: &str = "Record";
const DEVICES: &str = "Devices";

/// Reads `f32`, `tf32` or `bf16` from a command line.
pub fn precision() -> impl TypedValueParser<Value = Precision> {
    PossibleValuesParser::new(["f32", "tf32", "bf16"]).map(|name| match &*name {
        "f32" => Precision::F32,
        "tf32" => Precision::Tf32,
        _ => Precision::Bf16,
    })
}

/// A folder or a word, and not nothing.
fn source() -> impl TypedValueParser<Value = Data> {
    PathBufValueParser::new().map(|says| Data::from(&says))
}

/// The options of a run; what is left out is as in the book.
#[derive(Debug, Clone, Parser)]
pub struct Options {
    /// Number of replicas [default: one for each GPU, or 1 without a GPU]
    ///
    /// With K or more GPUs, each replica has its own GPU. With fewer, replicas share GPUs in turn.
    /// Without a GPU, all replicas run on the CPU, each with its share of the cores.
    /// Several processes share the K replicas; without this option each has one.
    #[arg(long, value_name = "K", help_heading = TRAINING)]
    pub gpus: Option<usize>,

    /// Minibatch size: examples in a step, over all replicas
    #[arg(long, value_name = "N", help_heading = TRAINING)]
    pub batch_size: Option<usize>,

    /// Learning rate
    #[arg(long, allow_negative_numbers = true, help_heading = TRAINING)]
    pub lr: Option<f64>,

    /// Number of epochs: passes over the training set
    #[arg(long, default_value_t = 10, value_name = "N", help_heading = TRAINING)]
    pub epochs: usize,

    /// Dataset to train on: fashion-mnist or mnist
    #[arg(long, default_value_t = Name::FashionMnist, value_name = "NAME", help_heading = DATA)]
    pub dataset: Name,

    /// Folder with the four IDX files (.gz or raw), or "synthetic" for generated images
    ///
    /// Without --data, the first of these: the folder in FASHION_MNIST_DIR (mnist: MNIST_DIR), the
    /// Debian package dataset-fashion-mnist, an earlier download, a download from the Hugging Face
    /// Hub. If the Hub cannot be reached, the images are synthetic.
    #[arg(long, value_name = "DIR|synthetic", value_parser = source(), help_heading = DATA)]
    pub data: Option<Data>,

    /// Random seed of the initial parameters, the data order and the synthetic images
    #[arg(long, default_value_t = 0, value_name = "N", help_heading = TRAINING)]
    pub seed: u64,

    /// Use only the first N training examples
    #[arg(long, value_name = "N", help_heading = DATA)]
    pub limit_train: Option<usize>,

    /// Use only the first N test examples
    #[arg(long, value_name = "N", help_heading = DATA)]
    pub limit_test: Option<usize>,

    /// Do not shuffle: keep the training examples in file order
    #[arg(long, help_heading = DATA)]
    pub no_shuffle: bool,

    /// Start from the parameters in a safetensors file, such as an earlier run's model.safetensors
    ///
    /// Only the parameters: momentum begins at 0, and the examples come in the order of epoch 1 again, unless
    /// you give another --seed.
    #[arg(long, value_name = "FILE", help_heading = TRAINING)]
    pub init: Option<PathBuf>,

    /// Folder for steps.csv, epochs.csv, loss.svg, accuracy.svg and model.safetensors
    #[arg(long, value_name = "DIR", help_heading = RECORD)]
    pub out: Option<PathBuf>,

    /// Write a Chrome trace of the first steps, and a picture of one step (FILE with .svg)
    ///
    /// View the trace in Perfetto (ui.perfetto.dev). It shows 50 steps, and an evaluation among them:
    /// when each replica split, ran forward and backward, reduced and updated. On a GPU it shows the
    /// times of the host, not of the GPU.
    #[arg(long, value_name = "FILE", help_heading = RECORD)]
    pub trace: Option<PathBuf>,

    /// Let --out and --trace replace the files of an earlier run
    #[arg(long, help_heading = RECORD)]
    pub overwrite: bool,

    /// Device type of the replicas: cpu, cuda, or auto (GPUs if there are any, otherwise the CPU)
    #[arg(long, default_value_t = DeviceKind::Auto, value_name = "KIND", help_heading = DEVICES)]
    pub device: DeviceKind,

    /// Precision of convolutions on GPUs (bf16: activations too); the rest and the CPU use f32
    ///
    /// f32: throughout. tf32, PyTorch's default: convolutions round their inputs to 10 bits, and sum in f32.
    /// bf16: activations, their gradients and convolutions have 7 bits, parameters are f32.
    #[arg(long, default_value = "tf32", value_name = "P", value_parser = precision(), help_heading = DEVICES)]
    pub precision: Precision,

    /// Compare the parameters of all replicas after each step, not only after each epoch
    #[arg(long, help_heading = DEVICES)]
    pub check_replicas: bool,

    /// On GPUs, use only deterministic algorithms (bit-identical results in every run)
    #[arg(long, help_heading = DEVICES)]
    pub deterministic: bool,

    /// Number of CPU cores or hyperthreads to use, in each process [default: all cores]
    #[arg(long, value_name = "N", help_heading = DEVICES)]
    pub threads: Option<usize>,

    /// The command line, which a checkpoint keeps.
    #[arg(skip)]
    pub arguments: Vec<String>,

    /// The run in the folder `out` goes on.
    #[arg(skip)]
    pub goes_on: bool,
}

impl Default for Options {
    /// The book's run: that of an empty command line.
    fn default() -> Self {
        Self::parse_from(["default"])
    }
}

/// The options of a program: [`Options`], or more than those.
pub trait ProgramOptions: Args + FromArgMatches {
    /// Those of both programs.
    fn run(&self) -> &Options;

    /// The same, to be changed.
    fn run_mut(&mut self) -> &mut Options;

    /// The command line of an earlier run that goes on: its arguments come before those of this one.
    ///
    /// # Errors
    /// If there is no such run.
    fn earlier_arguments(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}

impl ProgramOptions for Options {
    fn run(&self) -> &Options {
        self
    }

    fn run_mut(&mut self) -> &mut Options {
        self
    }
}

impl Options {
    /// Checks all that can be checked without looking at devices or data.
    pub(crate) fn check(&self) -> Result<()> {
        let counts = [
            ("--gpus", self.gpus, MANY),
            ("--batch-size", self.batch_size, usize::MAX),
            ("--epochs", Some(self.epochs), usize::MAX),
            ("--limit-train", self.limit_train, usize::MAX),
            ("--limit-test", self.limit_test, usize::MAX),
            ("--threads", self.threads, MANY),
        ];
        for (option, count, most) in counts {
            let count = count.unwrap_or(1);
            ensure!(count > 0, "{option} 0: at least 1 is needed");
            ensure!(
                count <= most,
                "{option} {count}: at most {most} are possible"
            );
        }
        let replaces = self.trace.is_some() || (self.out.is_some() && !self.goes_on);
        ensure!(
            !self.overwrite || replaces,
            "--overwrite: there is nothing to replace; give --trace, or --out without --resume"
        );
        ensure!(
            self.precision != Precision::Bf16 || self.device != DeviceKind::Cpu,
            "--precision bf16: the CPU computes in f32; leave out --precision or --device cpu"
        );
        if let Some(lr) = self.lr {
            ensure!(
                (lr as f32).is_finite() && lr >= 0.0,
                "--lr {lr:?}: a learning rate is a finite 32-bit number, 0 or more"
            );
        }
        Ok(())
    }

    pub(crate) fn dataset(&self) -> dataset::Options {
        dataset::Options {
            name: self.dataset,
            data: self.data.clone(),
            seed: self.seed,
            no_shuffle: self.no_shuffle,
            limit_train: self.limit_train,
            limit_test: self.limit_test,
            stop: Some(ends()),
        }
    }
}

/// True if two paths lead to the same folder.
pub fn is_same_folder(a: &Path, b: &Path) -> bool {
    let folders = a.canonicalize().ok().zip(b.canonicalize().ok());
    a == b || folders.is_some_and(|(a, b)| a == b)
}
