//! A run from its first line to its last: what both programs do around their training loop.
//!
//! The loop itself is each program's own; it tells the run of every step and every epoch.

mod files;
mod progress;
mod resume;
mod settings;
mod start;

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use candle_core::{Device, Tensor};
use d2l::{Animator, Timer, try_share_cores};
use dataset::{DataIter, Dataset};
use training::{BatchLoss, Unread, weights};

use crate::bad_input::BadInput;
use crate::bar::{Bar, Plan};
use crate::checkpoint::Header;
use crate::interrupt::{self, interrupted};
use crate::lines::{Epoch, Lines, Sizes, Step};
use crate::loss_curve::LossCurve;
use crate::options::{Book, Options};
use crate::out_of_memory;
use crate::process::Process;
use crate::record::Record;
use crate::say::{one_line, say, set_quiet};
use crate::trace::Trace;
use crate::train_state::{TrainState, largest_gradient};
use files::Files;
use progress::Progress;
use resume::Resumed;
use settings::Settings;

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
    process: Process,
    options: Options,
    settings: Settings,
    /// The names of the tensors that are state.
    names: Vec<String>,
    /// What the run goes on from, until it does.
    resumed: Option<Resumed>,
    extra_state: HashMap<String, Tensor>,
    animator: Animator,
    progress: Progress,
    unread: Unread,
    files: Files,
}

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
        if k == 1 {
            functional::one_stream(&devices[0]); // more have a communication stream each
        }
        let batch_size = options.batch_size.unwrap_or((book.batch_size)(k));
        start::check_batch_size(batch_size, k).map_err(BadInput::from)?;
        let threads = options.threads.or_else(|| process.share_of_cores());
        let share = try_share_cores(threads, own)?;
        let unused = options.threads.filter(|n| *n > d2l::cores());
        let unused =
            unused.map(|n| format!("--threads {n}: only {} cores are there", d2l::cores()));
        start::check_paths(options).map_err(BadInput::from)?;
        let resumed = options.resume.as_deref();
        let resumed = resumed.map(|folder| Resumed::load(folder, process.rank == 0));
        let resumed = resumed.transpose().map_err(BadInput::from)?;
        if let Some(Resumed { from, .. }) = &resumed {
            functional::set_algorithms(&from.header.algorithms);
        }
        let data = start::load(options)?;
        let (train_iter, test_iter) = start::iters(&data, batch_size, &devices, process)?;
        let mut run = Self {
            settings: Settings::default(),
            train_iter,
            test_iter,
            batch_size,
            lr: options.lr.unwrap_or((book.lr)(k)),
            num_epochs: options.epochs,
            seed: options.seed,
            timer: Timer::new(),
            process,
            options: options.clone(),
            names: Vec::new(),
            resumed,
            extra_state: HashMap::new(),
            animator: Animator::new("epoch", &["test acc"], (1.0, options.epochs as f64)),
            progress: Progress::default(),
            unread: Unread::default(),
            files: Files::default(),
            devices,
        };
        run.settings = run.settings_of(book, &data);
        let no_bf16 = start::no_bf16_on_the_cpu(options, &run.devices);
        for note in [note, unused, no_bf16] {
            note.into_iter()
                .for_each(|note| say(format_args!("{note}")));
        }
        run.print_start(book, share, &data);
        Ok(run)
    }

    fn print_start(&self, book: &Book, share: usize, data: &Dataset) {
        let (network, places) = (book.network, self.places());
        match self.devices[0].is_cpu() {
            true => say(format_args!(
                "{network} on {places}, {share} of {} cores each",
                d2l::cores()
            )),
            false => say(format_args!("{network} on {places}")),
        }
        for line in start::gpu_facts(&self.devices) {
            say(format_args!("{line}"));
        }
        say(format_args!(
            "batch size {}, lr {}, epochs {}, seed {}",
            self.batch_size, self.lr, self.num_epochs, self.seed
        ));
        say(format_args!(
            "{}",
            one_line(format_args!("{}", data.source))
        ));
        say(format_args!(
            "{} training and {} test examples",
            self.train_iter.num_examples(),
            self.test_iter.num_examples()
        ));
    }

    /// What the result of the run depends on, a line each: a checkpoint of another run is refused, and processes that
    /// train together have it in common.
    pub fn settings(&self) -> String {
        self.settings.to_string()
    }

    /// Adds a line to [`settings`](Self::settings).
    pub fn depends_on(&mut self, line: String) {
        self.settings.lines.push(line);
    }

    fn settings_of(&self, book: &Book, data: &Dataset) -> Settings {
        let options = &self.options;
        let device = match self.devices[0].is_cpu() {
            true => "cpu".to_owned(),
            false => format!(
                "cuda, {:?}, deterministic: {}",
                options.precision, options.deterministic
            )
            .to_lowercase(),
        };
        // sums of sums have other last digits
        let own = self.devices.len();
        let replicas = match (own, self.process.of) {
            (_, 1) | (1, _) => (own * self.process.of).to_string(),
            (_, n) => format!("{own} in each of {n} processes"),
        };
        let init = options.init.as_deref().map(Path::display);
        let init = init.map_or("random".to_owned(), |file| file.to_string());
        let order = match options.no_shuffle {
            true => "as in the file",
            false => "shuffled",
        };
        let synthetic = data.source.is_synthetic();
        let drawn = if synthetic { "synthetic " } else { "" };
        let checksums = [&data.train, &data.test].map(|split| split.checksum());
        let lines = vec![
            format!("network {}", book.network),
            format!("replicas {replicas}"),
            format!("device {device}"),
            format!("batch size {}", self.batch_size),
            format!("lr {}", self.lr),
            format!("epochs {}", self.num_epochs),
            format!("seed {}", self.seed),
            format!("init {init}"),
            format!("training examples {}", self.train_iter.num_examples()),
            format!("test examples {}", self.test_iter.num_examples()),
            format!("order {order}"),
            format!(
                "images {drawn}{} {:08x} {:08x}",
                options.dataset, checksums[0], checksums[1]
            ),
        ];
        Settings { lines, synthetic }
    }

    /// The devices and processes, as they are printed.
    fn places(&self) -> String {
        start::places(&self.devices, self.process)
    }

    /// When checkpoints are taken and replicas compared, which processes that train together do at the same time.
    pub fn keeping(&self) -> String {
        format!(
            "--out or --resume: {}, --checkpoint-every {:?}, --check-replicas: {}",
            self.options.folder().is_some(),
            self.options.checkpoint_every,
            self.options.check_replicas
        )
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
        let writes = self.process.rank == 0 && !interrupted();
        let params = match self.resumed.take() {
            Some(resumed) => {
                let cannot = format!("--resume {}", resumed.folder.path.display());
                self.go_on(resumed, &tensors, writes).context(cannot)
            }
            None => self.begin(tensors, writes),
        };
        let params = params.map_err(BadInput::from)?;
        if writes {
            self.files.trace = self.options.trace.as_deref().map(Trace::begin);
        }
        if self.process.rank == 0 {
            self.progress.bar = Bar::on_stderr(Plan {
                epochs: self.num_epochs,
                train_examples: self.train_iter.num_examples(),
                test_examples: self.test_iter.num_examples(),
                test_seconds: None,
            });
        }
        self.begin_epoch();
        Ok(params)
    }

    /// Begins the run. What was there is not touched before every option has been tried.
    fn begin(&mut self, tensors: Vec<(String, Tensor)>, writes: bool) -> Result<Vec<Tensor>> {
        let params: Vec<Tensor> = match &self.options.init {
            Some(file) => weights::load(file, &tensors)?,
            None => tensors.into_iter().map(|(_, tensor)| tensor).collect(),
        };
        if !writes {
            return Ok(params);
        }
        let out = self.options.out.as_deref();
        let folder = out.map(|path| Record::take(path, self.options.overwrite));
        let folder = folder.transpose()?;
        self.try_trace()?;
        if let Some(folder) = folder {
            let (header, tensors) = (self.header(0.0), self.named(params.clone()));
            let record = Record::begin(folder, self.sizes(), self.loss_curve(), &header, &tensors);
            self.files.record = Some(record?);
        }
        Ok(params)
    }

    fn try_trace(&self) -> Result<()> {
        let run = self.options.folder();
        let trace = self.options.trace.as_deref();
        trace.map_or(Ok(()), |file| Trace::try_files(file, run))
    }

    fn sizes(&self) -> Sizes {
        Sizes {
            examples: self.train_iter.num_examples(),
            batch: self.batch_size,
        }
    }

    /// Takes up the run where a checkpoint was taken; one that went to its end is left as it is.
    fn go_on(
        &mut self,
        resumed: Resumed,
        tensors: &[(String, Tensor)],
        writes: bool,
    ) -> Result<Vec<Tensor>> {
        let Resumed { folder, mut from } = resumed;
        self.settings.check_same(&from.header.settings)?;
        let params = weights::take_all(&mut from.tensors, tensors)?;
        from.lines.check(self.sizes(), self.num_epochs)?;
        let loss = self.catch_up(&from.lines, from.header.seconds)?;
        let (completed, all) = (from.lines.epochs.len(), self.num_epochs);
        let finished = completed == all && Record::is_finished(&folder);
        let path = folder.path.to_owned();
        if writes {
            self.try_trace()?;
        }
        if writes && !finished {
            self.files.record = Some(Record::go_on(folder, self.sizes(), loss, &from)?);
        }
        let (folder, step, epoch) = (path.display(), from.lines.losses.len(), completed + 1);
        match completed < all {
            _ if finished => say(format_args!(
                "the run in {folder} is complete; nothing to do"
            )),
            true => say(format_args!(
                "resuming {folder} in epoch {epoch} of {all}, after step {step}"
            )),
            false => say(format_args!(
                "the run in {folder} has completed all epochs; writing its last files"
            )),
        }
        resume::tell_versions(&from.header.version);
        self.extra_state = from.tensors;
        Ok(params)
    }

    /// Stands where a run stands that has had these steps and epochs; the loss that it has seen.
    fn catch_up(&mut self, lines: &Lines, seconds: f64) -> Result<LossCurve> {
        let (steps, epochs) = (lines.losses.len(), &lines.epochs);
        let begun = steps - epochs.len() * self.sizes().steps_per_epoch();
        self.train_iter = (self.train_iter.clone()).starting_at(epochs.len() + 1, begun);
        let times = epochs.iter().map(|epoch| epoch.seconds).collect();
        self.timer = Timer::after(times, seconds);
        self.files.checkpointed = steps;
        for epoch in epochs {
            self.animator.add(epoch.epoch as f64, &[epoch.test_acc])?;
        }
        let mut loss = self.loss_curve();
        for step in lines.steps(self.sizes()) {
            self.progress.take(step.examples);
            self.progress.step(step.examples, step.loss);
            loss.add(step.loss)?;
            let last = step.step == step.epoch * self.train_iter.num_batches();
            if last && step.epoch <= epochs.len() {
                self.progress.end_epoch();
            }
        }
        Ok(loss)
    }

    /// What a checkpoint has beside the tensors of [`init`](Self::init), for the network to take up; empty where the
    /// run begins.
    pub fn take_extra_state(&mut self) -> HashMap<String, Tensor> {
        std::mem::take(&mut self.extra_state)
    }

    fn loss_curve(&self) -> LossCurve {
        LossCurve::new(self.num_epochs, self.train_iter.num_batches())
    }

    fn named(&self, tensors: Vec<Tensor>) -> Vec<(String, Tensor)> {
        self.names.iter().cloned().zip(tensors).collect()
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
    pub fn step(&mut self, loss: BatchLoss, state: &impl TrainState) -> Result<()> {
        self.files.trace = self.files.trace.take().and_then(Trace::step);
        self.progress.take(loss.examples());
        let last = self.progress.given >= self.train_iter.num_examples();
        if self.unread.push(loss) || last {
            self.read_losses(state)?;
        }
        let since = self.progress.taken - self.files.checkpointed;
        let is_time = (self.options.checkpoint_every).is_some_and(|n| since >= n);
        let keeps = is_time && state.is_between_steps();
        if keeps || self.options.check_replicas {
            self.check_replicas(state)?;
        }
        if keeps {
            self.checkpoint(state, self.timer.running())?;
        }
        if last {
            self.progress.bar.test();
        }
        Ok(())
    }

    /// Reads the losses that are still on the devices; shows and records their steps.
    fn read_losses(&mut self, state: &impl TrainState) -> Result<()> {
        for (examples, loss) in self.unread.read()? {
            let step = self.progress.step(examples, loss);
            if let Some(record) = &mut self.files.record {
                record.step(&step)?;
            }
            if !loss.is_finite() {
                let (Step { epoch, step, .. }, lr) = (step, self.lr);
                let what = format!("the loss is {loss} in step {step} (epoch {epoch}, lr {lr:?})");
                bail!(self.diverged(&what, examples, state)?);
            }
        }
        Ok(())
    }

    /// Why the run ends where numbers are not finite any more; `examples` is how many the last step had.
    fn diverged(&mut self, what: &str, examples: usize, state: &impl TrainState) -> Result<String> {
        if let Some(record) = &mut self.files.record {
            let _ = record.flush(); // there is something worse to say
        }
        let largest = largest_gradient(&state.gradients(&self.names, examples)?)?;
        let (step, kept) = (self.progress.taken, self.files.has_kept());
        Ok(format!(
            "{what}; gradients of step {step}: {largest}; try a smaller --lr{kept}"
        ))
    }

    /// Names what is trained, of which every number has to be finite.
    fn named_finite(&mut self, state: &impl TrainState) -> Result<Vec<(String, Tensor)>> {
        let tensors = self.named(state.tensors()?);
        for (name, tensor) in &tensors {
            if let Err(error) = weights::check_finite(name, tensor) {
                let (step, lr) = (self.progress.taken, self.lr);
                let what = format!("after step {step}, at lr {lr:?}: {error}");
                bail!(self.diverged(&what, self.progress.examples_of_step, state)?);
            }
        }
        Ok(tensors)
    }

    /// A loss that is no number says more than replicas which differ after it.
    fn check_replicas(&mut self, state: &impl TrainState) -> Result<()> {
        self.read_losses(state)?;
        let (step, kept) = (self.progress.taken, self.files.has_kept());
        let agree = state.check_replicas(&self.names);
        agree.map_err(|error| anyhow!("after step {step}: {error:#}{kept}"))
    }

    /// Keeps a checkpoint where `--out` asks for it, of replicas that agree. All processes come here, one writes.
    fn checkpoint(&mut self, state: &impl TrainState, seconds: f64) -> Result<()> {
        if self.options.folder().is_none() {
            return Ok(());
        }
        let mut tensors = self.named_finite(state)?;
        tensors.extend(state.extra_state()?);
        let header = self.header(seconds);
        self.files.checkpointed = self.progress.taken;
        if let Some(record) = &mut self.files.record {
            record.checkpoint(&header, &tensors);
        }
        Ok(())
    }

    /// What a checkpoint says of the run, which has trained so many seconds in this epoch.
    fn header(&self, seconds: f64) -> Header {
        Header {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            settings: self.settings(),
            arguments: self.options.arguments.clone(),
            seconds,
            algorithms: functional::algorithms(),
        }
    }

    /// Tells of an epoch's end, the test accuracy after it, and what is trained; prints its line.
    ///
    /// An epoch that Ctrl-C cut short is not counted: its accuracy is of no meaning.
    ///
    /// # Errors
    /// If the replicas differ, or the loss is no finite number any more.
    pub fn epoch(&mut self, test_acc: f64, state: &impl TrainState) -> Result<()> {
        self.read_losses(state)?;
        self.progress.bar.clear();
        if interrupted() {
            return Ok(());
        }
        self.check_replicas(state)?;
        let seconds = self.timer.times().last().copied().unwrap_or(0.0);
        let (epoch, loss, examples) = self.progress.end_epoch();
        self.animator.add(epoch as f64, &[test_acc])?;
        let rate = examples as f64 / seconds;
        say(format_args!(
            "epoch {epoch}, loss {loss:.3}, test acc {test_acc:.3}, \
             {seconds:.1} sec, {rate:.0} examples/sec"
        ));
        if let Some(record) = &mut self.files.record {
            let line = Epoch {
                epoch,
                loss,
                test_acc,
                seconds,
            };
            record.epoch(line, &self.animator)?;
        }
        self.checkpoint(state, 0.0)?;
        self.begin_epoch();
        Ok(())
    }

    /// Ends the run: writes the parameters where `--out` asks for it, and prints the curve and
    /// the book's last line.
    ///
    /// # Errors
    /// If the parameters cannot be written.
    pub fn finish(mut self, state: &impl TrainState) -> Result<Summary> {
        self.progress.bar.clear();
        let completed = self.progress.losses.len();
        let is_new = completed < self.num_epochs && self.progress.taken > self.files.checkpointed;
        if is_new && state.is_between_steps() {
            self.check_replicas(state)?;
            let seconds = self.timer.times().get(completed).copied();
            self.checkpoint(state, seconds.unwrap_or(0.0))?;
        }
        let model = self.named_finite(state)?;
        let written = match &mut self.files.record {
            Some(record) => record.finish(&model, &self.animator),
            None => Ok(()),
        };
        self.files.trace = None; // which writes it
        let times = self.timer.times().iter().take(completed);
        let summary = Summary {
            test_acc: self.animator.y(0).to_vec(),
            loss: self.progress.losses.clone(),
            sec_per_epoch: times.sum::<f64>() / completed.max(1) as f64,
        };
        self.print_end(&summary);
        written.map(|()| summary)
    }

    fn print_end(&self, summary: &Summary) {
        let step = self.progress.step;
        let completed = self.progress.losses.len();
        if completed < self.num_epochs {
            let go_on = match &self.files.record {
                Some(Record { folder, kept, .. }) if *kept == step => {
                    format!("; continue with --resume {}", folder.path.display())
                }
                Some(Record { folder, kept, .. }) => {
                    let folder = folder.path.display();
                    format!("; --resume {folder} continues after step {kept}")
                }
                None => String::new(),
            };
            say(format_args!(
                "interrupted in epoch {} of {}, after step {step}{go_on}",
                completed + 1,
                self.num_epochs
            ));
        }
        let columns = console::Term::stdout().size_checked();
        let columns = columns.map_or(80, |(_, columns)| columns.into());
        if let Some(curve) = self.animator.text(0, columns) {
            say(format_args!("{curve}"));
        }
        // `test acc: 0.84, 2.5 sec/epoch on [cpu(0), cpu(1)]`, as in the book
        let result = match summary.test_acc.last() {
            Some(acc) => format!("{acc:.2}, {:.1} sec/epoch", summary.sec_per_epoch),
            None => "none, no epoch was completed,".to_owned(),
        };
        let source = match self.settings.synthetic {
            true => " (synthetic data)",
            false => "",
        };
        let places = self.places();
        say(format_args!("test acc: {result} on {places}{source}"));
    }
}
