//! Facts about the machine and a process, from the system. They are read from /proc: elsewhere than
//! on Linux they are unknown, and the numbers are NaN.

use std::process::Command;
use std::thread::available_parallelism;
use std::time::Instant;
use std::{env, fs};

/// The system counts processor time in hundredths of a second.
const TICKS: f64 = 100.0;

/// More than this of a core at other work makes the numbers doubtful.
const QUIET: f64 = 0.1;
const DOUBT: &str = ": **these numbers are doubtful**";

/// Use of the processor's time while a process was watched.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// Seconds on the clock.
    pub seconds: f64,
    /// Seconds of processor time that the process and its children used.
    pub own: f64,
    /// Seconds of processor time that went elsewhere.
    pub other: f64,
}

impl Spent {
    /// Adds the time that `f` takes; `pid` is the process that works meanwhile, the first of its group.
    pub fn add<T>(&mut self, pid: u32, f: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let own = group_ticks(pid);
        let busy = busy_ticks();
        let done = f();
        let own = (group_ticks(pid) - own) / TICKS;
        self.seconds += start.elapsed().as_secs_f64();
        self.own += own;
        self.other += (busy_ticks() - busy) / TICKS - own;
        done
    }

    /// All of them together: a single one can be too short for the system's clock.
    pub fn total<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        all.fold(Self::default(), |sum, spent| Self {
            seconds: sum.seconds + spent.seconds,
            own: sum.own + spent.own,
            other: sum.other + spent.other,
        })
    }

    /// Number of cores that the process kept busy.
    pub fn cores(&self) -> f64 {
        self.own / self.seconds
    }

    /// Number of cores that were at other work.
    pub fn other_cores(&self) -> f64 {
        (self.other / self.seconds).clamp(0.0, f64::INFINITY) // NaN stays
    }
}

/// The head of a report: when, with which command, of which commit, on which machine and with which versions it
/// was measured, and how many cores were at other work during the worst kind of step.
pub fn circumstances(threads: usize, versions: &str, worst: f64) -> String {
    let cores = available_parallelism().map_or(0, usize::from);
    let doubt = if worst > QUIET { DOUBT } else { "" };
    format!(
        "- {}, `xtask {}`, commit {}\n\
         - {}, {cores} cores, {threads} used; {}\n\
         - {}; {versions}\n\
         - meanwhile: at most {worst:.2} cores busy with other work{doubt}\n",
        ask("date", &["-u", "+%F"]),
        env::args().skip(1).collect::<Vec<_>>().join(" "),
        ask("git", &["describe", "--always", "--dirty", "--exclude=*"]),
        ask("sed", &["-n", "s/^model name[\t ]*: //p", "/proc/cpuinfo"]),
        env::consts::OS,
        ask("rustc", &["--version"]),
    )
}

/// The time that all cores were not free, in ticks since the start of the machine; what a
/// hypervisor gave to other machines is in it.
fn busy_ticks() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    // user nice system idle iowait irq softirq steal
    [1, 2, 3, 6, 7, 8].map(|i| number(&stat, i)).iter().sum()
}

/// The processor time of all processes of a group, in ticks. DistributedDataParallel has several.
fn group_ticks(group: u32) -> f64 {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats = processes.filter_map(|p| fs::read_to_string(p.path().join("stat")).ok());
    let ticks = stats.filter_map(|stat| {
        let (_, after_name) = stat.rsplit_once(')')?;
        let is_in_group = number(after_name, 2) == f64::from(group);
        is_in_group.then(|| number(after_name, 11) + number(after_name, 12)) // utime and stime
    });
    ticks.reduce(|a, b| a + b).unwrap_or(f64::NAN)
}

/// The most memory that a process had at a time, in MiB.
pub fn peak_memory(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let rest = status.split("VmHWM:").nth(1).unwrap_or_default();
    number(rest, 0) / 1024.0 // from kB
}

/// A word of a text as a number, NaN if it is none.
fn number(text: &str, index: usize) -> f64 {
    let word = text.split_whitespace().nth(index);
    word.and_then(|word| word.parse().ok()).unwrap_or(f64::NAN)
}

/// The first line that a command prints, or `unknown`.
pub fn ask(command: &str, args: &[&str]) -> String {
    let first = lines(command, args).into_iter().next();
    first.unwrap_or_else(|| "unknown".to_owned())
}

/// The lines that a command prints; none of one that fails.
pub fn lines(command: &str, args: &[&str]) -> Vec<String> {
    match Command::new(command).args(args).output() {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            text.lines().map(str::to_owned).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_known() {
        let pid = std::process::id();
        assert!(peak_memory(pid) > 0.5);
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let (_, after_name) = stat.rsplit_once(')').unwrap_or_default();
        assert!(group_ticks(number(after_name, 2) as u32) >= 0.0 && busy_ticks() > 0.0);
        assert!(group_ticks(u32::MAX).is_nan());
    }
}
