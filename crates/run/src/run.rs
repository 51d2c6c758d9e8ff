//! A run from its first line to its last: what both programs do around their training loop.
//!
//! The loop itself is each program's own; it tells the run of every step and every epoch.

mod end;
mod keep;
mod progress;
mod resume;
mod settings;
mod start;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use candle_core::{Device, Tensor};
use d2l::{Animator, Process, Timer, device_name, device_names, share_cores};
use dataset::{DataIter, Dataset};

use crate::bar::{Bar, Plan};
use crate::interrupt::INTERRUPTED;
use crate::loss_curve::LossCurve;
use crate::record::{self, Record};
use crate::say::{is_quiet, set_quiet};
use crate::trace::Trace;
use crate::{
    BadInput, BatchLoss, Book, Options, Trained, interrupt, interrupted, out_of_memory, say,
    weights,
};
use progress::Progress;
use resume::Resumed;

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
/// assert_eq!((run.batch_size, run.lr, run.devices.len()), (16, 0.1, 2));
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
    /// Examples in a minibatch, over all devices.
    pub batch_size: usize,
    /// Learning rate.
    pub lr: f64,
    /// Passes over the training set.
    pub num_epochs: usize,
    /// The seed of everything that is random.
    pub seed: u64,
    /// The clock of the training, one time an epoch.
    pub timer: Timer,
    setup: Setup,
    /// The names of the tensors that are trained.
    names: Vec<String>,
    /// What the run goes on from, until it does.
    resumed: Option<Resumed>,
    rest: HashMap<String, Tensor>,
    animator: Animator,
    files: Files,
    progress: Progress,
    unread: Unread,
}

/// What was asked for.
#[derive(Debug)]
struct Setup {
    process: Process,
    options: Options,
    /// What the result depends on, a line each.
    settings: Vec<String>,
    synthetic: bool,
}

/// What the run writes.
#[derive(Debug, Default)]
struct Files {
    record: Option<Record>,
    trace: Option<Trace>,
    /// The step of the newest checkpoint.
    kept: usize,
    /// The step of the newest checkpoint that was to be kept.
    tried: usize,
}

/// Losses that are still on the devices.
#[derive(Debug)]
struct Unread {
    losses: Vec<BatchLoss>,
    since: Instant,
}

/// How long losses stay unread: what the eye sees as at once.
const READ_EVERY: Duration = Duration::from_millis(100);
/// So many steps the host may be ahead of the devices.
const MOST_UNREAD: usize = 256;

/// What a run reached.
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

    /// As [`start`](Self::start), in one process of several: it makes its part of each minibatch, and
    /// shares the cores and the GPUs of its machine with the others that are there.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_in(process: Process, options: &Options, book: &Book) -> Result<Self> {
        if process.of > 1 {
            interrupt::agree_first();
        }
        set_quiet(process.rank > 0);
        options.check().map_err(BadInput::from)?;
        functional::set_precision(options.precision.into());
        functional::set_deterministic(options.deterministic);
        let (devices, note) = start::find_devices(process, options)?;
        out_of_memory::run_on(&devices);
        let own = devices.len();
        let k = own * process.of;
        let batch_size = options.batch_size.unwrap_or((book.batch_size)(k));
        start::check_batch_size(batch_size, k).map_err(BadInput::from)?;
        let threads = options.threads.or_else(|| process.share_of_cores());
        let share = share_cores(threads, own);
        start::check_paths(options).map_err(BadInput::from)?;
        let resumed = options.resume.as_deref();
        let resumed = resumed.map(|folder| Resumed::load(folder, process.rank == 0));
        let resumed = resumed.transpose().map_err(BadInput::from)?;
        let data = start::load(options)?;
        let (mut train_iter, mut test_iter) = data.iters(batch_size)?;
        if !devices[0].is_cpu() {
            train_iter = train_iter.on_device(&devices[0])?;
            test_iter = test_iter.on_device(&devices[0])?;
            start::check_last_batch(&train_iter, "training", k).map_err(BadInput::from)?;
            start::check_last_batch(&test_iter, "test", k).map_err(BadInput::from)?;
        }
        if process.of > 1 {
            let first = process.rank * own;
            train_iter = train_iter.shards(first..first + own, k);
            test_iter = test_iter.shards(first..first + own, k);
        }
        let mut run = Self {
            train_iter: train_iter.stop_when(&INTERRUPTED),
            test_iter: test_iter.stop_when(&INTERRUPTED),
            batch_size,
            lr: options.lr.unwrap_or((book.lr)(k)),
            num_epochs: options.epochs,
            seed: options.seed,
            timer: Timer::new(),
            setup: Setup {
                process,
                options: options.clone(),
                settings: Vec::new(),
                synthetic: data.source.is_synthetic(),
            },
            names: Vec::new(),
            resumed,
            rest: HashMap::new(),
            animator: Animator::new("epoch", &["test acc"], (1.0, options.epochs as f64)),
            files: Files::default(),
            progress: Progress::new(),
            unread: Unread {
                losses: Vec::new(),
                since: Instant::now(),
            },
            devices,
        };
        for note in note
            .into_iter()
            .chain(start::no_bf16_on_the_cpu(options, &run.devices))
        {
            say(format_args!("{note}"));
        }
        run.setup.settings = run.settings_of(book);
        run.print_start(book, share, &data);
        Ok(run)
    }

    fn print_start(&self, book: &Book, share: usize, data: &Dataset) {
        let names = self.places();
        match self.devices[0].is_cpu() {
            true => say(format_args!(
                "{} on {names}, {share} of {} cores each",
                book.network,
                d2l::cores()
            )),
            false => say(format_args!("{} on {names}", book.network)),
        }
        for line in start::gpu_facts(&self.devices) {
            say(format_args!("{line}"));
        }
        say(format_args!(
            "batch size {}, lr {}, epochs {}, seed {}",
            self.batch_size, self.lr, self.num_epochs, self.seed
        ));
        say(format_args!("{}", data.source));
        say(format_args!(
            "{} training and {} test examples",
            self.train_iter.num_examples(),
            self.test_iter.num_examples()
        ));
    }

    /// The devices, of many on the CPU the first and the last, and in how many processes.
    fn places(&self) -> String {
        let names = match &self.devices[..] {
            [first, .., last] if self.devices.len() > 3 && first.is_cpu() => {
                let last = device_name(self.devices.len() - 1, last);
                format!("[{} … {last}]", device_name(0, first))
            }
            devices => device_names(devices),
        };
        match self.setup.process.of {
            1 => names,
            n => format!("{names} in each of {n} processes"),
        }
    }

    /// The parameters to begin with: `tensors`; or where `--init` names a file, or `--resume` a folder, what is there under
    /// the same names. With them the run begins: the folder of `--out` is taken, `--trace` records.
    ///
    /// # Errors
    /// [`BadInput`] where the file or the folder cannot be used, or holds another run.
    pub fn init(
        &mut self,
        tensors: impl IntoIterator<Item = (String, Tensor)>,
    ) -> Result<Vec<Tensor>> {
        let tensors: Vec<(String, Tensor)> = tensors.into_iter().collect();
        self.names = tensors.iter().map(|(name, _)| name.clone()).collect();
        // Ctrl-C came before there is anything to keep: an earlier run in the folder stays
        let writes = self.setup.process.rank == 0 && !interrupted();
        let params = match (self.resumed.take(), &self.setup.options.init) {
            (Some(resumed), _) => self.go_on(resumed, &tensors, writes),
            (None, Some(file)) => weights::load(file, &tensors),
            (None, None) => Ok(tensors.into_iter().map(|(_, tensor)| tensor).collect()),
        };
        let params = params.map_err(BadInput::from)?;
        if writes && self.files.record.is_none() && self.setup.options.resume.is_none() {
            self.files.record = self.begin_record(&params).map_err(BadInput::from)?;
        }
        let file = self.setup.options.trace.as_deref().filter(|_| writes);
        let trace = file.map(Trace::begin).transpose();
        self.files.trace = trace.map_err(BadInput::from)?;
        self.progress.bar = self.bar();
        self.begin_epoch();
        Ok(params)
    }

    fn begin_record(&self, params: &[Tensor]) -> Result<Option<Record>> {
        let Some(folder) = &self.setup.options.out else {
            return Ok(None);
        };
        let tensors = self.named(params.to_vec());
        let (overwrite, loss) = (self.setup.options.overwrite, self.loss_curve());
        Record::open(folder, overwrite, loss, &self.header(), &tensors).map(Some)
    }

    fn loss_curve(&self) -> LossCurve {
        LossCurve::new(self.num_epochs, self.train_iter.num_batches())
    }

    fn named(&self, tensors: Vec<Tensor>) -> Vec<(String, Tensor)> {
        self.names.iter().cloned().zip(tensors).collect()
    }

    fn bar(&self) -> Bar {
        match is_quiet() {
            true => Bar::hidden(),
            false => Bar::on_stderr(Plan {
                epochs: self.num_epochs,
                train_examples: self.train_iter.num_examples(),
                test_examples: self.test_iter.num_examples(),
                test_seconds: None,
            }),
        }
    }

    /// Where another epoch follows, the bar shows it.
    fn begin_epoch(&mut self) {
        let next = self.progress.losses.len() + 1;
        if next <= self.num_epochs && !interrupted() {
            self.progress.bar.begin(next, self.progress.given);
        }
    }

    /// The epochs from 1, or from the one in which the run goes on; none follows once Ctrl-C was pressed.
    pub fn epochs(&self) -> impl Iterator<Item = usize> + use<> {
        out_of_memory::trains();
        let completed = self.progress.losses.len();
        (completed + 1..=self.num_epochs).take_while(|_| !interrupted())
    }

    /// Reports a step: the loss of the minibatch before its update, and the network after it.
    ///
    /// A loss on a GPU is read some steps later, so that the host does not wait for the GPU in every step.
    ///
    /// # Errors
    /// If a device fails, the loss is no finite number any more, or replicas differ and `--check-replicas` looks.
    pub fn step<T: Trained>(&mut self, loss: BatchLoss, trained: &T) -> Result<()> {
        if let Some(trace) = self.files.trace.take() {
            self.files.trace = trace.step();
        }
        let now = loss.is_at_hand();
        self.progress.given += loss.examples();
        self.progress.taken += 1;
        let last = self.progress.given >= self.train_iter.num_examples();
        self.unread.losses.push(loss);
        let many = self.unread.losses.len() >= MOST_UNREAD;
        if now || last || many || self.unread.since.elapsed() > READ_EVERY {
            self.read_losses(trained)?;
        }
        let keeps = self.is_time_to_keep() && trained.is_between_steps();
        if keeps || self.setup.options.check_replicas {
            self.check_replicas(trained)?;
        }
        if keeps {
            self.keep(trained, self.timer.running())?;
        }
        if last {
            self.progress.bar.test();
        }
        Ok(())
    }

    /// Reads the losses that are still on the devices; shows and records their steps.
    fn read_losses<T: Trained>(&mut self, trained: &T) -> Result<()> {
        let unread = std::mem::take(&mut self.unread.losses);
        let means = BatchLoss::means(&unread)?;
        for (examples, loss) in unread.iter().map(BatchLoss::examples).zip(means) {
            let step = self.progress.step(examples, loss);
            if let Some(record) = &mut self.files.record {
                record.step(&step)?;
            }
            if !loss.is_finite() {
                bail!(self.diverged(&step, trained)?);
            }
        }
        self.unread.since = Instant::now();
        Ok(())
    }

    /// Tells of an epoch's end, the test accuracy after it, and what is trained; prints its line.
    ///
    /// An epoch that Ctrl-C cut short is not counted: its accuracy is of no meaning.
    ///
    /// # Errors
    /// If the replicas differ, or the loss is no finite number any more.
    pub fn epoch<T: Trained>(&mut self, test_acc: f64, trained: &T) -> Result<()> {
        self.read_losses(trained)?;
        self.progress.bar.clear();
        if interrupted() {
            return Ok(());
        }
        self.check_replicas(trained)?;
        let seconds = self.timer.times().last().copied().unwrap_or(0.0);
        let (epoch, loss, examples) = self.progress.end_epoch();
        self.animator.add(epoch as f64, &[test_acc])?;
        let rate = examples as f64 / seconds;
        say(format_args!(
            "epoch {epoch}, loss {loss:.3}, test acc {test_acc:.3}, \
             {seconds:.1} sec, {rate:.0} examples/sec"
        ));
        let line = record::Epoch {
            epoch,
            loss,
            test_acc,
            seconds,
        };
        if let Some(record) = &mut self.files.record {
            record.epoch(&line, &self.animator)?;
        }
        self.keep(trained, 0.0)?;
        self.begin_epoch();
        Ok(())
    }

    /// Ends the run: writes the parameters where `--out` asks for it, and prints the curve and
    /// the book's last line.
    ///
    /// # Errors
    /// If the parameters cannot be written.
    pub fn finish<T: Trained>(mut self, trained: &T) -> Result<Summary> {
        self.progress.bar.clear();
        let completed = self.progress.losses.len();
        let is_new = completed < self.num_epochs && self.progress.taken > self.files.tried;
        if is_new && trained.is_between_steps() {
            self.check_replicas(trained)?;
            let seconds = self.timer.times().get(completed).copied();
            self.keep(trained, seconds.unwrap_or(0.0))?;
        }
        let model = self.named(trained.tensors()?);
        let written = match &mut self.files.record {
            Some(record) => record.finish(&model, &self.animator),
            None => Ok(()),
        };
        self.files.trace = None; // which writes it
        self.print_end();
        written?;
        let sec_per_epoch = self.sec_per_epoch();
        Ok(Summary {
            test_acc: self.animator.y(0).to_vec(),
            loss: self.progress.losses,
            sec_per_epoch,
        })
    }
}
