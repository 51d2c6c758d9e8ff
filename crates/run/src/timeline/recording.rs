//! Records the spans that have a kind, on all threads of the process.
//!
//! The process has one subscriber of `tracing`, which the first recording installs. Where nothing is recorded, all
//! spans are disabled: a span then costs what it costs without a subscriber, a look at a number.

use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Once};
use std::time::Instant;

use tracing::callsite::rebuild_interest_cache;
use tracing::field::Field;
use tracing::span::Attributes;
use tracing::{Id, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, SpanRef};

use crate::timeline::picture::KINDS;
use crate::timeline::{Span, Timeline};

/// The span of a replica's work; its field is the replica's name.
const REPLICA: &str = "replica";

impl Timeline {
    /// Runs `f`, and records all spans meanwhile, on all threads of the process: also those that do not
    /// belong to `f`.
    ///
    /// Two recordings at the same time, or one in the other, take nothing from each other.
    ///
    /// # Panics
    /// If the process has a subscriber of `tracing` that is not this one.
    pub fn record<T>(f: impl FnOnce() -> T) -> (T, Self) {
        let recording = Recording::start();
        let done = f();
        (done, recording.timeline())
    }
}

/// A recording, until it is dropped.
#[derive(Debug)]
pub(crate) struct Recording {
    begin: f64,
}

impl Recording {
    /// Begins to record.
    ///
    /// # Panics
    /// If the process has another subscriber of `tracing`.
    pub fn start() -> Self {
        static INSTALL: Once = Once::new();
        INSTALL.call_once(|| {
            let subscriber = tracing_subscriber::registry().with(Recorder);
            tracing::subscriber::set_global_default(subscriber)
                .expect("a timeline needs a process without another subscriber of tracing");
        });
        log().recordings += 1;
        rebuild_interest_cache();
        Self { begin: now() }
    }

    /// The spans that began since the start, and have ended.
    pub fn timeline(&self) -> Timeline {
        let mut spans = log().spans.clone();
        spans.retain(|span| span.begin >= self.begin);
        Timeline::new(spans)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let mut log = log();
        log.recordings -= 1;
        if log.recordings == 0 {
            log.spans = Vec::new();
        }
        drop(log);
        rebuild_interest_cache();
    }
}

/// The part of the subscriber that keeps spans.
struct Recorder;

/// The spans since the first of the recordings that go on. `tracing` reads it while it looks which spans are enabled,
/// so it must not be locked then.
struct Log {
    recordings: usize,
    spans: Vec<Span>,
}

fn log() -> MutexGuard<'static, Log> {
    static LOG: Mutex<Log> = Mutex::new(Log {
        recordings: 0,
        spans: Vec::new(),
    });
    devices::lock(&LOG)
}

/// µs since the first look at this clock.
fn now() -> f64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as f64 / 1e3
}

/// When a span was entered, and the replica that it names.
#[derive(Default)]
struct Data {
    begin: f64,
    replica: Option<Arc<str>>,
}

fn thread_name() -> Arc<str> {
    let thread = std::thread::current();
    match thread.name() {
        Some(name) => name.into(),
        None => format!("{:?}", thread.id()).into(),
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        let name = metadata.name();
        let is_ours = name == REPLICA || KINDS.iter().any(|kind| kind.0 == name);
        let is_wanted = is_ours && metadata.is_span() && *metadata.level() == Level::INFO;
        is_wanted && log().recordings > 0
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut data = Data::default();
        if attributes.metadata().name() == REPLICA {
            attributes.record(&mut |_: &Field, name: &dyn fmt::Debug| {
                data.replica = Some(format!("{name:?}").into());
            });
        }
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(data);
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(data) = span.extensions_mut().get_mut::<Data>()
        {
            data.begin = now();
        }
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        let end = now();
        let Some(span) = context.span(id).filter(|span| span.name() != REPLICA) else {
            return;
        };
        let begin = span
            .extensions()
            .get()
            .map_or(end, |data: &Data| data.begin);
        // up to the replica for which the thread works, if it works for one
        let outer = span.scope().skip(1);
        let depth = outer.take_while(|span| span.name() != REPLICA).count();
        let replica = |span: SpanRef<'_, S>| span.extensions().get::<Data>()?.replica.clone();
        let lane = span.scope().find_map(replica).unwrap_or_else(thread_name);
        let mut log = log();
        if log.recordings > 0 {
            log.spans.push(Span {
                name: span.name(),
                lane,
                begin,
                end,
                depth,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Result};
    use devices::on_replica;

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
            let _theirs = tracing::info_span!("request").entered();
            let _detail = tracing::debug_span!("sum").entered();
            tracing::info!("an event");
            let _ours = tracing::info_span!("forward").entered();
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
