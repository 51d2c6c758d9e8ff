//! A run from its first line to its last: what both programs do around their training loop.
//!
//! The loop itself is each program's own; it tells the run of every step and every epoch.

mod chosen;
mod start;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, anyhow, bail, ensure};
use candle_core::{Device, Tensor};
use d2l::Timer;
use dataset::{DataIter, quoted};

use crate::bad_input::BadInput;
use crate::bar::Bar;
use crate::interrupt::{self, interrupted};
use crate::lines::{Epoch, Lines, Sizes};
use crate::options::{Book, Options};
use crate::record::Record;
use crate::say::{is_quiet, say};
use crate::trace::Trace;
use crate::train_state::TrainState;
use chosen::Chosen;
use devices::Process;
use training::{BatchLoss, Folder, Unread, weights};

/// The names under which a checkpoint keeps what [`Run::kept`] returns.
const LOSSES: &str = "run/losses";
const ROWS: &str = "run/epochs";
const SECONDS: &str = "run/seconds";
const ARGUMENTS: &str = "run/arguments";
const IS_OF_ANOTHER_PROGRAM: &str =
    "it is not of a program of the book: go on with the program that wrote it";

/// A run that has started: its devices and data, and the settings that were not given filled in
/// from the book.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use run::{BatchLoss, Book, Options, Run};
///
/// let book = Book {
///     program: "demo",
///     section: "a network that learns nothing",
///     network: "Demo",
///     batch_size: |num_gpus| 8 * num_gpus,
///     lr: |_| 0.1,
/// };
/// let options = Options {
///     gpus: Some(2),
///     epochs: 1,
///     data: Some("synthetic".parse()?),
///     limit_train: Some(20),
///     limit_test: Some(4),
///     ..Options::default()
/// };
/// let mut run = Run::start(&options, &book)?;
/// assert_eq!((run.train_iter.batch_size(), run.lr, run.devices.len()), (16, 0.1, 2));
/// run.init(vec![])?;
/// let params: Vec<Vec<d2l::Param>> = vec![vec![], vec![]]; // of each device
/// for epoch in run.epochs() {
///     run.timer.start();
///     for batch in run.train_iter.epoch(epoch) {
///         let (_x, y) = batch?; // here a network would train
///         let loss = Tensor::new(16.8f32, &Device::Cpu)?;
///         run.step(BatchLoss::new(vec![loss], y.dim(0)?), &params)?;
///     }
///     run.timer.stop();
///     run.epoch(0.1, &params)?;
/// }
/// assert_eq!(run.finish(&params)?.test_acc, [0.1]);
/// # anyhow::Ok(())
/// ```
#[derive(Debug)]
pub struct Run {
    /// One for each replica.
    pub devices: Vec<Device>,
    /// The training set in minibatches; it ends early when Ctrl-C is pressed.
    pub train_iter: DataIter,
    /// The test set in minibatches; it ends early when Ctrl-C is pressed.
    pub test_iter: DataIter,
    /// Learning rate.
    pub lr: f64,
    /// The clock of the training, one time an epoch.
    pub timer: Timer,
    options: Options,
    /// The devices, and whether the images are synthetic: the end of the last line.
    places: String,
    /// Settings on which the result of the run depends, a line each.
    settings: String,
    /// The command line to keep.
    arguments: Vec<String>,
    /// The names of the parameters to begin with.
    names: Vec<String>,
    record: Record,
    progress: Progress,
}

/// Progress of a run, and its display.
#[derive(Debug)]
struct Progress {
    /// Steps that were taken; the losses of the last ones may be unread.
    taken: usize,
    /// The step of the newest checkpoint, where there are checkpoints.
    checkpoint: Option<usize>,
    unread: Unread,
    bar: Bar,
    trace: Option<Trace>,
}

impl Progress {
    fn new(sizes: Sizes) -> Self {
        Self {
            taken: 0,
            checkpoint: None,
            unread: Unread::default(),
            bar: Bar::new(sizes),
            trace: None,
        }
    }
}

/// Results of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Test accuracy after each epoch.
    pub test_acc: Vec<f64>,
    /// Mean loss of each epoch.
    pub loss: Vec<f64>,
    /// Seconds of training an epoch, without evaluation.
    pub sec_per_epoch: f64,
}

impl Run {
    /// Checks the options, finds devices and data, and prints what was chosen.
    ///
    /// # Errors
    /// [`BadInput`] where an option, the data or the folder that were named cannot be used.
    pub fn start(options: &Options, book: &Book) -> Result<Self> {
        Self::start_in(Process::ALONE, options, book)
    }

    /// Like [`start`](Self::start), in one process of several: it makes its part of each minibatch, and shares the
    /// cores and the GPUs of its machine with the others that are there.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_in(process: Process, options: &Options, book: &Book) -> Result<Self> {
        options.check().map_err(BadInput::from)?;
        start::check_launcher(process).map_err(BadInput::from)?;
        let (devices, note) = start::find_devices(process, options).map_err(BadInput::from)?;
        let k = match process.of {
            1 => devices.len(),
            of => options.gpus.unwrap_or(of),
        };
        let batch_size = options.batch_size.unwrap_or((book.batch_size)(k));
        start::check_batch_size(batch_size, k).map_err(BadInput::from)?;
        let share = start::set_up(process, k, options, &devices)?;
        if let Some(note) = note {
            say(format_args!("{note}{}", start::with_cuda(process, book, k)));
        }
        start::check_paths(options).map_err(BadInput::from)?;
        let data = start::load(options)?;
        let (train_iter, test_iter) = start::iters(&data, batch_size, &devices, process, k)?;
        let sizes = Sizes {
            epochs: options.epochs,
            train: train_iter.num_examples(),
            test: test_iter.num_examples(),
            batch: batch_size,
        };
        let lr = options.lr.unwrap_or((book.lr)(k));
        let mut places = start::places(&devices, process, k);
        let chosen = Chosen {
            network: book.network,
            replicas: k,
            devices: &devices,
            places: &places,
            share,
            sizes,
            lr,
            data: &data,
        };
        start::print_start(&chosen, options);
        let settings = start::settings_of(&chosen, options);
        if data.source.is_synthetic {
            places += " (synthetic data)";
        }
        Ok(Self {
            devices,
            train_iter,
            test_iter,
            lr,
            timer: Timer::new(),
            options: options.clone(),
            settings,
            arguments: start::arguments(options, k),
            names: Vec::new(),
            record: Record::new(sizes),
            progress: Progress::new(sizes),
            places,
        })
    }

    /// Settings on which the result of the run depends, a line each, but for the number of its epochs: a checkpoint of
    /// another run is refused, and processes that train together have them in common.
    pub fn settings(&self) -> &str {
        &self.settings
    }

    /// The environment variable that names the folder of the images.
    pub fn data_variable(&self) -> &'static str {
        self.options.dataset.env_var()
    }

    /// Lets the GPUs copy from each other directly, and prints why if some cannot. `DataParallel` does so by itself.
    pub fn connect_gpus(&self) {
        if let Some(line) = devices::connect(&self.devices) {
            say(format_args!("{line}"));
        }
    }

    /// The parameters to begin with: `tensors`; or where `--init` names a file, what is there under the same names. With
    /// them the run begins: the folder of `--out` is taken, `--trace` records.
    ///
    /// # Errors
    /// [`BadInput`] where the file or the folder cannot be used.
    pub fn init(
        &mut self,
        tensors: impl IntoIterator<Item = (String, Tensor)>,
    ) -> Result<Vec<Tensor>> {
        let params = self.initial(tensors).map_err(BadInput::from)?;
        // Ctrl-C came before there is anything to keep: an earlier run in the folder stays
        let begins = !interrupted();
        if let Some(out) = self.options.out.as_ref().filter(|_| begins && !is_quiet()) {
            self.record
                .take(out, self.options.overwrite)
                .map_err(BadInput::from)?;
        }
        self.begin_recording(begins);
        Ok(params)
    }

    /// The parameters to begin with, as [`init`](Self::init) returns them. The run has not begun.
    ///
    /// # Errors
    /// If the file of `--init` cannot be used.
    pub fn initial(
        &mut self,
        tensors: impl IntoIterator<Item = (String, Tensor)>,
    ) -> Result<Vec<Tensor>> {
        let tensors: Vec<(String, Tensor)> = tensors.into_iter().collect();
        self.names = tensors.iter().map(|(name, _)| name.clone()).collect();
        match &self.options.init {
            Some(file) => Ok(weights::load(file, &tensors)?),
            None => Ok(tensors.into_iter().map(|(_, tensor)| tensor).collect()),
        }
    }

    /// Begins a run with a folder that has its first checkpoint: what else an earlier run has left there goes.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn begin_beside(&mut self, checkpoints: &Path) -> Result<()> {
        self.progress.checkpoint = Some(0);
        if !is_quiet() {
            self.record.begin(Folder::open(checkpoints)?)?;
        }
        self.begin_recording(true);
        Ok(())
    }

    /// Goes on where the run stood whose checkpoint has these tensors of [`kept`](Self::kept) and these parameters. Returns
    /// whether it is complete: then its folder is left as it is.
    ///
    /// # Errors
    /// If there are too few epochs, or a table in the folder contradicts the checkpoint.
    pub fn go_on(
        &mut self,
        checkpoints: &Path,
        kept: &BTreeMap<String, Tensor>,
        model: &[(String, Tensor)],
    ) -> Result<bool> {
        let sizes = self.record.sizes;
        let get = |name: &str| kept.get(name).context(IS_OF_ANOTHER_PROGRAM);
        let lines = Lines::from_tensors(get(LOSSES)?, get(ROWS)?)?;
        let steps = lines.losses.len();
        let completed = lines.epochs.len();
        let begun = steps.div_ceil(sizes.steps_per_epoch());
        ensure!(
            begun <= sizes.epochs,
            "the run there is in epoch {begun}, so --epochs {} is too few; give {begun} or more",
            sizes.epochs
        );
        let times = lines.epochs.iter().map(|epoch| epoch.seconds).collect();
        self.timer = Timer::after(times, get(SECONDS)?.to_scalar()?);
        self.progress.taken = steps;
        self.progress.checkpoint = Some(steps);
        let folder = Folder::open(checkpoints)?;
        let is_complete = completed == sizes.epochs && Record::is_finished(&folder, model)?;
        if is_complete || is_quiet() {
            self.record.lines = lines;
        } else {
            self.record.go_on(folder, lines)?;
        }
        self.begin_recording(true);
        Ok(is_complete)
    }

    /// Begins a run that leaves nothing in a folder: `--trace` records.
    pub fn begin(&mut self) {
        self.begin_recording(!interrupted());
    }

    fn begin_recording(&mut self, records: bool) {
        if records && !is_quiet() {
            self.progress.trace = self.options.trace.as_deref().map(Trace::begin);
        }
        self.begin_epoch();
    }

    /// Content of a checkpoint about the run, for [`go_on`](Self::go_on): its lines, the time of the epoch that is not
    /// complete, its command line.
    ///
    /// # Errors
    /// If a loss cannot be read from its device.
    pub fn kept(&mut self) -> Result<BTreeMap<String, Tensor>> {
        self.read_losses()?;
        let [losses, rows] = self.record.lines.to_tensors()?;
        let times = self.timer.times();
        let seconds = match times.get(self.completed()) {
            Some(of_epoch) => *of_epoch,
            None if self.progress.taken == 0 => 0.0,
            None => self.timer.running(),
        };
        let seconds = Tensor::new(seconds, &Device::Cpu)?;
        let arguments = serde_json::to_vec(&self.arguments)?;
        let arguments = Tensor::new(arguments, &Device::Cpu)?;
        Ok(BTreeMap::from([
            (LOSSES.to_owned(), losses),
            (ROWS.to_owned(), rows),
            (SECONDS.to_owned(), seconds),
            (ARGUMENTS.to_owned(), arguments),
        ]))
    }

    /// The command line of the run whose checkpoint has these tensors of [`kept`](Self::kept).
    ///
    /// # Errors
    /// If it is of another program.
    pub fn arguments_in(kept: &BTreeMap<String, Tensor>) -> Result<Vec<String>> {
        let arguments = kept.get(ARGUMENTS).context(IS_OF_ANOTHER_PROGRAM)?;
        Ok(serde_json::from_slice(&arguments.to_vec1::<u8>()?)?)
    }

    /// The newest checkpoint was taken after this step.
    pub fn has_checkpoint(&mut self, step: usize) {
        self.progress.checkpoint = Some(step);
    }

    /// From here on the run ends in order when `flag` is set: several processes end together.
    pub fn stop_when(&mut self, flag: Arc<AtomicBool>) {
        interrupt::end_when(flag.clone());
        self.train_iter = self.train_iter.clone().stop_when(flag.clone());
        self.test_iter = self.test_iter.clone().stop_when(flag);
    }

    fn completed(&self) -> usize {
        self.record.lines.epochs.len()
    }

    /// If another epoch follows, the bar shows it.
    fn begin_epoch(&mut self) {
        let next = self.completed() + 1;
        let sizes = self.record.sizes;
        if next <= self.options.epochs && !interrupted() {
            let begun = self.progress.taken - self.completed() * sizes.steps_per_epoch();
            self.progress.bar.begin(next, sizes.examples(begun));
        }
    }

    /// The epochs from 1, or from the one in which the run goes on; none follows once Ctrl-C was pressed.
    pub fn epochs(&self) -> impl Iterator<Item = usize> + use<> {
        (self.completed() + 1..=self.options.epochs).take_while(|_| !interrupted())
    }

    /// Reports a step: the loss of the minibatch before its update, and the network after it.
    ///
    /// A loss on a GPU is read some steps later, so that the host does not wait for the GPU in every step.
    ///
    /// # Errors
    /// If a device fails, the loss is no finite number any more, replicas differ and `--check-replicas` looks, or the
    /// folder of the run was moved.
    pub fn step(&mut self, loss: BatchLoss, state: &impl TrainState) -> Result<()> {
        self.progress.trace = self.progress.trace.take().and_then(Trace::step);
        self.progress.taken += 1;
        let taken = self.progress.taken;
        let last = taken.is_multiple_of(self.record.sizes.steps_per_epoch());
        if self.progress.unread.push(loss, ()) || last {
            self.read_losses()?;
        }
        if self.options.check_replicas {
            self.check_replicas(state)?;
        }
        if last {
            self.progress.bar.test();
        }
        Ok(())
    }

    /// Reads the losses that are still on the devices; shows and records their steps.
    fn read_losses(&mut self) -> Result<()> {
        for read in self.progress.unread.read()? {
            let loss = read.mean;
            self.record.step(loss)?;
            self.progress.bar.step(read.examples, loss);
            if !loss.is_finite() {
                let step = self.record.lines.losses.len();
                let epoch = self.completed() + 1;
                bail!(
                    "the loss is {loss} in step {step} (epoch {epoch}, lr {:?}); try a smaller \
                     --lr{}",
                    self.lr,
                    self.has_kept()
                );
            }
        }
        Ok(())
    }

    /// Names what is trained, of which every number has to be finite.
    fn named_finite(&self, state: &impl TrainState) -> Result<Vec<(String, Tensor)>> {
        let tensors = state.tensors(&self.names)?;
        for (name, tensor) in &tensors {
            let finite = weights::check_numbers(name, tensor);
            let step = self.progress.taken;
            let lr = self.lr;
            let kept = self.has_kept();
            finite.map_err(|error| {
                anyhow!("after step {step}, at lr {lr:?}: {error}; try a smaller --lr{kept}")
            })?;
        }
        Ok(tensors)
    }

    /// A loss that is no number says more than replicas which differ after it.
    fn check_replicas(&mut self, state: &impl TrainState) -> Result<()> {
        self.read_losses()?;
        let step = self.progress.taken;
        let kept = self.has_kept();
        let agree = state.check_replicas(&self.names);
        agree.map_err(|error| anyhow!("after step {step}: {error:#}{kept}"))
    }

    /// Text after an error: the checkpoint that is there, if there is one.
    pub fn has_kept(&self) -> String {
        match self.record.path().zip(self.progress.checkpoint) {
            Some((folder, step)) => {
                format!("; {} holds the checkpoint of step {step}", folder.display())
            }
            None => String::new(),
        }
    }

    /// Tells of an epoch's end, the test accuracy after it, and what is trained; prints its line.
    ///
    /// An epoch that Ctrl-C cut short is not counted, because its accuracy has no meaning: then it returns false.
    ///
    /// # Errors
    /// If the replicas differ, the loss is no finite number any more, or the folder of the run was moved.
    pub fn epoch(&mut self, test_acc: f64, state: &impl TrainState) -> Result<bool> {
        self.read_losses()?;
        self.progress.bar.clear();
        if interrupted() {
            return Ok(false);
        }
        self.check_replicas(state)?;
        let epoch = Epoch {
            epoch: self.completed() + 1,
            loss: self.record.lines.mean_loss(self.record.sizes),
            test_acc,
            seconds: self.timer.times().last().copied().unwrap_or(0.0),
        };
        say(format_args!(
            "epoch {}, loss {:.3}, test acc {test_acc:.3}, {:.1} sec, {:.0} examples/sec",
            epoch.epoch,
            epoch.loss,
            epoch.seconds,
            self.record.sizes.train as f64 / epoch.seconds
        ));
        self.record.epoch(epoch)?;
        self.begin_epoch();
        Ok(true)
    }

    /// The accuracy of an evaluation; NaN in place of an error if Ctrl-C has ended the run, because then the data iterator
    /// may give no minibatch. [`epoch`](Self::epoch) does not use it.
    ///
    /// # Errors
    /// Of the evaluation.
    pub fn unless_ended(&self, accuracy: candle_core::Result<f64>) -> candle_core::Result<f64> {
        match accuracy {
            Err(_) if interrupted() => Ok(f64::NAN),
            accuracy => accuracy,
        }
    }

    /// Ends the run: writes the parameters where `--out` asks for it, and prints the curve and
    /// the book's last line.
    ///
    /// # Errors
    /// If the parameters cannot be written.
    pub fn finish(mut self, state: &impl TrainState) -> Result<Summary> {
        self.progress.bar.clear();
        let completed = self.completed();
        let model = self.named_finite(state)?;
        let written = self.record.finish(&model);
        self.progress.trace = None; // which writes it
        let times = self.timer.times().iter().take(completed);
        let epochs = self.record.lines.epochs.iter();
        let summary = Summary {
            test_acc: epochs.clone().map(|epoch| epoch.test_acc).collect(),
            loss: epochs.map(|epoch| epoch.loss).collect(),
            sec_per_epoch: times.sum::<f64>() / completed.max(1) as f64,
        };
        self.print_end(&summary)?;
        written.map(|()| summary)
    }

    fn print_end(&self, summary: &Summary) -> Result<()> {
        let step = self.record.lines.losses.len();
        let completed = self.completed();
        if completed < self.options.epochs {
            let folder = self.record.path().map(quoted);
            let go_on = match folder.zip(self.progress.checkpoint) {
                Some((folder, kept)) if kept == step => {
                    format!("; continue with --resume {folder}")
                }
                Some((folder, kept)) => format!("; --resume {folder} continues after step {kept}"),
                None => String::new(),
            };
            let epoch = completed + 1;
            let all = self.options.epochs;
            say(format_args!(
                "interrupted in epoch {epoch} of {all}, after step {step}{go_on}"
            ));
        }
        let columns = console::Term::stdout()
            .size_checked()
            .map_or(80, |(_, columns)| columns.into());
        let curve = self.record.lines.accuracy_curve(self.record.sizes)?;
        if let Some(curve) = curve.text(0, columns) {
            say(format_args!("{curve}"));
        }
        // `test acc: 0.84, 2.5 sec/epoch on [cpu(0), cpu(1)]`, as in the book
        let result = match summary.test_acc.last() {
            Some(acc) => format!("{acc:.2}, {:.1} sec/epoch", summary.sec_per_epoch),
            None => "none, no epoch was completed,".to_owned(),
        };
        say(format_args!("test acc: {result} on {}", self.places));
        Ok(())
    }
}
