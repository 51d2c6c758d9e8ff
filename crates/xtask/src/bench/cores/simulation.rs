//! Plays a recorded step on more cores, by the rules of `functional`'s thread pool. It is arithmetic on recorded times:
//! it starts no thread and measures nothing.

use std::collections::BTreeMap;

use super::recording::{Item, Label, Operation, Pass, Recording};

/// A thread gives work to another one that sleeps, or gets its answer, ns.
pub const HAND_OFF: f64 = 15e3;
/// Number of times in a step: a job for the replica, a bucket for its reducer, and the two answers.
pub const HAND_OFFS: f64 = 4.0;
/// A call on several threads, beside its tasks, ns.
pub const CALL: f64 = 300.0;
/// The same, for each of its threads.
pub const CALL_EACH: f64 = 100.0;
/// A helper that has no work for this time sleeps, ns.
pub const SLEEPS_AFTER: f64 = 500e3;
/// A helper that sleeps starts later by this time, ns.
pub const WAKES_IN: f64 = 30e3;
/// The same, for each helper.
pub const WAKES_IN_EACH: f64 = 3e3;

/// The memory of a machine and its last level of cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// Of which machine.
    pub name: &'static str,
    /// Bytes in a nanosecond, which is GB/s.
    pub bandwidth: f64,
    /// Bytes of the cache.
    pub cache: f64,
}

/// A desktop with two channels of DDR5.
pub const DESKTOP: Memory = Memory {
    name: "desktop",
    bandwidth: 70.0,
    cache: 32e6,
};

/// A server with one socket.
pub const SERVER: Memory = Memory {
    name: "server",
    bandwidth: 250.0,
    cache: 96e6,
};

/// The machine on which a step is played.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// The threads of the replica, each on a core of its own.
    pub threads: usize,
    /// The replicas that do the same at the same time, and share the memory.
    pub replicas: usize,
    /// The limits of the memory; with none, it has no limit.
    pub memory: Option<Memory>,
}

/// A step on several cores. Times are in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulated {
    /// The time of the step.
    pub ns: f64,
    /// The time of all cores in which they did none of the recorded work, by what kept them from it.
    pub idle: BTreeMap<String, f64>,
}

impl Machine {
    /// For one replica without limits of the memory.
    pub fn with_threads(threads: usize) -> Self {
        Self {
            threads,
            replicas: 1,
            memory: None,
        }
    }

    /// Plays the step of one replica.
    pub fn play(&self, recording: &Recording) -> Simulated {
        let mut step = Playing {
            threads: self.threads,
            ns: 0.0,
            serial: 0.0,
            idle: BTreeMap::new(),
        };
        let hand_offs = if recording.handed_off {
            HAND_OFFS * HAND_OFF
        } else {
            0.0
        };
        step.serial("hand-offs and the main thread", recording.main + hand_offs);
        let values = bytes_of_values(&recording.items);
        // the items of an operation follow each other
        for of_one in recording.items.chunk_by(|a, b| a.label() == b.label()) {
            let begin = step.ns;
            for item in of_one {
                step.item(item);
            }
            if let Some(memory) = self.memory {
                let label = of_one[0].label();
                let bytes = self.bytes(label, memory, values, recording.parameters);
                let least = bytes / memory.bandwidth;
                step.wait("memory", least - (step.ns - begin));
            }
        }
        let Playing { ns, idle, .. } = step;
        Simulated { ns, idle }
    }

    /// The bytes that all replicas move between cores and memory in an operation. Values of up to a quarter of the cache
    /// are still there when the next operation reads them. What forward leaves for backward is not, unless all fits.
    fn bytes(&self, label: &Label, memory: Memory, values: f64, parameters: usize) -> f64 {
        let k = self.replicas as f64;
        let bytes = match label {
            // parameters there and back, and gradients
            Label::Span(name) if name == "update" => {
                let bytes = 12.0 * parameters as f64;
                if k * bytes > memory.cache { bytes } else { 0.0 }
            }
            Label::Operation(operation) if k * values > memory.cache => {
                4.0 * elements_moved(operation, memory.cache / 4.0 / k)
            }
            _ => 0.0,
        };
        k * bytes
    }
}

/// The bytes of the results of all operations.
fn bytes_of_values(items: &[Item]) -> f64 {
    let operations = items.chunk_by(|a, b| a.label() == b.label());
    let elements = operations.map(|items| match items[0].label() {
        Label::Operation(operation) if operation.pass == Pass::Forward => operation.elements,
        _ => 0,
    });
    4.0 * elements.sum::<usize>() as f64
}

/// The elements that an operation moves between cores and memory, if `kept` bytes of one value stay in the cache. A
/// result is read into the cache before it is written, and written back.
fn elements_moved(operation: &Operation, kept: f64) -> f64 {
    let y = operation.elements as f64;
    let inputs: Vec<f64> = operation.inputs.iter().map(|n| *n as f64).collect();
    let x = inputs.first().copied().unwrap_or(0.0);
    let others: f64 = inputs.iter().skip(1).sum();
    let is_norm = operation.kernel == "Norm";
    let sum = if is_norm && others > y { y } else { 0.0 }; // a batch norm to which another value is added
    let is_convolution =
        ["ConvolutionKernel", "Pooled", "OneChannel"].contains(&operation.kernel.as_str());
    let is_kept = 4.0 * x.max(y) <= kept;
    match operation.pass {
        Pass::Forward if is_kept => 2.0 * y + sum,
        Pass::Backward if is_kept => x + sum, // what forward saved
        // the sums read x too
        Pass::Forward if is_norm => 2.0 * x + 2.0 * y + sum,
        Pass::Forward => x + others + 2.0 * y,
        // the sums read x and dy, and then dx is computed from both
        Pass::Backward if is_norm => 5.0 * y + 3.0 * sum,
        // dx from dy, and dw from x and dy
        Pass::Backward if is_convolution => 2.0 * y + 3.0 * x + 2.0 * others,
        Pass::Backward => x + 2.0 * y + others,
    }
}

/// A step while it is played.
struct Playing {
    threads: usize,
    /// The time since its begin.
    ns: f64,
    /// The time since the helpers had work.
    serial: f64,
    idle: BTreeMap<String, f64>,
}

impl Playing {
    fn item(&mut self, item: &Item) {
        match item {
            Item::Serial { label, ns } => {
                self.serial(&format!("between calls: {}", label.name()), *ns);
            }
            Item::Call {
                label,
                place,
                tasks,
            } => {
                let kind = format!("{}, {}", label.name(), short(place));
                if tasks.len() == 1 || self.threads == 1 {
                    self.serial(&kind, item.ns());
                } else {
                    self.call(kind, tasks);
                }
            }
        }
    }

    /// Work of the first thread alone.
    fn serial(&mut self, kind: &str, ns: f64) {
        self.ns += ns;
        self.serial += ns;
        self.add_idle(kind.to_owned(), (self.threads - 1) as f64 * ns);
    }

    fn call(&mut self, kind: String, tasks: &[f64]) {
        let threads = self.threads as f64;
        let late = if self.serial > SLEEPS_AFTER {
            WAKES_IN + WAKES_IN_EACH * (threads - 1.0)
        } else {
            0.0
        };
        let ns = run(tasks, self.threads, late);
        let begin_and_end = CALL + CALL_EACH * threads;
        self.ns += ns + begin_and_end;
        self.serial = 0.0;
        self.add_idle(kind, threads * ns - tasks.iter().sum::<f64>());
        self.add_idle("begin and end of calls".to_owned(), threads * begin_and_end);
    }

    /// All threads wait.
    fn wait(&mut self, kind: &str, ns: f64) {
        if ns > 0.0 {
            self.ns += ns;
            self.add_idle(kind.to_owned(), self.threads as f64 * ns);
        }
    }

    fn add_idle(&mut self, kind: String, ns: f64) {
        *self.idle.entry(kind).or_default() += ns;
    }
}

/// The time until the last of the tasks of a call ends. Block t of the tasks belongs to thread t; a thread that is
/// through with its own takes those that are left of the next thread, and so on. Helpers, which are all threads but the
/// first, start `late`.
fn run(tasks: &[f64], threads: usize, late: f64) -> f64 {
    let first = |thread: usize| thread * tasks.len() / threads;
    let mut next: Vec<usize> = (0..threads).map(first).collect();
    let mut free: Vec<f64> = (0..threads)
        .map(|t| if t == 0 { 0.0 } else { late })
        .collect();
    let mut block: Vec<usize> = (0..threads).collect();
    let mut last = 0.0f64;
    for _ in tasks {
        let mut thread = 0;
        for other in 1..threads {
            if free[other] < free[thread] {
                thread = other;
            }
        }
        let of = &mut block[thread];
        while next[*of] == first(*of + 1) {
            *of = (*of + 1) % threads;
        }
        free[thread] += tasks[next[*of]];
        next[*of] += 1;
        last = last.max(free[thread]);
    }
    last
}

impl Label {
    /// Its name in the report.
    fn name(&self) -> String {
        match self {
            Label::Operation(operation) => {
                let pass = match operation.pass {
                    Pass::Forward => "forward",
                    Pass::Backward => "backward",
                };
                format!("{pass} {}", operation.kernel)
            }
            Label::Span(name) => name.clone(),
            Label::Rest => "compile and the rest".to_owned(),
        }
    }
}

/// A place in `functional`, or another one as it is.
fn short(place: &str) -> &str {
    let in_crate = place
        .split_once("functional/src/")
        .map_or(place, |(_, after)| after);
    in_crate.strip_prefix("cpu/").unwrap_or(in_crate)
}

/// A step of `k` replicas, each of which has its part of the minibatch and of the cores.
#[derive(Clone, Debug)]
pub struct Replicas {
    /// The number of replicas.
    pub k: usize,
    /// The step of one replica on its part of the minibatch, recorded alone.
    pub shard: Recording,
    /// The step of all replicas: what the main thread and the sums take.
    pub all: Recording,
}

impl Replicas {
    /// The time of the step, ns. Sums of reducers are not hidden behind the backward pass here.
    pub fn play(&self, cores: usize, memory: Option<Memory>) -> f64 {
        let machine = Machine {
            threads: (cores / self.k).max(1),
            replicas: self.k,
            memory,
        };
        let recording = Recording {
            main: self.all.main,
            handed_off: self.all.handed_off,
            ..self.shard.clone()
        };
        machine.play(&recording).ns + self.all_reduce(memory)
    }

    /// Each reducer sums its share. All gradients are read and written once.
    fn all_reduce(&self, memory: Option<Memory>) -> f64 {
        let k = self.k as f64;
        let gradients = 4.0 * k * self.shard.parameters as f64;
        let least = match memory {
            Some(memory) if gradients > memory.cache => 2.0 * gradients / memory.bandwidth,
            _ => 0.0,
        };
        let of_main = self.all.sums == 0.0; // they are in the main thread's time
        if of_main {
            0.0
        } else {
            least.max(self.all.sums / k)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serial(ns: f64) -> Item {
        let label = Label::Rest;
        Item::Serial { label, ns }
    }

    fn call(tasks: &[f64]) -> Item {
        Item::Call {
            label: Label::Rest,
            place: "crates/data-parallel-functional/src/cpu/conv.rs:1".to_owned(),
            tasks: tasks.to_vec(),
        }
    }

    fn recording(items: Vec<Item>) -> Recording {
        Recording {
            items,
            main: 0.0,
            handed_off: true,
            sums: 0.0,
            parameters: 0,
            steps: 1,
            look: 0.0,
        }
    }

    /// Without the hand-offs.
    fn ns(items: Vec<Item>, threads: usize) -> f64 {
        Machine::with_threads(threads).play(&recording(items)).ns - HAND_OFFS * HAND_OFF
    }

    #[test]
    fn threads_share_out_the_tasks() {
        for (tasks, threads, expected) in [
            (&[5.0, 5.0, 5.0, 5.0][..], 2, 10.0),
            (&[5.0, 5.0, 5.0, 5.0], 3, 10.0),
            (&[5.0, 5.0, 5.0, 5.0], 4, 5.0),
            (&[5.0, 5.0, 5.0, 5.0], 8, 5.0),
            // the second thread is through at 2, and takes task 1, at which the first has not begun
            (&[9.0, 1.0, 1.0, 1.0], 2, 9.0),
            // tasks 0 and 1 belong to the first thread: it begins the long one at 1
            (&[1.0, 9.0, 1.0, 1.0], 2, 10.0),
            // the first thread is through at 2, and takes task 3, at which the second has not begun
            (&[1.0, 1.0, 9.0, 4.0], 2, 9.0),
        ] {
            assert_eq!(run(tasks, threads, 0.0), expected, "{tasks:?} on {threads}");
        }
    }

    #[test]
    fn helpers_that_sleep_come_late() {
        assert_eq!(run(&[5.0, 5.0, 5.0, 5.0], 2, 7.0), 15.0);
        // all is done before they come
        assert_eq!(run(&[5.0, 5.0], 2, 100.0), 10.0);
        let tasks = [1e6; 2];
        let awake = ns(vec![serial(4e5), call(&tasks)], 2);
        let slept = ns(vec![serial(6e5), call(&tasks)], 2);
        assert_eq!(slept - awake, 2e5 + WAKES_IN + WAKES_IN_EACH);
    }

    #[test]
    fn serial_parts_take_as_long_on_all_cores() {
        let items = || vec![serial(7.0), call(&[5.0; 4]), serial(2.0), call(&[3.0])];
        assert_eq!(ns(items(), 1), 7.0 + 20.0 + 2.0 + 3.0);
        assert_eq!(
            ns(items(), 2),
            7.0 + 10.0 + 2.0 + 3.0 + CALL + 2.0 * CALL_EACH
        );
        assert_eq!(
            ns(items(), 4),
            7.0 + 5.0 + 2.0 + 3.0 + CALL + 4.0 * CALL_EACH
        );
    }

    #[test]
    fn idle_time_and_work_are_the_time_of_all_cores() {
        let items = vec![
            serial(6e5),
            call(&[5e3, 1e3, 8e3]),
            serial(2e3),
            call(&[3e4; 9]),
        ];
        let recording = recording(items);
        let work = Machine::with_threads(1).play(&recording).ns;
        for threads in [1, 2, 5, 16] {
            let Simulated { ns, idle } = Machine::with_threads(threads).play(&recording);
            let all = work + idle.values().sum::<f64>();
            assert!(
                (all - threads as f64 * ns).abs() < 1e-3,
                "{threads}: {idle:?}"
            );
        }
    }

    #[test]
    fn memory_is_a_limit_of_each_operation() {
        let operation = |pass| {
            Label::Operation(Operation {
                pass,
                entry: 0,
                kernel: "Relu".to_owned(),
                elements: 1_000_000,
                inputs: vec![1_000_000],
            })
        };
        let serial = |pass, ns| Item::Serial {
            label: operation(pass),
            ns,
        };
        let recording = recording(vec![
            serial(Pass::Forward, 1e6),
            serial(Pass::Backward, 100.0),
        ]);
        let memory = Memory {
            name: "a small one",
            bandwidth: 10.0,
            cache: 1e6,
        };
        let ns = |memory, replicas| {
            let machine = Machine {
                threads: 1,
                replicas,
                memory: Some(memory),
            };
            machine.play(&recording).ns - HAND_OFFS * HAND_OFF
        };
        // 12 MB each, at 10 bytes a nanosecond: 1.2 ms
        assert_eq!(ns(memory, 1), 2.4e6);
        assert_eq!(ns(memory, 2), 4.8e6);
        let large = Memory {
            cache: 5e6,
            ..memory
        };
        assert_eq!(ns(large, 1), 1e6 + 100.0); // 4 MB fit
    }

    #[test]
    fn replicas_share_cores_and_sums() {
        let shard = recording(vec![call(&[1e6; 8])]);
        let mut all = recording(Vec::new());
        (all.main, all.sums) = (1e3, 4e3);
        let replicas = Replicas { k: 2, shard, all };
        let calls = CALL + 4.0 * CALL_EACH;
        let expected = 2e6 + calls + HAND_OFFS * HAND_OFF + 1e3 + 2e3;
        assert_eq!(replicas.play(8, None), expected);
    }
}
