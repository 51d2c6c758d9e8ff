//! The report of the all-reduces as Markdown.

use std::fmt::Write;

use super::measure::{LENET, Measured, OWNER, RESNET18, TURNS};
use super::{Results, find, tables};
use crate::bench::machine::{ask, circumstances, meanwhile};
use crate::bench::ours::version;
use crate::bench::stats::{Summary, short};

const EXPLAINED: &str = "\
µs: the median over the calls, and the fastest and slowest call. The time of a call is that of its slowest \
thread, from a barrier to the return. Each round calls all algorithms once. Every thread fills its buffer anew \
before each call, and checks the sum after all threads have returned. x += 1: the same threads and barriers, but \
each thread only adds 1 to its own buffer, so that every byte is read and written once. x += 1 / owner: the ratio of \
these times, the median of the rounds. Bus bandwidth: that of the owner, 2(k − 1)/k·N/t.";

impl Results {
    /// All of it.
    pub fn markdown(&self) -> String {
        let mut text = format!("# All-reduce on the CPU\n\n{}", self.circumstances());
        for k in tables(self.cores) {
            text += &self.table(k);
        }
        let _ = write!(text, "\n{EXPLAINED}\n");
        let parts = [self.taking_turns(), self.peers(), self.overlap.markdown()];
        text + &parts.concat()
    }

    fn circumstances(&self) -> String {
        let [when, machine] = circumstances(self.cores);
        let lines = [
            when,
            machine,
            format!("{}; {}", ask("rustc", &["--version"]), version()),
            format!("before: {}", self.before.text()),
            format!("meanwhile: {}", meanwhile(self.other)),
        ];
        lines.map(|line| format!("- {line}\n")).concat()
    }

    /// What `k` threads took, size after size.
    pub fn of(&self, k: usize) -> impl Iterator<Item = &Measured> {
        self.all.iter().filter(move |m| m.k == k)
    }

    fn table(&self, k: usize) -> String {
        let names = TURNS.map(|turn| format!("{turn}, µs")).join(" | ");
        let mut text = format!(
            "\n## {k} threads\n\n\
             | bytes | {names} | x += 1 / owner | bus bandwidth, GB/s | calls |\n\
             |--:|{}--:|--:|--:|\n",
            "--:|".repeat(TURNS.len())
        );
        for m in self.of(k) {
            let times = TURNS.map(|turn| spread(m.micros(turn))).join(" | ");
            let (share, bandwidth) = (m.increment_over(OWNER), short(bus_bandwidth(m)));
            let (bytes, calls) = (size(m.len), m.micros(OWNER).count);
            let _ = writeln!(
                text,
                "| {bytes} | {times} | {share:.2} | {bandwidth} | {calls} |"
            );
        }
        text
    }

    /// Twice as many threads as cores beside as many as cores.
    fn taking_turns(&self) -> String {
        let (k, more) = (self.cores, 2 * self.cores);
        let mut text = format!(
            "\n## More threads than cores\n\n\
             The owner's µs for each MB of the buffers of all threads together. With {more} threads on {k} cores \
             the goal is at most 1.5 times the µs of {k} threads.\n\n\
             | bytes | {k} threads | {more} threads | ratio |\n|--:|--:|--:|--:|\n"
        );
        let micros = |m: &Measured| m.micros(OWNER).median / (m.k * m.bytes()) as f64 * 1e6;
        let mut worst = (0.0, String::new());
        for few in self.of(k) {
            if let Some(many) = find(&self.all, more, few.len) {
                let (bytes, ratio) = (size(few.len), micros(many) / micros(few));
                let cells = [micros(few), micros(many), ratio].map(short).join(" | ");
                let _ = writeln!(text, "| {bytes} | {cells} |");
                if ratio > worst.0 {
                    worst = (ratio, bytes);
                }
            }
        }
        let (ratio, bytes) = worst;
        text + &format!("\nAt most {} times, with {bytes}.\n", short(ratio))
    }

    fn peers(&self) -> String {
        let k = self.cores;
        if self.peers.is_empty() {
            return "\n## Open MPI\n\nNot measured: it needs `mpirun`, and a Python with mpi4py and \
                    numpy (`--python`).\n"
                .to_owned();
        }
        let mut text = String::new();
        for (peer, pairs) in &self.peers {
            let name = &peer.name;
            let _ = write!(
                text,
                "\n## {name}\n\n{k} processes on {k} cores, alternating with the owner; the medians of the \
                 rounds.\n\n| bytes | owner, µs | this, µs | this / owner | rounds |\n\
                 |--:|--:|--:|--:|--:|\n"
            );
            for pair in pairs {
                let [ours, theirs] = [&pair.ours, &pair.peer].map(|times| Summary::of(times));
                let ratio = short(theirs.median / ours.median);
                let (bytes, count) = (size(pair.len), ours.count);
                let (ours, theirs) = (spread(ours), spread(theirs));
                let _ = writeln!(text, "| {bytes} | {ours} | {theirs} | {ratio} | {count} |");
            }
        }
        text
    }
}

/// The owner's bus bandwidth in GB/s, as nccl-tests count it.
fn bus_bandwidth(measured: &Measured) -> f64 {
    let k = measured.k as f64;
    let bytes = 2.0 * (k - 1.0) / k * measured.bytes() as f64;
    bytes / measured.micros(OWNER).median / 1e3
}

/// `12.3 (12.1 – 15.0)`.
pub fn spread(summary: Summary) -> String {
    let Summary {
        median, min, max, ..
    } = summary;
    format!("{} ({} – {})", short(median), short(min), short(max))
}

/// The bytes of so many elements; for the gradients of a network also its name.
pub fn size(len: usize) -> String {
    let bytes = (len * size_of::<f32>()) as f64;
    match len {
        LENET => format!("{:.0} kB, LeNet", bytes / 1e3),
        RESNET18 => format!("{:.1} MB, ResNet-18", bytes / 1e6),
        _ if bytes < 1e6 => format!("{:.0} kB", bytes / 1e3),
        _ => format!("{:.0} MB", bytes / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_named() {
        let names = [250, LENET, 1_000_000, RESNET18].map(size);
        let expected = ["1 kB", "516 kB, LeNet", "4 MB", "44.7 MB, ResNet-18"];
        assert_eq!(names, expected);
    }
}
