//! The report as Markdown. Each title says that its numbers are simulated.

use std::fmt::Write;

use super::recording::Recording;
use super::simulation::{
    CALL, CALL_EACH, DESKTOP, HAND_OFF, HAND_OFFS, Machine, Memory, Replicas, SERVER, SLEEPS_AFTER,
    WAKES_IN, WAKES_IN_EACH,
};
use crate::bench::machine::circumstances;
use crate::bench::stats::short;
use crate::bench::work::{Network, Work};

/// From this many cores on, several replicas are simulated too.
pub const MANY_CORES: usize = 8;
/// The cores for which the report says where their idle time goes.
const IDLE_ON: usize = 16;
/// The kinds of idle time that have a line of their own.
const KINDS: usize = 8;

/// A step, recorded.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The step.
    pub work: Work,
    /// With one replica.
    pub one: Recording,
    /// With several replicas, if that is simulated.
    pub on_replicas: Vec<Replicas>,
}

/// All of it.
pub fn markdown(recorded: &[Recorded], cores: &[usize], version: &str, worst: f64) -> String {
    let mut text = format!(
        "# Training on more cores, simulated\n\n{}\n{}\n",
        circumstances(1, version, worst),
        assumptions()
    );
    text += &steps(recorded, cores, None);
    let resnets = |of: &&Recorded| matches!(of.work.network, Network::Resnet18 | Network::Resnet20);
    let resnets: Vec<Recorded> = recorded.iter().filter(resnets).cloned().collect();
    for memory in [DESKTOP, SERVER] {
        if !resnets.is_empty() {
            text += &steps(&resnets, cores, Some(memory));
        }
    }
    let of_replicas = recorded.iter().filter(|of| !of.on_replicas.is_empty());
    text.extend(of_replicas.map(|of| replicas(of, cores)));
    text.extend(recorded.iter().map(idle));
    text
}

fn assumptions() -> String {
    let [hand_off, sleeps, wakes, wakes_each] =
        [HAND_OFF, SLEEPS_AFTER, WAKES_IN, WAKES_IN_EACH].map(|ns| ns / 1e3);
    let [call, call_each] = [CALL, CALL_EACH].map(|ns| ns / 1e3);
    format!(
        "Nothing here was measured on more than one core. A step was recorded on one thread: its parallel calls, with the \
         processor time of each task, and the time between calls. Each number is the median over steps. Then the thread \
         pool's policy was simulated: block t of p of the tasks belongs to thread t, and a thread that is through takes \
         those of t + 1, t + 2 and so on. What is assumed:\n\n\
         - A task takes as long as on one core: no lower clock, no slower cache, no other program.\n\
         - A call on p threads takes {call} + {call_each} · p µs beside its tasks.\n\
         - A thread hands work to another one {HAND_OFFS} times a step, {hand_off} µs each; with LeNet on one device, \
         never.\n\
         - After {sleeps} µs of serial work the helpers sleep, and start {wakes} + {wakes_each} · (p − 1) µs late.\n\
         - Memory, where a title names a machine: an operation takes at least the time that its bytes need. A {} has \
         {}, a {} {}. Values of up to a quarter of the cache stay there until the next operation. What forward leaves for backward \
         does not, unless all of it fits.\n\
         - Replicas: the all-reduce is not hidden behind the backward pass.\n\n\
         In parentheses: the efficiency, which is the time on one core, divided by the time and by the cores.\n",
        DESKTOP.name,
        numbers(DESKTOP),
        SERVER.name,
        numbers(SERVER),
    )
}

fn numbers(memory: Memory) -> String {
    let Memory {
        bandwidth, cache, ..
    } = memory;
    format!("{bandwidth} GB/s and {} MB of cache", cache / 1e6)
}

/// A title and the head of a table with a column for each of `columns`.
fn head(title: &str, first: &str, columns: &[usize]) -> String {
    let names: String = columns.iter().map(|n| format!(" {n} |")).collect();
    let rule = "--:|".repeat(columns.len());
    format!("\n## Simulated: {title}\n\n| {first} |{names}\n|---|{rule}\n")
}

/// The steps of one replica, which has all cores.
fn steps(recorded: &[Recorded], cores: &[usize], memory: Option<Memory>) -> String {
    let title = match memory {
        None => "a step of one replica, ms".to_owned(),
        Some(memory) => format!(
            "a step with the memory of a {}, {}, ms",
            memory.name,
            numbers(memory)
        ),
    };
    let mut text = head(&title, "cores", cores);
    for of in recorded {
        write!(text, "| {} |", of.work).expect("a string grows");
        let one = Machine::with_threads(1).play(&of.one).ns;
        for &threads in cores {
            let machine = Machine {
                threads,
                replicas: 1,
                memory,
            };
            text += &cell(machine.play(&of.one).ns, one, threads);
        }
        text += "\n";
    }
    text
}

fn cell(ns: f64, one: f64, cores: usize) -> String {
    format!(" {} ({:.2}) |", short(ns / 1e6), one / ns / cores as f64)
}

/// The same minibatch on k replicas, which share out the cores.
fn replicas(of: &Recorded, cores: &[usize]) -> String {
    let ks: Vec<usize> = of.on_replicas.iter().map(|replicas| replicas.k).collect();
    let title = format!("k replicas with cores / k threads each, ms: {}", of.work);
    let mut text = head(&title, "cores \\ k", &ks);
    let one = Machine::with_threads(1).play(&of.one).ns;
    let memories: &[Option<Memory>] = match of.work.network {
        Network::Lenet => &[None], // all of it fits into a cache
        _ => &[None, Some(DESKTOP), Some(SERVER)],
    };
    for &cores in cores.iter().filter(|cores| **cores >= MANY_CORES) {
        for memory in memories {
            let name = memory.map_or(String::new(), |memory| format!(", {}", memory.name));
            write!(text, "| {cores}{name} |").expect("a string grows");
            for replicas in &of.on_replicas {
                text += &if replicas.k > cores {
                    " – |".to_owned()
                } else {
                    cell(replicas.play(cores, *memory), one, cores)
                };
            }
            text += "\n";
        }
    }
    text
}

/// The kinds of idle time with the largest shares.
fn idle(of: &Recorded) -> String {
    let simulated = Machine::with_threads(IDLE_ON).play(&of.one);
    let all = IDLE_ON as f64 * simulated.ns;
    let mut kinds: Vec<(String, f64)> = simulated.idle.into_iter().collect();
    kinds.sort_by(|a, b| b.1.total_cmp(&a.1));
    let rest: f64 = kinds.iter().skip(KINDS).map(|(_, ns)| ns).sum();
    kinds.truncate(KINDS);
    kinds.push(("all others".to_owned(), rest));
    let idle: f64 = kinds.iter().map(|(_, ns)| ns).sum();
    let percent = |ns: f64| format!("{:.0}%", 100.0 * ns / all);
    let mut text = format!(
        "\n## Simulated: idle time on {IDLE_ON} cores, without limits of the memory: {}\n\n\
         The cores have {} core-ms in a step. {} of that is idle.\n\n\
         | share of all | core-ms | during |\n|--:|--:|---|\n",
        of.work,
        short(all / 1e6),
        percent(idle),
    );
    for (kind, ns) in kinds {
        let share = percent(ns);
        let ms = short(ns / 1e6);
        writeln!(text, "| {share} | {ms} | {kind} |").expect("a string grows");
    }
    text
}
