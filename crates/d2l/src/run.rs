//! A run from its first line to its last: what both programs do around their training loop.
//!
//! The loop itself is each program's own; it tells the run of every step and every epoch.

use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};
use dataset::{DataIter, Dataset};

use crate::bar::{self, Bar, Plan};
use crate::devices::find;
use crate::interrupt::INTERRUPTED;
use crate::loss_curve::LossCurve;
use crate::record::{self, Record};
use crate::trace::Trace;
use crate::{
    Animator, BadInput, BatchLoss, Book, Options, Timer, device_name, device_names, gpu, interrupt,
    interrupted, share_cores, weights,
};

/// A run that has started: its devices and data, and the settings that were not given filled in
/// from the book.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use d2l::{BatchLoss, Book, Options, Run};
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
/// for epoch in run.epochs() {
///     run.timer.start();
///     for batch in run.train_iter.epoch(epoch) {
///         let (_x, y) = batch?; // here a network would train
///         let loss = Tensor::new(16.8f32, &Device::Cpu)?;
///         run.step(BatchLoss::new(vec![loss], y.dim(0)?))?;
///     }
///     run.timer.stop();
///     run.epoch(0.1)?;
/// }
/// assert_eq!(run.finish(&[])?.test_acc, [0.1]);
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
    process: Process,
    options: Options,
    synthetic: bool,
    animator: Animator,
    record: Option<Record>,
    trace: Option<Trace>,
    progress: Progress,
    /// Losses that are still on the devices.
    unread: Vec<BatchLoss>,
    last_read: Instant,
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

/// Where the run stands.
#[derive(Debug)]
struct Progress {
    bar: Bar,
    step: usize,
    /// Examples of this epoch, also of losses that are unread.
    given: usize,
    examples: usize,
    loss_sum: f64,
    losses: Vec<f64>,
}

/// One process of several that train together, each with as many replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its number, from 0; number 0 prints and writes.
    pub rank: usize,
    /// How many there are.
    pub of: usize,
    /// Its number among those of this machine.
    pub local_rank: usize,
    /// How many of them are on this machine.
    pub on_machine: usize,
}

impl Process {
    /// A process that trains by itself.
    pub const ALONE: Self = Self {
        rank: 0,
        of: 1,
        local_rank: 0,
        on_machine: 1,
    };
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
        QUIET.store(process.rank > 0, Ordering::Relaxed);
        options.check().map_err(BadInput::from)?;
        functional::set_precision(options.precision.into());
        functional::set_deterministic(options.deterministic);
        let (devices, note) = find_devices(process, options)?;
        let own = devices.len();
        let k = own * process.of;
        if let [only] = &devices[..] {
            functional::one_stream(only);
        }
        let batch_size = options.batch_size.unwrap_or((book.batch_size)(k));
        check_batch_size(batch_size, k).map_err(BadInput::from)?;
        let threads = options.threads.or_else(|| process.share_of_cores());
        let share = share_cores(threads, own);
        check_paths(options).map_err(BadInput::from)?;
        let data = load(options)?;
        let (mut train_iter, mut test_iter) = data.iters(batch_size)?;
        if !devices[0].is_cpu() {
            train_iter = train_iter.on_device(&devices[0])?;
            test_iter = test_iter.on_device(&devices[0])?;
            check_last_batch(&train_iter, "training", k).map_err(BadInput::from)?;
            check_last_batch(&test_iter, "test", k).map_err(BadInput::from)?;
        }
        if process.of > 1 {
            let first = process.rank * own;
            train_iter = train_iter.shards(first..first + own, k);
            test_iter = test_iter.shards(first..first + own, k);
        }
        let run = Self {
            train_iter: train_iter.stop_when(&INTERRUPTED),
            test_iter: test_iter.stop_when(&INTERRUPTED),
            batch_size,
            lr: options.lr.unwrap_or((book.lr)(k)),
            num_epochs: options.epochs,
            seed: options.seed,
            timer: Timer::new(),
            options: options.clone(),
            synthetic: data.source.is_synthetic(),
            animator: Animator::new("epoch", &["test acc"], (1.0, options.epochs as f64)),
            record: None,
            trace: None,
            progress: Progress::new(),
            unread: Vec::new(),
            last_read: Instant::now(),
            devices,
            process,
        };
        if let Some(note) = note {
            say(format_args!("{note}"));
        }
        run.print_start(book, share, &data);
        Ok(run)
    }

    fn print_start(&self, book: &Book, share: usize, data: &Dataset) {
        let names = self.places();
        match self.devices[0].is_cpu() {
            true => say(format_args!(
                "{} on {names}, {share} of {} cores each",
                book.network,
                crate::cores()
            )),
            false => say(format_args!("{} on {names}", book.network)),
        }
        for line in gpu_facts(&self.devices) {
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

    /// All that several processes have to have in common, a line each.
    pub fn settings(&self) -> String {
        let Self {
            options,
            train_iter,
            test_iter,
            ..
        } = self;
        let images = if self.synthetic {
            "synthetic images for "
        } else {
            ""
        };
        let order = if options.no_shuffle {
            "in order"
        } else {
            "shuffled"
        };
        let lines = [
            format!("{} replicas", self.devices.len()),
            format!("batch size {}", self.batch_size),
            format!("lr {}", self.lr),
            format!("epochs {}", self.num_epochs),
            format!("seed {}", self.seed),
            format!("{images}{}, {order}", options.dataset),
            format!("{} training examples", train_iter.num_examples()),
            format!("{} test examples", test_iter.num_examples()),
        ];
        lines.join("\n")
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
        match self.process.of {
            1 => names,
            n => format!("{names} in each of {n} processes"),
        }
    }

    /// The initial parameters: `tensors`, or where `--init` names a file, what is in it under
    /// the same names. With them the run begins: the folder of `--out` is taken, `--trace` records.
    ///
    /// # Errors
    /// [`BadInput`] where the file or the folder cannot be used.
    pub fn init(&mut self, tensors: Vec<(String, Tensor)>) -> Result<Vec<Tensor>> {
        let params = match &self.options.init {
            Some(file) => weights::load(file, &tensors).map_err(BadInput::from)?,
            None => tensors.into_iter().map(|(_, tensor)| tensor).collect(),
        };
        // Ctrl-C came before there is anything to keep: an earlier run in the folder stays
        let writes = self.process.rank == 0 && !interrupted();
        let folder = self.options.out.as_deref().filter(|_| writes);
        let steps = self.train_iter.num_batches();
        self.record = folder
            .map(|folder| Record::open(folder, LossCurve::new(self.num_epochs, steps)))
            .transpose()
            .map_err(BadInput::from)?;
        let file = self.options.trace.as_deref().filter(|_| writes);
        let trace = file.map(Trace::begin).transpose();
        self.trace = trace.map_err(BadInput::from)?;
        self.progress.bar = self.bar();
        self.begin_epoch();
        Ok(params)
    }

    fn bar(&self) -> Bar {
        match QUIET.load(Ordering::Relaxed) {
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
            self.progress.bar.begin(next);
        }
    }

    /// The epochs from 1; none follows once Ctrl-C was pressed.
    pub fn epochs(&self) -> impl Iterator<Item = usize> + use<> {
        (1..=self.num_epochs).take_while(|_| !interrupted())
    }

    /// Tells of a step: the loss of the minibatch before its update.
    ///
    /// A loss on a GPU is read some steps later, so that nobody waits for the GPU in every step.
    ///
    /// # Errors
    /// If a device fails, or `steps.csv` cannot be written.
    pub fn step(&mut self, loss: BatchLoss) -> Result<()> {
        if let Some(trace) = self.trace.take() {
            self.trace = trace.step()?;
        }
        let now = loss.is_at_hand();
        self.progress.given += loss.examples();
        let last = self.progress.given >= self.train_iter.num_examples();
        self.unread.push(loss);
        let many = self.unread.len() >= MOST_UNREAD;
        if now || last || many || self.last_read.elapsed() > READ_EVERY {
            self.read_losses()?;
        }
        if last {
            self.progress.bar.test();
        }
        Ok(())
    }

    /// Shows and records the steps whose losses are still on the devices.
    fn read_losses(&mut self) -> Result<()> {
        let unread = std::mem::take(&mut self.unread);
        let means = BatchLoss::means(&unread)?;
        for (examples, loss) in unread.iter().map(BatchLoss::examples).zip(means) {
            let p = &mut self.progress;
            p.step += 1;
            p.examples += examples;
            p.loss_sum += f64::from(loss) * examples as f64;
            p.bar.step(examples, loss);
            let step = record::Step {
                epoch: p.losses.len() + 1,
                step: p.step,
                examples,
                loss,
            };
            if let Some(record) = &mut self.record {
                record.step(&step)?;
            }
        }
        self.last_read = Instant::now();
        Ok(())
    }

    /// Tells of an epoch's end and the test accuracy after it; prints its line.
    ///
    /// An epoch that Ctrl-C cut short is not counted: its accuracy is of no meaning.
    ///
    /// # Errors
    /// If the run's folder cannot be written.
    pub fn epoch(&mut self, test_acc: f64) -> Result<()> {
        self.read_losses()?;
        self.progress.bar.clear();
        if interrupted() {
            return Ok(());
        }
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
        if let Some(record) = &mut self.record {
            record.epoch(&line, &self.animator)?;
        }
        self.begin_epoch();
        Ok(())
    }

    /// Ends the run: writes the parameters where `--out` asks for it, and prints the curve and
    /// the book's last line.
    ///
    /// # Errors
    /// If the parameters cannot be written.
    pub fn finish(mut self, model: &[(String, Tensor)]) -> Result<Summary> {
        self.progress.bar.clear();
        if let Some(record) = &mut self.record {
            record.finish(model, &self.animator)?;
        }
        if let Some(trace) = self.trace.take() {
            trace.finish()?;
        }
        let p = &self.progress;
        if p.losses.len() < self.num_epochs {
            say(format_args!(
                "interrupted in epoch {} of {}, after step {}",
                p.losses.len() + 1,
                self.num_epochs,
                p.step
            ));
        }
        let columns = console::Term::stdout()
            .size_checked()
            .map_or(80, |(_, c)| c);
        if let Some(curve) = self.animator.text(0, columns.into()) {
            say(format_args!("{curve}"));
        }
        say(format_args!("{}", LastLine(&self)));
        let sec_per_epoch = self.sec_per_epoch();
        Ok(Summary {
            test_acc: self.animator.y(0).to_vec(),
            loss: self.progress.losses,
            sec_per_epoch,
        })
    }

    /// The mean over the epochs that were completed.
    fn sec_per_epoch(&self) -> f64 {
        let completed = self.progress.losses.len();
        self.timer.times().iter().take(completed).sum::<f64>() / completed.max(1) as f64
    }
}

/// `test acc: 0.84, 2.5 sec/epoch on [cpu(0), cpu(1)]`, as in the book.
struct LastLine<'a>(&'a Run);

impl fmt::Display for LastLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let run = self.0;
        match run.animator.y(0).last() {
            Some(test_acc) => {
                write!(
                    f,
                    "test acc: {test_acc:.2}, {:.1} sec/epoch",
                    run.sec_per_epoch()
                )?;
            }
            None => write!(f, "test acc: none, no epoch was completed,")?,
        }
        write!(f, " on {}", run.places())?;
        if run.synthetic {
            write!(f, " (synthetic data)")?;
        }
        Ok(())
    }
}

impl Progress {
    fn new() -> Self {
        Self {
            bar: Bar::hidden(),
            step: 0,
            given: 0,
            examples: 0,
            loss_sum: 0.0,
            losses: Vec::new(),
        }
    }

    /// The epoch that ended, its mean loss, and how many examples it had.
    fn end_epoch(&mut self) -> (usize, f64, usize) {
        let examples = std::mem::take(&mut self.examples);
        let loss = std::mem::take(&mut self.loss_sum) / examples as f64;
        self.given = 0;
        self.losses.push(loss);
        (self.losses.len(), loss, examples)
    }
}

/// A line for each GPU: its name, its memory, and how many replicas share it.
fn gpu_facts(devices: &[Device]) -> Vec<String> {
    let mut gpus: Vec<(String, usize, Option<String>)> = Vec::new();
    for (i, device) in devices.iter().enumerate().filter(|(_, d)| !d.is_cpu()) {
        let name = device_name(i, device);
        match gpus.iter_mut().find(|gpu| gpu.0 == name) {
            Some(gpu) => gpu.1 += 1,
            None => gpus.push((name, 1, gpu::facts(device))),
        }
    }
    let line = |(name, replicas, facts): (String, usize, Option<String>)| {
        let shared = match replicas {
            1 => String::new(),
            n => format!(", shared by {n} replicas"),
        };
        Some(format!("{name}: {}{shared}", facts?))
    };
    gpus.into_iter().filter_map(line).collect()
}

fn find_devices(process: Process, options: &Options) -> Result<(Vec<Device>, Option<String>)> {
    let found = find(options.device, options.gpus, process);
    let why = || format!("--device {:?} cannot be used", options.device).to_lowercase();
    found
        .with_context(why)
        .map_err(|e| BadInput::from(e).into())
}

fn check_batch_size(batch_size: usize, k: usize) -> Result<()> {
    ensure!(
        batch_size >= k,
        "a minibatch of {batch_size} cannot be split over {k} devices: \
         --batch-size must be at least --gpus"
    );
    Ok(())
}

/// A GPU cannot be left without an example: CUDA has no empty memory.
fn check_last_batch(iter: &DataIter, which: &str, k: usize) -> Result<()> {
    let (examples, batch_size) = (iter.num_examples(), iter.batch_size());
    let last = examples - (iter.num_batches() - 1) * batch_size;
    ensure!(
        last >= k,
        "the last minibatch of the {examples} {which} examples has {last}, too few for {k} replicas on \
         GPUs: choose another --batch-size than {batch_size}"
    );
    Ok(())
}

/// What can be said of the files that were named without reading them.
fn check_paths(options: &Options) -> Result<()> {
    if let Some(file) = &options.init {
        ensure!(
            file.is_file(),
            "--init {}: there is no such file",
            file.display()
        );
    }
    if QUIET.load(Ordering::Relaxed) {
        return Ok(());
    }
    if let Some(folder) = &options.out {
        Record::check(folder, options.overwrite)?;
    }
    match &options.trace {
        Some(file) => Trace::check(file, options.overwrite),
        None => Ok(()),
    }
}

fn load(options: &Options) -> Result<Dataset> {
    let options = options.dataset();
    let named = options.names_a_source();
    dataset::load(&options).map_err(|e| if named { BadInput::from(e).into() } else { e })
}

/// Whether another process speaks for this one.
static QUIET: AtomicBool = AtomicBool::new(false);

impl Process {
    /// Its part of the cores, where others use the same.
    fn share_of_cores(self) -> Option<usize> {
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        (self.on_machine > 1).then(|| (all / self.on_machine).max(1))
    }
}

/// Prints a line, once where several processes train together. A reader who closed the pipe (`… | head`) ends nothing.
pub fn say(line: fmt::Arguments<'_>) {
    if !QUIET.load(Ordering::Relaxed) {
        let _ = bar::above(|_| writeln!(std::io::stdout(), "{line}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_last_minibatch_that_is_too_short_for_the_gpus_is_named() -> Result<()> {
        let data = dataset::load(&dataset::Options {
            data: Some(dataset::Data::Synthetic),
            limit_train: Some(17),
            limit_test: Some(16),
            ..dataset::Options::default()
        })?;
        let (train_iter, test_iter) = data.iters(8)?;
        let error = check_last_batch(&train_iter, "training", 2).unwrap_err();
        assert!(
            error.to_string().contains("has 1, too few for 2"),
            "{error}"
        );
        check_last_batch(&train_iter, "training", 1)?;
        check_last_batch(&test_iter, "test", 8)
    }
}
