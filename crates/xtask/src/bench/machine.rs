//! What the system says of the machine and of a process. It is read from /proc: elsewhere than on
//! Linux it is unknown, and the report says so.

use std::process::Command;
use std::thread::{available_parallelism, sleep};
use std::time::{Duration, Instant};
use std::{env, fs};

/// The system counts processor time in hundredths of a second.
const TICKS: f64 = 100.0;

/// More than this of a core at other work makes the numbers doubtful.
const QUIET: f64 = 0.1;

/// What was going on before the measurement.
pub struct Load {
    average: Option<String>,
    busy: Option<f64>,
}

impl Load {
    /// Looks for a second.
    pub fn now() -> Self {
        let average = fs::read_to_string("/proc/loadavg").ok();
        let average = average.map(|text| text.split(' ').take(3).collect::<Vec<_>>().join(", "));
        let before = busy_ticks();
        sleep(Duration::from_secs(1));
        let busy = busy_ticks().zip(before).map(|(b, a)| (b - a) / TICKS);
        Self { average, busy }
    }

    /// Tells the reader at once that the machine is not idle.
    pub fn warn(&self) {
        if self.busy.is_some_and(|busy| busy > QUIET) {
            eprintln!("warning: other programs use the cores ({})", self.text());
        }
    }

    /// `load average 0.01, 0.37, 4.36; 0.02 cores busy`.
    pub fn text(&self) -> String {
        let average = self.average.as_deref().unwrap_or("unknown");
        match self.busy {
            Some(busy) => format!("load average {average}; {busy:.2} cores busy"),
            None => format!("load average {average}"),
        }
    }
}

/// Looks where the processor's time goes from now on.
pub struct Watch {
    pid: u32,
    own: Option<f64>,
    busy: Option<f64>,
    start: Instant,
}

/// Where the processor's time went.
#[derive(Debug, Default)]
pub struct Spent {
    /// Seconds on the clock.
    pub seconds: f64,
    /// Seconds of processor time that the process used.
    pub own: Option<f64>,
    /// Seconds of processor time that went elsewhere.
    pub other: Option<f64>,
}

impl Watch {
    /// Begins to watch a process.
    pub fn start(pid: u32) -> Self {
        Self {
            pid,
            own: process_ticks(pid),
            busy: busy_ticks(),
            start: Instant::now(),
        }
    }

    /// What was seen.
    pub fn stop(self) -> Spent {
        let seconds = self.start.elapsed().as_secs_f64();
        let since = |now: Option<f64>, then: Option<f64>| Some((now? - then?) / TICKS);
        let own = since(process_ticks(self.pid), self.own);
        let busy = since(busy_ticks(), self.busy);
        Spent {
            seconds,
            own,
            other: busy.zip(own).map(|(busy, own)| (busy - own).max(0.0)),
        }
    }
}

/// What the report says of so many cores at other work at the worst of times.
pub fn meanwhile(worst: Option<f64>) -> String {
    let Some(worst) = worst else {
        return "unknown".to_owned();
    };
    let doubt = match is_doubtful(worst) {
        true => ": **these numbers are doubtful**",
        false => "",
    };
    format!("at most {worst:.2} cores busy with other work{doubt}")
}

/// When, with which command, of which commit and on which machine it was measured.
pub fn circumstances(threads: usize) -> [String; 2] {
    let cores = available_parallelism().map_or(0, usize::from);
    let args: Vec<String> = env::args().skip(1).collect();
    let (today, args, commit) = (ask("date", &["-u", "+%F"]), args.join(" "), commit());
    let (processor, os) = (processor(), env::consts::OS);
    [
        format!("{today}, `xtask {args}`, commit {commit}"),
        format!("{processor}, {cores} cores, {threads} used; {os}"),
    ]
}

/// Whether so many cores at other work make the numbers doubtful.
pub fn is_doubtful(other: f64) -> bool {
    other > QUIET
}

/// The time that all cores were not free, in ticks since the start of the machine; what a
/// hypervisor gave to other machines is in it.
fn busy_ticks() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let first = stat.lines().next()?.split_whitespace().skip(1);
    let t: Vec<f64> = first.map_while(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal
    (t.len() >= 8).then(|| t[0] + t[1] + t[2] + t[5] + t[6] + t[7])
}

/// The processor time of a process and all its threads, in ticks.
pub fn process_ticks(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.rsplit_once(')')?.1;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let field = |i: usize| fields.get(i)?.parse::<f64>().ok();
    Some(field(11)? + field(12)?) // utime and stime
}

/// The most memory that a process had at a time, in MiB.
pub fn peak_memory(pid: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib / 1024.0)
}

/// The processor's name.
fn processor() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|l| l.strip_prefix("model name"));
    let name = name.and_then(|l| l.split_once(": ")).map(|(_, name)| name);
    name.unwrap_or("unknown processor").to_owned()
}

/// The first line that a command prints, or `unknown`.
pub fn ask(command: &str, args: &[&str]) -> String {
    let output = Command::new(command).args(args).output();
    let output = output.ok().filter(|o| o.status.success());
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
    let first = text.as_deref().and_then(|t| t.lines().next());
    first.unwrap_or("unknown").to_owned()
}

/// The commit that is measured, and whether there are changes on top of it.
fn commit() -> String {
    let commit = ask("git", &["rev-parse", "--short", "HEAD"]);
    match ask("git", &["status", "--porcelain", "--untracked-files=no"]).as_str() {
        "unknown" => commit,
        _ => format!("{commit} with changes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_is_known() {
        let pid = std::process::id();
        assert!(peak_memory(pid).unwrap() > 0.5);
        assert!(process_ticks(pid).is_some() && busy_ticks().unwrap() > 0.0);
    }
}
