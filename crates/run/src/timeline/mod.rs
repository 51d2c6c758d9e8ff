//! The timeline of a piece of code, as a picture and as a Chrome trace: a lane for each replica and each other thread.
//!
//! The crates of this workspace mark their work as spans of `tracing`, under these names:
//!
//! | span | work |
//! |---|---|
//! | `data` | waiting for the next minibatch |
//! | `split` | the minibatch is split and loaded; a step begins |
//! | `forward`, `backward`, `update` | a replica computes, or takes the step |
//! | `all-reduce` | gradients are summed over the replicas |
//! | `sum`, `wait` | in it: a member sums, or waits for the others |
//! | `evaluate` | accuracy on a dataset |
//!
//! A thread's work for a replica is in the replica's lane. A lane without a span is idle, or its work is not marked.
//! On a GPU a span is the host's work: it asks for work on the GPU, and does not wait until that is done.

mod picture;
mod recording;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;

pub(crate) use recording::Recording;

/// The work of this process in a piece of code, over time.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use run::Timeline;
///
/// let x = Tensor::ones((8, 4), DType::F32, &Device::Cpu)?;
/// let w = [d2l::Param::new(&Tensor::ones((4, 1), DType::F32, &Device::Cpu)?)?];
/// let (trained, timeline) = Timeline::record(|| {
///     let l = data_parallel_functional::Value::new(&x)?.matmul(&w[0], None)?.sum()?;
///     d2l::backward(&l, &w)?;
///     d2l::sgd(&w, 0.1, 8)
/// });
/// trained?;
/// let names: Vec<&str> = timeline.spans().iter().map(|span| span.name).collect();
/// assert_eq!(names, ["forward", "backward", "update"]);
/// assert!(timeline.svg().starts_with("<svg"));
/// assert!(timeline.chrome().contains("traceEvents"));
/// # candle_core::Result::Ok(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// By their begin.
    spans: Vec<Span>,
}

/// A piece of work without a break.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// The kind of work, such as `forward`.
    pub name: &'static str,
    /// The device of the replica, such as `cpu(1)`; or the name of the thread.
    pub lane: Arc<str>,
    /// When it began, in µs since the first span began.
    pub begin: f64,
    /// When it ended, in µs as well.
    pub end: f64,
    /// The number of other spans of its lane in which it lies.
    pub depth: usize,
}

impl Timeline {
    /// Sorts the spans; time begins with the first one.
    fn new(mut spans: Vec<Span>) -> Self {
        spans.sort_by(|a, b| a.begin.total_cmp(&b.begin).then(a.depth.cmp(&b.depth)));
        let start = spans.first().map_or(0.0, |span| span.begin);
        for span in &mut spans {
            span.begin -= start;
            span.end -= start;
        }
        Self { spans }
    }

    /// All spans, by their begin.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// The step of median length: the first ones are slower, and any may have been disturbed.
    pub fn typical_step(&self) -> Option<Self> {
        let mut steps = self.steps();
        steps.sort_by(|a, b| a.length().total_cmp(&b.length()));
        let middle = steps.len() / 2;
        steps.into_iter().nth(middle)
    }

    /// All steps: each goes from a `split` to the next, or to an `evaluate`. The splits in an evaluation begin none.
    fn steps(&self) -> Vec<Self> {
        let outer = self.spans.iter().filter(|span| span.depth == 0);
        let mut marks: Vec<(&str, f64)> = outer
            .filter(|span| ["split", "evaluate"].contains(&span.name))
            .map(|span| (span.name, span.begin))
            .collect();
        marks.push(("end", f64::INFINITY));
        let splits = marks.windows(2).filter(|pair| pair[0].0 == "split");
        let step = |pair: &[(&str, f64)]| {
            let time = pair[0].1..pair[1].1;
            let spans = self.spans.iter().filter(|span| time.contains(&span.begin));
            Self::new(spans.cloned().collect())
        };
        splits.map(step).collect()
    }

    /// When the last span ended, in µs.
    fn length(&self) -> f64 {
        self.spans.iter().map(|span| span.end).fold(0.0, f64::max)
    }

    /// The lanes: the main thread, then the others by name and number.
    fn lanes(&self) -> Vec<&str> {
        let lanes: BTreeSet<&str> = self.spans.iter().map(|span| &*span.lane).collect();
        let mut lanes: Vec<&str> = lanes.into_iter().collect();
        lanes.sort_by_key(|lane| place(lane));
        lanes
    }

    /// Text in the Trace Event Format, which <https://ui.perfetto.dev> and `chrome://tracing` open.
    pub fn chrome(&self) -> String {
        let lanes = self.lanes();
        let name = |(i, lane): (usize, &&str)| json!({"ph": "M", "name": "thread_name", "pid": 1, "tid": i + 1, "args": {"name": lane}});
        let mut events: Vec<_> = lanes.iter().enumerate().map(name).collect();
        for span in &self.spans {
            let lane = lanes.iter().position(|lane| **lane == *span.lane);
            events.push(json!({
                "ph": "X", "name": span.name, "pid": 1, "tid": lane.map_or(0, |i| i + 1),
                "ts": to_ns(span.begin), "dur": to_ns(span.end - span.begin),
            }));
        }
        json!({"displayTimeUnit": "ms", "traceEvents": events}).to_string()
    }
}

/// µs without digits that no clock has.
fn to_ns(us: f64) -> f64 {
    (us * 1e3).round() / 1e3
}

/// Place of a lane among the others: `cpu(2)` before `cpu(10)`.
fn place(lane: &str) -> (bool, String, usize, usize) {
    let digit = |c: char| c.is_ascii_digit();
    let (words, rest) = lane.split_at(lane.find(digit).unwrap_or(lane.len()));
    let number = rest
        .split(|c| !digit(c))
        .next()
        .unwrap_or("")
        .parse()
        .unwrap_or(0);
    (lane != "main", words.to_owned(), number, lane.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn span(name: &'static str, lane: &str, begin: f64, end: f64, depth: usize) -> Span {
        let lane = lane.into();
        Span {
            name,
            lane,
            begin,
            end,
            depth,
        }
    }

    /// Two steps, an evaluation with a split of its own, and a third step.
    fn three_steps() -> Timeline {
        Timeline::new(vec![
            span("forward", "cpu(10)", 20.0, 60.0, 0),
            span("split", "main", 10.0, 20.0, 0),
            span("split", "main", 100.0, 110.0, 0),
            span("forward", "cpu(2)", 110.0, 150.0, 0),
            span("split", "main", 210.0, 220.0, 1),
            span("evaluate", "main", 200.0, 290.0, 0),
            span("forward", "cpu(2)", 220.0, 280.0, 0),
            span("split", "main", 300.0, 310.0, 0),
            span("update", "main", 320.0, 335.0, 0),
        ])
    }

    #[test]
    fn a_step_goes_from_split_to_split_or_to_the_evaluation() {
        let timeline = three_steps();
        let names = timeline.steps().into_iter().map(|step| {
            let spans = step.spans.iter().map(|s| (s.name, s.begin, s.end));
            spans.collect::<Vec<_>>()
        });
        let forward = vec![("split", 0.0, 10.0), ("forward", 10.0, 50.0)];
        let update = vec![("split", 0.0, 10.0), ("update", 20.0, 35.0)];
        let expected = [forward.clone(), forward, update];
        assert_eq!(names.collect::<Vec<_>>(), expected);
        assert_eq!(timeline.typical_step().unwrap().length(), 50.0);
        assert_eq!(Timeline::new(vec![]).typical_step(), None);
    }

    #[test]
    fn chrome_gets_the_threads_in_order_and_the_times_in_microseconds() {
        let text = three_steps().chrome();
        let trace: serde_json::Value = serde_json::from_str(&text).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let names: Vec<&str> = events
            .iter()
            .filter(|e| e["ph"] == "M")
            .map(|e| e["args"]["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["main", "cpu(2)", "cpu(10)"]);
        let update = events.iter().find(|e| e["name"] == "update").unwrap();
        let found = ["ph", "tid", "ts", "dur"].map(|key| &update[key]);
        assert_eq!(json!(found), json!(["X", 1, 310.0, 15.0]));
    }
}
