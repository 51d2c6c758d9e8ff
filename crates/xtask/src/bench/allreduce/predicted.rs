//! The predictions in the report, beside what was measured or published. The sentences that say how far
//! off the model is are made from the figures.

use std::fmt::Write;

use collective::Algorithm;
use collective::cost::Link;

use super::measure::{LENET, RESNET18, Turn};
use super::model::{Compute, LINKS, OVER_A_LINK, PUBLISHED, Scaling, four_from_two, in_memory};
use super::report::{size, spread};
use super::{Results, find, modelled, steps};
use crate::bench::stats::{Summary, short};

impl Results {
    /// The cost model on this machine.
    pub fn model(&self) -> String {
        let (memory, k) = (&self.memory, self.cores);
        let mut text = format!(
            "\n## The cost model on this machine\n\n\
             A barrier of {k} threads takes {} µs. One thread reads and writes {} GB/s, all {k} together \
             {} GB/s, with buffers of ResNet-18's size.\n\n\
             | bytes | threads | | predicted, µs | measured, µs | measured / predicted |\n\
             |--:|--:|---|--:|--:|--:|\n",
            short(memory.gate.as_secs_f64() * 1e6),
            short(memory.one / 1e9),
            short(memory.all / 1e9),
        );
        let mut sentences = String::new();
        for len in [LENET, RESNET18] {
            let rows = self.predictions(len);
            for row in &rows {
                let Prediction { k, algorithm, .. } = row;
                let (predicted, measured) = (short(row.predicted), short(row.measured));
                let (bytes, ratio) = (size(len), short(row.ratio()));
                let _ = writeln!(
                    text,
                    "| {bytes} | {k} | {algorithm} | {predicted} | {measured} | {ratio} |"
                );
            }
            let _ = write!(sentences, "\n{}\n", how_far_off(len, &rows));
        }
        text + &sentences
    }

    fn predictions(&self, len: usize) -> Vec<Prediction> {
        let mut rows = Vec::new();
        for k in modelled(self.cores) {
            if let Some(m) = find(&self.all, k, len) {
                rows.extend(Algorithm::ALL.map(|algorithm| Prediction {
                    k,
                    algorithm,
                    predicted: in_memory(&self.memory, algorithm, k, m.bytes()),
                    measured: m.micros(Turn::Sum(algorithm)).median,
                }));
            }
        }
        rows
    }

    /// The steps on this machine.
    pub fn steps(&self) -> String {
        let compute = steps::compute(&self.points);
        let mut text = format!(
            "\n## Training steps of ResNet-18, one core for each replica\n\n\
             t(k) = t_compute(B/k) + t_comm. From the steps of one replica: t_compute(b) = {} + {}·b ms. \
             t_comm is the time of the owner algorithm by the model above. The model leaves out that a replica \
             copies its gradients, that it waits for the slowest replica, and that the cores share caches and \
             memory while they compute.\n\n\
             | | replicas | examples in all | predicted, ms | measured, ms | measured / predicted | efficiency |\n\
             |---|--:|--:|--:|--:|--:|--:|\n",
            short(compute.step),
            short(compute.example)
        );
        for point in &self.points {
            let (k, scaling, ms) = (point.k, point.scaling, point.ms());
            let predicted = compute.ms(scaling.examples(k)) + self.owner_ms(k);
            let alone = self.alone(scaling);
            let cells = [
                word(scaling).to_owned(),
                k.to_string(),
                scaling.batch(k).to_string(),
                short(predicted),
                spread(ms),
                short(ms.median / predicted),
                percent(scaling.efficiency(alone, k, ms.median)),
            ];
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
        text
    }

    /// The ms of an all-reduce of ResNet-18's gradients here, by the model.
    fn owner_ms(&self, k: usize) -> f64 {
        let bytes = RESNET18 * size_of::<f32>();
        match k {
            1 => 0.0,
            _ => in_memory(&self.memory, Algorithm::Owner, k, bytes) / 1e3,
        }
    }

    /// The ms of one replica's step.
    fn alone(&self, scaling: Scaling) -> f64 {
        let mut points = self.points.iter();
        let alone = points.find(|point| (point.k, point.scaling) == (1, scaling));
        alone.map_or(f64::NAN, |point| point.ms().median)
    }

    /// The steps over links.
    pub fn links(&self) -> String {
        let compute = steps::compute(&self.points);
        let scalings = self.scalings();
        let heads = scalings
            .map(|scaling| OVER_A_LINK.map(|(_, name)| format!("{}: {name}", word(scaling))));
        let mut text = format!(
            "\n## Predicted: ResNet-18 over links\n\n\
             ms per step, and the efficiency: samples per second, divided by k times those of one replica. \
             t_compute is that of one core of this machine; on a faster device the same communication takes a \
             larger part of the step. Strong scaling splits {} examples, so k is at most {0}; weak scaling has {} \
             for each replica.\n",
            scalings[0].batch(1),
            scalings[1].batch(1)
        );
        for (name, link) in LINKS {
            let _ = write!(
                text,
                "\n### {name}: α = {} µs, β = {} GB/s\n\n| k | {} |\n|--:|{}\n",
                link.latency.as_micros(),
                link.bytes_per_second / 1e9,
                heads.as_flattened().join(" | "),
                "--:|".repeat(2 * OVER_A_LINK.len())
            );
            for k in scalings[1].replicas() {
                let cells = scalings.map(|scaling| {
                    OVER_A_LINK.map(|(algorithm, _)| cell(scaling, &link, &compute, algorithm, k))
                });
                let _ = writeln!(text, "| {k} | {} |", cells.as_flattened().join(" | "));
            }
        }
        text
    }

    /// Strong, then weak.
    pub fn scalings(&self) -> [Scaling; 2] {
        let all = self.points.iter().map(|point| point.scaling);
        let strong = all.clone().find(|s| matches!(s, Scaling::Strong(_)));
        let weak = all.clone().find(|s| matches!(s, Scaling::Weak(_)));
        [strong, weak].map(|scaling| scaling.expect("both were measured"))
    }
}

/// A time of the model beside the clock's, in µs.
struct Prediction {
    k: usize,
    algorithm: Algorithm,
    predicted: f64,
    measured: f64,
}

impl Prediction {
    fn ratio(&self) -> f64 {
        self.measured / self.predicted
    }
}

/// How far off the model is, in a sentence.
fn how_far_off(len: usize, rows: &[Prediction]) -> String {
    let off = |row: &&Prediction| row.ratio().ln().abs();
    let Some(worst) = rows.iter().max_by(|a, b| off(a).total_cmp(&off(b))) else {
        return String::new();
    };
    let ratios: Vec<f64> = rows.iter().map(Prediction::ratio).collect();
    let middle = Summary::of(&ratios).median;
    let why = match len == LENET && middle < 1.0 {
        true => " So little data stays in the caches, which the model leaves out.",
        false => "",
    };
    let Prediction { k, algorithm, .. } = worst;
    format!(
        "{}: the all-reduces took {} times the predicted time in the median of these cases, and {} times \
         where the model is furthest off ({algorithm}, {k} threads).{why}",
        size(len),
        short(middle),
        short(worst.ratio())
    )
}

/// The model beside the published points.
pub fn published() -> String {
    let [one, two, four] = PUBLISHED;
    let predicted = four_from_two(one, two);
    let off = 100.0 * (predicted / four - 1.0);
    format!(
        "\n## The model beside a book's figures\n\n\
         ResNet-18 on 64 × 64 pixels, RTX 4090 GPUs without access to each other's memory, a minibatch of the \
         same size on each. The book publishes {one:.0}, {two:.0} and {four:.0} samples/s on 1, 2 and 4 GPUs. N/β \
         is fitted to the first two; t(k) = t_compute + 2(k − 1)/k·N/β gives the third: {predicted:.0} predicted, \
         {four:.0} published, {off:+.1}%.\n"
    )
}

/// `44.4 (90.1%)`: ms and efficiency.
fn cell(
    scaling: Scaling,
    link: &Link,
    compute: &Compute,
    algorithm: Algorithm,
    k: usize,
) -> String {
    if !scaling.replicas().contains(&k) {
        return "–".to_owned(); // a replica would have no example
    }
    let [one, ms] = [1, k].map(|k| scaling.over(link, compute, algorithm, k));
    let efficiency = percent(scaling.efficiency(one, k, ms));
    format!("{} ({efficiency})", short(ms))
}

fn word(scaling: Scaling) -> &'static str {
    match scaling {
        Scaling::Strong(_) => "strong",
        Scaling::Weak(_) => "weak",
    }
}

fn percent(share: f64) -> String {
    format!("{}%", short(100.0 * share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_names_the_worst() {
        let row = |k, measured| Prediction {
            k,
            algorithm: Algorithm::Ring,
            predicted: 10.0,
            measured,
        };
        let said = how_far_off(LENET, &[row(2, 12.0), row(3, 2.5), row(4, 11.0)]);
        assert!(said.contains("took 1.10 times the predicted"), "{said}");
        assert!(said.contains("and 0.25 times where"), "{said}");
        assert!(said.ends_with("(ring, 3 threads)."), "{said}");
        let said = how_far_off(LENET, &[row(2, 5.0)]);
        assert!(said.contains("caches"), "{said}");
    }

    #[test]
    fn the_published_figures_are_beside_the_prediction() {
        assert!(published().contains("7012 predicted, 6924 published, +1.3%"));
    }
}
