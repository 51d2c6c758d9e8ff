//! Listens to the spans of this workspace's crates during a recording.
//!
//! There is one listener in a process, and it is switched off where nothing is recorded: then a span costs what
//! it costs without a listener, a look at a number. The spans of all threads go into one log, from which
//! each recording takes those that began after itself.

use std::cell::RefCell;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::Instant;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::Attributes;
use tracing::{Id, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use super::{Span, Timeline};

/// Only the spans of these crates are kept; libraries have spans as well.
const OURS: [&str; 7] = [
    "dataset",
    "functional",
    "collective",
    "d2l",
    "run",
    "scratch",
    "concise",
];

/// Whether there is a recording.
static ON: AtomicBool = AtomicBool::new(false);
static LOG: Mutex<Log> = Mutex::new(Log {
    recordings: 0,
    spans: Vec::new(),
});

/// The spans since the first of the recordings that go on.
struct Log {
    recordings: usize,
    spans: Vec<Heard>,
}

#[derive(Clone)]
struct Heard {
    name: &'static str,
    lane: Arc<str>,
    begin: Instant,
    end: Instant,
    depth: usize,
}

fn log() -> MutexGuard<'static, Log> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A recording, until it is dropped.
#[derive(Debug)]
pub(crate) struct Recording {
    begin: Instant,
}

impl Recording {
    /// Begins to listen.
    ///
    /// # Panics
    /// If the process has another listener to its spans.
    pub fn start() -> Self {
        static LISTENS: Once = Once::new();
        LISTENS.call_once(|| {
            let listener = tracing_subscriber::registry().with(Listener);
            tracing::subscriber::set_global_default(listener)
                .expect("a timeline needs a process without another subscriber of tracing");
        });
        let mut log = log();
        log.recordings += 1;
        switch(&log);
        Self {
            begin: Instant::now(),
        }
    }

    /// What was heard since the start.
    pub fn end(self) -> Timeline {
        let heard = log().spans.clone();
        let us = |at: Instant| at.duration_since(self.begin).as_nanos() as f64 / 1e3;
        let since = heard.into_iter().filter(|span| span.begin >= self.begin);
        let spans = since.map(|span| Span {
            name: span.name,
            lane: span.lane,
            begin: us(span.begin),
            end: us(span.end),
            depth: span.depth,
        });
        Timeline::new(spans.collect())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let mut log = log();
        log.recordings -= 1;
        if log.recordings == 0 {
            log.spans = Vec::new();
        }
        switch(&log);
    }
}

/// Has all spans ask anew whether there is a recording, where that has changed.
fn switch(log: &Log) {
    let on = log.recordings > 0;
    if ON.swap(on, Ordering::SeqCst) != on {
        tracing::callsite::rebuild_interest_cache();
    }
}

struct Listener;

/// The span of a replica's work; its field is the replica's name.
const REPLICA: &str = "replica";

/// Where the spans of a thread go: a lane of its own, or that of the replica for which it works.
struct Lane {
    name: Arc<str>,
    /// When the spans began in which it is.
    open: Vec<Instant>,
}

impl Lane {
    fn new(name: Arc<str>) -> Self {
        let open = Vec::new();
        Self { name, open }
    }
}

thread_local! {
    /// The lane of the thread, and behind it those of the replicas for which it works.
    static LANES: RefCell<Vec<Lane>> = RefCell::new(vec![Lane::new(thread_name())]);
}

/// Reads the name of a replica from the field of its span.
#[derive(Default)]
struct Name(String);

impl Visit for Name {
    fn record_str(&mut self, _: &Field, value: &str) {
        value.clone_into(&mut self.0);
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

fn thread_name() -> Arc<str> {
    let thread = std::thread::current();
    match thread.name() {
        Some(name) => name.into(),
        None => format!("{:?}", thread.id()).into(),
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Listener {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        let krate = metadata.target().split("::").next().unwrap_or_default();
        ON.load(Ordering::SeqCst) && metadata.is_span() && OURS.contains(&krate)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match ON.load(Ordering::SeqCst) {
            true => LevelFilter::INFO,
            false => LevelFilter::OFF,
        })
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let (REPLICA, Some(span)) = (attributes.metadata().name(), context.span(id)) {
            let mut name = Name::default();
            attributes.record(&mut name);
            span.extensions_mut().insert(name);
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        let span = context.span(id);
        let replica =
            span.and_then(|span| Some(span.extensions().get::<Name>()?.0.as_str().into()));
        LANES.with_borrow_mut(|lanes| match replica {
            Some(name) => lanes.push(Lane::new(name)),
            None => lanes.last_mut().expect("its own").open.push(Instant::now()),
        });
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        let end = Instant::now();
        let Some(metadata) = context.metadata(id) else {
            return;
        };
        LANES.with_borrow_mut(|lanes| {
            if metadata.name() == REPLICA {
                return drop(lanes.pop());
            }
            let lane = lanes.last_mut().expect("its own");
            let Some(begin) = lane.open.pop() else {
                return;
            };
            let heard = Heard {
                name: metadata.name(),
                lane: lane.name.clone(),
                begin,
                end,
                depth: lane.open.len(),
            };
            let mut log = log();
            if log.recordings > 0 {
                log.spans.push(heard);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Result};
    use d2l::on_replica;

    /// The spans of this thread: other tests may record, and have spans, meanwhile.
    fn own(timeline: &Timeline) -> Vec<(&str, usize)> {
        let own = timeline.spans().iter().filter(|s| s.lane == thread_name());
        own.map(|span| (span.name, span.depth)).collect()
    }

    #[test]
    fn recordings_take_nothing_from_each_other() {
        let span = |name: &str| match name {
            "split" => tracing::info_span!("split").entered(),
            _ => tracing::info_span!("sum").entered(),
        };
        drop(span("split"));
        let (inner, outer) = Timeline::record(|| {
            drop(span("split"));
            let (_, inner) = Timeline::record(|| {
                let _split = span("split");
                drop(span("sum"));
            });
            drop(span("sum"));
            inner
        });
        drop(span("split"));
        assert_eq!(own(&inner), [("split", 0), ("sum", 1)]);
        let all = [("split", 0), ("split", 0), ("sum", 1), ("sum", 0)];
        assert_eq!(own(&outer), all);
    }

    #[test]
    fn spans_and_events_of_libraries_are_left_out() {
        let (_, timeline) = Timeline::record(|| {
            let _theirs = tracing::info_span!(target: "hyper::client", "split").entered();
            let _detail = tracing::debug_span!("detail").entered();
            tracing::info!("an event");
            let _ours = tracing::info_span!(target: "functional::graph", "forward").entered();
        });
        assert_eq!(own(&timeline), [("forward", 0)]);
    }

    #[test]
    fn a_replica_has_a_lane_on_whatever_thread_it_is_and_a_panic_ends_it() -> Result<()> {
        let forward = |i| {
            on_replica(i, &Device::Cpu, || {
                let _span = tracing::info_span!("forward").entered();
                if i == 52 { panic!("no memory") } else { Ok(()) }
            })
        };
        let (done, timeline) = Timeline::record(|| {
            let _outer = tracing::info_span!("all-reduce").entered();
            forward(51)?;
            forward(52).unwrap_err();
            drop(tracing::info_span!("update").entered());
            Ok(())
        });
        let spans = timeline.spans().iter();
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        let lanes = [thread.as_str(), "cpu(51)", "cpu(52)"];
        let ours = spans.filter(|span| lanes.contains(&&*span.lane));
        let ours: Vec<_> = ours.map(|s| (&*s.lane, s.name, s.depth)).collect();
        let [own, first, second] = lanes;
        let expected = [
            (own, "all-reduce", 0),
            (first, "forward", 0),
            (second, "forward", 0),
            (own, "update", 1),
        ];
        assert_eq!(ours, expected);
        done
    }
}
