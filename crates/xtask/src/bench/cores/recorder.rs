//! Records a training step: a subscriber of `tracing` that reads the thread's processor time at each event and span. It
//! runs nothing, and does not know what the times are for.

use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use cpu_time::ThreadTime;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::recording::{Item, Label, Operation, Pass, Step};
use crate::bench::stats::Summary;

/// The target of the events before an operation, before a parallel call, and after each of its tasks.
const TARGET: &str = "tasks";

/// The span of a replica's work on a thread that also works for others.
const REPLICA: &str = "replica";

/// The spans that say what a thread is at.
const SPANS: [&str; 8] = [
    REPLICA,
    "split",
    "forward",
    "backward",
    "update",
    "all-reduce",
    "sum",
    "wait",
];

/// The number of looks at the clock of which the median is what one takes.
const LOOKS: usize = 10_000;

/// Keeps what all threads do, step by step.
pub struct Recorder {
    clock: fn() -> Duration,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    /// Time of a look at the clock.
    look: Duration,
    threads: Vec<ThreadLog>,
    steps: Vec<Step>,
}

/// Work of a thread since the last step.
struct ThreadLog {
    thread: Thread,
    /// The end of the last look.
    last: Duration,
    /// The time since the last item.
    since: Duration,
    /// The spans in which it is.
    spans: Vec<&'static str>,
    /// The operation at which it is; none outside of forward and backward.
    operation: Option<Operation>,
    /// The parallel call in which it is, and those in its tasks.
    calls: Vec<Call>,
    items: Vec<Item>,
}

/// A parallel call that has not ended.
struct Call {
    place: String,
    tasks: usize,
    done: Vec<f64>,
}

impl Recorder {
    /// With the processor time of each thread.
    pub fn new() -> Self {
        Self::with(|| ThreadTime::now().as_duration())
    }

    fn with(clock: fn() -> Duration) -> Self {
        let log = Mutex::default();
        Self { clock, log }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Measures what a look at the clock takes on this thread, with all that belongs to it, and forgets what was recorded.
    /// It is called where this is the subscriber. From then on that is subtracted.
    pub fn measure_look(&self) {
        tracing::trace!(name: "call", target: TARGET, place = %"none", tasks = LOOKS);
        for i in 0..LOOKS {
            tracing::trace!(name: "task", target: TARGET, i);
        }
        let mut log = self.log();
        let mut items = log.threads.iter().flat_map(|thread| &thread.items);
        let look = items.find_map(|item| match item {
            Item::Call { tasks, .. } => Some(Summary::of(tasks).median),
            Item::Serial { .. } => None,
        });
        *log = Log {
            look: Duration::from_nanos(look.unwrap_or(0.0) as u64),
            ..Log::default()
        };
    }

    /// Time that is subtracted for each look, ns.
    pub fn look_ns(&self) -> f64 {
        self.log().look.as_nanos() as f64
    }

    /// Ends a step, on the main thread. What other threads do before their first event afterwards counts for the next step.
    pub fn end_step(&self) {
        self.look(ThreadLog::end_serial);
        let mut log = self.log();
        let mut step = Step::default();
        for thread in &mut log.threads {
            let items = std::mem::take(&mut thread.items);
            let name = thread.thread.name().unwrap_or_default();
            if thread.thread.id() == thread::current().id() {
                step.main = items;
            } else if name.ends_with(", all-reduce") {
                step.reducers.push(items);
            } else if items.iter().any(|item| matches!(item, Item::Call { .. })) {
                step.replicas.push(items);
            }
        }
        log.steps.push(step);
    }

    /// All steps that have ended.
    pub fn take_steps(&self) -> Vec<Step> {
        std::mem::take(&mut self.log().steps)
    }

    /// Reads the clock, has `write` note what happened on this thread, and reads the clock again. So what happens in
    /// between does not count.
    fn look(&self, write: impl FnOnce(&mut ThreadLog)) {
        let now = (self.clock)();
        let mut log = self.log();
        let look = log.look;
        let thread = log.this_thread(now);
        thread.since += (now - thread.last).saturating_sub(look);
        write(thread);
        thread.last = (self.clock)();
    }
}

impl Log {
    fn this_thread(&mut self, now: Duration) -> &mut ThreadLog {
        let this = thread::current();
        let known = self
            .threads
            .iter()
            .position(|log| log.thread.id() == this.id());
        let i = known.unwrap_or_else(|| {
            self.threads.push(ThreadLog {
                thread: this,
                last: now,
                since: Duration::ZERO,
                spans: Vec::new(),
                operation: None,
                calls: Vec::new(),
                items: Vec::new(),
            });
            self.threads.len() - 1
        });
        &mut self.threads[i]
    }
}

impl ThreadLog {
    fn label(&self) -> Label {
        match (&self.operation, self.spans.last()) {
            (Some(operation), _) => Label::Operation(operation.clone()),
            (None, Some(span)) => Label::Span((*span).to_owned()),
            (None, None) => Label::Rest,
        }
    }

    /// The time since the last item, ns.
    fn take_since(&mut self) -> f64 {
        std::mem::take(&mut self.since).as_nanos() as f64
    }

    /// The time since the last item was no task's.
    fn end_serial(&mut self) {
        if self.calls.is_empty() {
            let label = self.label();
            let ns = self.take_since();
            self.items.push(Item::Serial { label, ns });
        }
    }

    fn begin_call(&mut self, place: String, tasks: usize) {
        self.end_serial();
        if tasks > 0 {
            let done = Vec::with_capacity(tasks);
            self.calls.push(Call { place, tasks, done });
        }
    }

    /// A task has ended. The tasks of a call in a task are a part of that task.
    fn end_task(&mut self, i: usize) {
        let ns = if self.calls.len() == 1 {
            self.take_since()
        } else {
            0.0
        };
        let Some(call) = self.calls.last_mut() else {
            return;
        };
        assert_eq!(call.done.len(), i, "the task that ended, at {}", call.place);
        call.done.push(ns);
        if call.done.len() < call.tasks {
            return;
        }
        if let Some(Call { place, done, .. }) = self.calls.pop()
            && self.calls.is_empty()
        {
            let label = self.label();
            self.items.push(Item::Call {
                label,
                place,
                tasks: done,
            });
        }
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let is_known = metadata.is_span() && SPANS.contains(&metadata.name());
        metadata.target() == TARGET || is_known && *metadata.level() == Level::INFO
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }

    /// Spans of one name need not be told apart.
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let name = span.metadata().name();
        let place = SPANS.iter().position(|known| *known == name);
        Id::from_u64(place.map_or(0, |place| place as u64) + 1)
    }

    fn enter(&self, span: &Id) {
        let name = SPANS[span.into_u64() as usize - 1];
        self.look(|thread| {
            if name == REPLICA && thread.spans.is_empty() {
                thread.since = Duration::ZERO; // the thread looked for work
            }
            thread.end_serial();
            thread.spans.push(name);
            thread.operation = None;
        });
    }

    fn exit(&self, _: &Id) {
        self.look(|thread| {
            thread.end_serial();
            thread.spans.pop();
            thread.operation = None;
        });
    }

    fn event(&self, event: &Event<'_>) {
        self.look(|thread| {
            let mut fields = Fields::default();
            event.record(&mut fields);
            match event.metadata().name() {
                "call" => thread.begin_call(fields.place, fields.tasks),
                "task" => thread.end_task(fields.i),
                "operation" => {
                    thread.end_serial();
                    thread.operation = Some(fields.operation());
                }
                _ => {}
            }
        });
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}
}

/// The fields of all events.
#[derive(Default)]
struct Fields {
    place: String,
    tasks: usize,
    i: usize,
    pass: String,
    entry: usize,
    kernel: String,
    elements: usize,
    inputs: Vec<usize>,
}

impl Fields {
    fn operation(self) -> Operation {
        let pass = match self.pass.as_str() {
            "forward" => Pass::Forward,
            _ => Pass::Backward,
        };
        Operation {
            pass,
            entry: self.entry,
            kernel: without_modules(&self.kernel),
            elements: self.elements,
            inputs: self.inputs,
        }
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        let value = value as usize;
        match field.name() {
            "tasks" => self.tasks = value,
            "i" => self.i = value,
            "entry" => self.entry = value,
            "elements" => self.elements = value,
            _ => {}
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "pass" => value.clone_into(&mut self.pass),
            "kernel" => value.clone_into(&mut self.kernel),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "place" => {
                let line = text.rsplit_once(':').map_or(&*text, |(line, _column)| line);
                line.clone_into(&mut self.place);
            }
            "inputs" => {
                let numbers = text.split(|c: char| !c.is_ascii_digit());
                self.inputs = numbers.filter_map(|n| n.parse().ok()).collect();
            }
            _ => {}
        }
    }
}

/// `a::b::Kernel<c::Cpu>` as `Kernel`.
fn without_modules(path: &str) -> String {
    let path = path.split('<').next().unwrap_or(path);
    path.rsplit("::").next().unwrap_or(path).to_owned()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use candle_core::{DType, Device, Tensor};
    use tracing::subscriber::with_default;

    use super::*;

    thread_local! {
        static NOW: Cell<u64> = const { Cell::new(0) };
    }

    fn pass(ns: u64) {
        NOW.set(NOW.get() + ns);
    }

    /// A look takes 3 ns.
    fn clock() -> Duration {
        pass(3);
        Duration::from_nanos(NOW.get())
    }

    fn call(tasks: &[u64], in_task: impl Fn()) {
        tracing::trace!(name: "call", target: TARGET, place = %"file.rs:1:2", tasks = tasks.len());
        for (i, ns) in tasks.iter().enumerate() {
            pass(*ns);
            in_task();
            tracing::trace!(name: "task", target: TARGET, i);
        }
    }

    #[test]
    fn times_are_exact_without_the_looks() {
        let recorder = Arc::new(Recorder::with(clock));
        let step = || {
            pass(100);
            tracing::info_span!("update").in_scope(|| {
                pass(7);
                call(&[10, 20, 30], || ());
                call(&[], || ());
                pass(2);
            });
            tracing::trace!(name: "operation", target: TARGET, pass = "backward", entry = 4usize,
                kernel = "a::Sum<b::Cpu>", elements = 1usize, inputs = ?[5usize, 6]);
            // the tasks of a call in a task are a part of the task
            call(&[1, 1], || call(&[40, 2], || ()));
            tracing::debug_span!("update").in_scope(|| pass(9)); // not ours
        };
        with_default(recorder.clone(), || {
            recorder.measure_look();
            assert_eq!(recorder.look_ns(), 3.0);
            recorder.end_step();
            step();
            recorder.end_step();
        });
        let steps = recorder.take_steps();
        let update = Label::Span("update".to_owned());
        let sum = Label::Operation(Operation {
            pass: Pass::Backward,
            entry: 4,
            kernel: "Sum".to_owned(),
            elements: 1,
            inputs: vec![5, 6],
        });
        let serial = |label: &Label, ns| Item::Serial {
            label: label.clone(),
            ns,
        };
        let call = |label: &Label, tasks: &[f64]| Item::Call {
            label: label.clone(),
            place: "file.rs:1".to_owned(),
            tasks: tasks.to_vec(),
        };
        let expected = [
            serial(&Label::Rest, 100.0),
            serial(&update, 7.0),
            call(&update, &[10.0, 20.0, 30.0]),
            serial(&update, 0.0),
            serial(&update, 2.0),
            serial(&Label::Rest, 0.0),
            serial(&sum, 0.0),
            call(&sum, &[43.0, 43.0]),
            serial(&sum, 9.0),
        ];
        assert_eq!(steps[1].main, expected);
    }

    #[test]
    fn a_step_has_each_operation_and_each_task_once() -> candle_core::Result<()> {
        functional::threads::set_budget(1);
        let params = scratch::get_params(&scratch::init_params(0)?, &Device::Cpu)?;
        let x = Tensor::ones((40, 1, 28, 28), DType::F32, &Device::Cpu)?;
        let y = Tensor::zeros(40, DType::U32, &Device::Cpu)?;
        let step = || {
            let y_hat = scratch::lenet(&x, &params)?;
            d2l::backward(&scratch::loss(&y_hat, &y)?.sum()?, &params)?;
            d2l::sgd(&params, 0.1, 40)
        };
        let recorder = Arc::new(Recorder::new());
        with_default(recorder.clone(), || {
            recorder.end_step();
            step()?;
            recorder.end_step();
            step()?;
            recorder.end_step();
            candle_core::Result::Ok(())
        })?;
        let steps = recorder.take_steps();
        let shape = |step: &Step| {
            let tasks = |item: &Item| match item {
                Item::Serial { .. } => 0,
                Item::Call { tasks, .. } => tasks.len(), // `end_task` has seen them in their order
            };
            let items = step.main.iter();
            items
                .map(|item| (item.label().clone(), tasks(item)))
                .collect::<Vec<_>>()
        };
        assert_eq!(shape(&steps[1]), shape(&steps[2]));
        let mut entries = Vec::new();
        for items in steps[2].main.chunk_by(|a, b| a.label() == b.label()) {
            if let Label::Operation(Operation { pass, entry, .. }) = items[0].label() {
                entries.push((*pass, *entry));
            }
        }
        let forward = entries
            .iter()
            .filter(|(pass, _)| *pass == Pass::Forward)
            .count();
        let there = (0..forward).map(|entry| (Pass::Forward, entry));
        let back = (0..forward).rev().map(|entry| (Pass::Backward, entry));
        assert_eq!(entries, there.chain(back).collect::<Vec<_>>());
        assert!(forward >= 5, "{entries:?}"); // two convolutions, two linear layers, the loss
        let in_update = |item: &&Item| *item.label() == Label::Span("update".to_owned());
        let updates = steps[2].main.iter().filter(in_update);
        let calls = updates.filter(|item| matches!(item, Item::Call { .. }));
        assert_eq!(calls.count(), params.len());
        Ok(())
    }
}
