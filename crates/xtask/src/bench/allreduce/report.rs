//! The report of the all-reduces as Markdown.

use super::measure::{LENET, RESNET18, TURNS, name};
use crate::bench::machine::circumstances;
use crate::bench::ours::version;
use crate::bench::stats::Summary;

/// What some threads took.
pub struct Table {
    /// The number of threads.
    pub k: usize,
    /// The bytes of each thread's buffer, as elements, and the µs of each of [`TURNS`].
    pub rows: Vec<(usize, Vec<Summary>)>,
}

const EXPLAINED: &str = "\
µs: the median over the calls, and the fastest and slowest call. The time of a call is that of its slowest \
thread, from a barrier to the return. Each round calls all algorithms once. Every thread fills its buffer anew \
before each call, and checks the sum after all threads have returned. x += 1: the same threads and barriers, but \
each thread only adds 1 to its own buffer, so that every byte is read and written once.";

/// The report: tables, the most cores at other work meanwhile, and the sections of Open MPI and of the overlap.
pub fn markdown(cores: usize, other: f64, tables: &[Table], sections: [String; 2]) -> String {
    let head = circumstances(cores, &version(), other);
    let tables: String = tables.iter().map(Table::markdown).collect();
    let sections = sections.concat();
    format!("# All-reduce on the CPU\n\n{head}{tables}\n{EXPLAINED}\n{sections}")
}

impl Table {
    fn markdown(&self) -> String {
        let names = TURNS.map(|turn| format!("{}, µs", name(turn))).join(" | ");
        let mut text = format!(
            "\n## {} threads\n\n| bytes | {names} | calls |\n|--:|{}--:|\n",
            self.k,
            "--:|".repeat(TURNS.len())
        );
        for (len, micros) in &self.rows {
            let times: Vec<String> = micros.iter().map(Summary::to_string).collect();
            let (bytes, times, calls) = (size(*len), times.join(" | "), micros[0].count);
            text += &format!("| {bytes} | {times} | {calls} |\n");
        }
        text
    }
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
