//! Record of a training step on one thread: its parallel calls, with the processor time of each task, and the time
//! between them. Knows neither a clock nor a machine with more cores.

use std::collections::HashMap;
use std::hash::Hash;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::bench::stats::Summary;

/// A part of a step, in the order in which the thread ran them. Times are in nanoseconds of the thread's processor time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Item {
    /// Work between two parallel calls: more cores do not make it faster.
    Serial {
        /// The operation or span of the work.
        label: Label,
        /// Its time.
        ns: f64,
    },
    /// A parallel call.
    Call {
        /// The operation or span of the work.
        label: Label,
        /// The file and line of the call.
        place: String,
        /// Time of each of its tasks.
        tasks: Vec<f64>,
    },
}

/// Operation or span that a thread was at.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Label {
    /// An operation of the network.
    Operation(Operation),
    /// A span of `tracing`, such as `update`.
    Span(String),
    /// Neither.
    Rest,
}

/// An operation of the network, in one of its passes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Operation {
    /// Its pass.
    pub pass: Pass,
    /// Its place in the order of the operations.
    pub entry: usize,
    /// The type of its kernel, without modules.
    pub kernel: String,
    /// The elements of its result.
    pub elements: usize,
    /// The elements of each input.
    pub inputs: Vec<usize>,
}

/// The two passes of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Pass {
    /// From the minibatch to the loss.
    Forward,
    /// From the loss to the gradients.
    Backward,
}

/// A step on all its threads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Work of the main thread.
    pub main: Vec<Item>,
    /// Work of the threads of replicas. Those that sum gradients are not among them.
    pub replicas: Vec<Vec<Item>>,
    /// Work of the threads that only sum gradients.
    pub reducers: Vec<Vec<Item>>,
}

/// A typical step, and how it was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// The replica's part; of several replicas none.
    pub items: Vec<Item>,
    /// The main thread's time, ns; 0 where it computes the only replica itself.
    pub main: f64,
    /// True if the replica has a thread of its own, to which the main thread hands its work.
    pub handed_off: bool,
    /// The time that all reducers spent with sums, ns. A sum on the main thread is in `main`.
    pub sums: f64,
    /// The elements of the network's parameters.
    pub parameters: usize,
    /// The steps of which this is the median.
    pub steps: usize,
    /// Time of a look at the clock, ns; it is not in the other times.
    pub look: f64,
}

impl Item {
    /// The operation or span of the work.
    pub fn label(&self) -> &Label {
        match self {
            Item::Serial { label, .. } | Item::Call { label, .. } => label,
        }
    }

    /// The time on one thread, ns.
    pub fn ns(&self) -> f64 {
        match self {
            Item::Serial { ns, .. } => *ns,
            Item::Call { tasks, .. } => tasks.iter().sum(),
        }
    }
}

impl Recording {
    /// The medians over `steps`. Steps of one replica are compared item by item; those that differ in more than their
    /// times from most others are left out.
    ///
    /// # Errors
    /// If there is no step, or a step of one replica has several threads with parallel calls.
    pub fn of(steps: &[Step], replicas: usize, parameters: usize, look: f64) -> Result<Self> {
        let total = |items: &[Item]| items.iter().map(Item::ns).sum::<f64>();
        let of_reducers = |step: &Step| {
            step.reducers
                .iter()
                .flatten()
                .filter(is_sum)
                .map(Item::ns)
                .sum()
        };
        let mut recording = Self {
            items: Vec::new(),
            handed_off: steps.iter().any(|step| !step.replicas.is_empty()),
            main: median(steps.iter().map(|step| total(&step.main))).context("no step")?,
            sums: median(steps.iter().map(of_reducers)).context("no step")?,
            parameters,
            steps: steps.len(),
            look,
        };
        if replicas == 1 {
            if !recording.handed_off {
                recording.main = 0.0;
            }
            let alone = |step: &'_ Step| match &step.replicas[..] {
                [] => Some(step.main.clone()),
                [items] => Some(items.clone()),
                _ => None,
            };
            let all: Option<Vec<Vec<Item>>> = steps.iter().map(alone).collect();
            let alike = most_alike(all.context("one replica has several threads with calls")?);
            recording.steps = alike.len();
            recording.items = typical(&alike);
        }
        Ok(recording)
    }
}

/// True if it is a part of a sum over replicas. Reducers that wait for each other look for work without rest.
fn is_sum(item: &&Item) -> bool {
    matches!(item.label(), Label::Span(name) if name == "all-reduce" || name == "sum")
}

fn median(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let numbers: Vec<f64> = numbers.collect();
    (!numbers.is_empty()).then(|| Summary::of(&numbers).median)
}

/// The steps with the most frequent shape.
fn most_alike(steps: Vec<Vec<Item>>) -> Vec<Vec<Item>> {
    let mut by_shape: HashMap<_, Vec<Vec<Item>>> = HashMap::new();
    for items in steps {
        by_shape.entry(shape(&items)).or_default().push(items);
    }
    by_shape
        .into_values()
        .max_by_key(Vec::len)
        .unwrap_or_default()
}

/// All of a step but its times.
fn shape(items: &[Item]) -> impl Eq + Hash + use<> {
    let of = |item: &Item| match item {
        Item::Serial { label, .. } => (label.clone(), None),
        Item::Call {
            label,
            place,
            tasks,
        } => (label.clone(), Some((place.clone(), tasks.len()))),
    };
    items.iter().map(of).collect::<Vec<_>>()
}

/// The median of each number of steps that have the same shape.
fn typical(steps: &[Vec<Item>]) -> Vec<Item> {
    let mut items = steps.first().cloned().unwrap_or_default();
    for (i, item) in items.iter_mut().enumerate() {
        match item {
            Item::Serial { ns, .. } => {
                let all = steps.iter().map(|step| step[i].ns());
                *ns = median(all).unwrap_or(*ns);
            }
            Item::Call { tasks, .. } => {
                for (t, task) in tasks.iter_mut().enumerate() {
                    let all = steps.iter().filter_map(|step| match &step[i] {
                        Item::Call { tasks, .. } => Some(tasks[t]),
                        Item::Serial { .. } => None,
                    });
                    *task = median(all).unwrap_or(*task);
                }
            }
        }
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(name: &str, ns: f64) -> Item {
        let label = Label::Span(name.to_owned());
        Item::Serial { label, ns }
    }

    fn call(tasks: &[f64]) -> Item {
        Item::Call {
            label: Label::Rest,
            place: "here:1".to_owned(),
            tasks: tasks.to_vec(),
        }
    }

    fn step(main: f64, replica: Vec<Item>) -> Step {
        Step {
            main: vec![span("split", main)],
            replicas: vec![replica],
            // the second reducer waited for the first one
            reducers: vec![
                vec![span("sum", 5.0)],
                vec![span("wait", 900.0), span("sum", 2.0)],
            ],
        }
    }

    #[test]
    fn each_time_is_the_median_of_steps_that_are_alike() -> Result<()> {
        let steps = [
            step(1.0, vec![span("forward", 4.0), call(&[1.0, 20.0])]),
            step(2.0, vec![span("forward", 5.0), call(&[3.0, 10.0])]),
            step(9.0, vec![span("forward", 6.0), call(&[2.0, 30.0])]),
            step(2.0, vec![span("forward", 7.0), call(&[2.0])]), // another number of tasks
        ];
        let recording = Recording::of(&steps, 1, 0, 0.0)?;
        assert_eq!(recording.items, [span("forward", 5.0), call(&[2.0, 20.0])]);
        let Recording {
            main, sums, steps, ..
        } = recording;
        assert_eq!((main, sums, steps), (2.0, 7.0, 3));
        Ok(())
    }

    #[test]
    fn one_replica_has_one_thread() {
        let mut two = step(1.0, vec![call(&[1.0])]);
        two.replicas.push(vec![call(&[1.0])]);
        assert!(Recording::of(&[two.clone()], 1, 0, 0.0).is_err());
        assert_eq!(Recording::of(&[two], 2, 0, 0.0).unwrap().items, []);
        assert!(Recording::of(&[], 1, 0, 0.0).is_err());
    }

    #[test]
    fn the_main_thread_may_be_the_replica() -> Result<()> {
        let mut alone = step(1.0, vec![]);
        alone.replicas.clear();
        alone.main.push(call(&[1.0, 2.0]));
        let recording = Recording::of(&[alone.clone()], 1, 0, 0.0)?;
        assert_eq!(recording.items, alone.main);
        assert!(!recording.handed_off && recording.main == 0.0);
        Ok(())
    }
}
