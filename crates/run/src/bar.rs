//! The bar on stderr: how far an epoch is, how fast, and how much time is left. It is drawn only where stderr is a
//! terminal, and nothing of it stays. Elsewhere a long epoch says from time to time how far it is, in a line.

use std::fmt::Write;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use indicatif::{FormattedDuration, ProgressBar, ProgressState, ProgressStyle};

use crate::lines::Sizes;
use crate::say::{is_quiet, set_bar, tell};

const WAITING: &str = "{prefix} {spinner} {elapsed_precise} {wide_msg}";
const TRAINING: &str =
    "{prefix} {wide_bar:.cyan} {msg}, {per_sec:0}, {eta_precise} left, run {run}";

/// A run without a bar says something at least once in this time, or in twice this time.
const SILENCE: Duration = Duration::from_secs(60);

/// One bar for a run, which begins anew in each epoch.
#[derive(Debug)]
pub(crate) struct Bar {
    bar: ProgressBar,
    sizes: Sizes,
    epoch: usize,
    /// A spinner turns while the speed is not known: before the first loss, and while the network is tested.
    waits: bool,
    tests_since: Instant,
    /// Seconds that the last evaluation took.
    test_seconds: Option<f64>,
    /// Dropped, it ends the thread that says how far an epoch is.
    _speaker: Option<Sender<()>>,
}

impl Bar {
    /// A bar that is drawn from the first epoch's beginning on, if stderr is a terminal.
    pub fn new(sizes: Sizes) -> Self {
        let bar = if is_quiet() || console::is_dumb() {
            ProgressBar::hidden()
        } else {
            ProgressBar::new(sizes.train as u64)
        };
        set_bar(&bar);
        let speaks = bar.is_hidden() && !is_quiet();
        Self {
            _speaker: speaks.then(|| speak(bar.clone(), sizes, SILENCE, |line| tell(&line))),
            bar,
            sizes,
            epoch: 0,
            waits: true,
            tests_since: Instant::now(),
            test_seconds: None,
        }
    }

    /// An epoch begins, or goes on after `had` examples.
    pub fn begin(&mut self, epoch: usize, had: usize) {
        self.epoch = epoch;
        self.wait("the first minibatch".to_owned());
        self.bar.set_length((self.sizes.train - had) as u64);
        self.bar.reset();
    }

    /// A minibatch is done.
    pub fn step(&mut self, examples: usize, loss: f32) {
        self.bar.inc(examples as u64);
        if std::mem::take(&mut self.waits) {
            self.bar.disable_steady_tick();
            let style = training(self.epoch, self.sizes, self.test_seconds);
            self.bar.set_style(style);
        }
        self.bar.set_message(format!("loss {loss:.3}"));
    }

    /// The last minibatch is done, and the network is tested.
    pub fn test(&mut self) {
        self.tests_since = Instant::now();
        self.bar.reset_elapsed();
        self.wait(format!("testing on {} examples", self.sizes.test));
    }

    /// The epoch is over, and the bar gone.
    pub fn clear(&mut self) {
        self.test_seconds = Some(self.tests_since.elapsed().as_secs_f64());
        self.bar.finish_and_clear();
    }

    fn wait(&mut self, what: String) {
        self.waits = true;
        let prefix = format!("epoch {}/{}", self.epoch, self.sizes.epochs);
        self.bar.set_style(style(WAITING)); // first: what follows draws
        self.bar.set_prefix(prefix);
        self.bar.set_message(what);
        if !self.bar.is_hidden() {
            self.bar.enable_steady_tick(Duration::from_millis(100));
        }
    }
}

/// Says how far an epoch is, each time that it takes longer than `every`, until the result is dropped. It is a thread,
/// because nothing else comes by while the network is tested, or waits for other processes.
fn speak(
    bar: ProgressBar,
    sizes: Sizes,
    every: Duration,
    say: impl Fn(String) + Send + 'static,
) -> Sender<()> {
    let (alive, ended) = channel();
    let look = move || {
        let mut last = String::new();
        while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
            let epoch = bar.prefix();
            if !epoch.is_empty() && epoch == last && !bar.is_finished() {
                // the bar has what is left of an epoch that goes on
                let all = sizes.train as u64;
                let left = bar.length().unwrap_or_default();
                let had = all - left + bar.position();
                say(format!(
                    "{epoch}: {had} of {all} examples, {}",
                    bar.message()
                ));
            }
            last = epoch;
        }
    };
    // without the thread the run is silent
    let _ = Builder::new().name("progress".into()).spawn(look);
    alive
}

fn training(epoch: usize, sizes: Sizes, test_seconds: Option<f64>) -> ProgressStyle {
    let run = move |state: &ProgressState, line: &mut dyn Write| {
        let left = state.eta().as_secs_f64();
        let pace = 1.0 / state.per_sec();
        let seconds = seconds_left(epoch, sizes, test_seconds, left, pace);
        let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let _ = write!(line, "{}", FormattedDuration(time));
    };
    style(TRAINING)
        .with_key("run", run)
        .progress_chars("█▉▊▋▌▍▎▏░")
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is valid")
}

/// Seconds until the last epoch's end, from those that are left of training in this one, and those for an example.
fn seconds_left(epoch: usize, sizes: Sizes, test: Option<f64>, left: f64, pace: f64) -> f64 {
    // a third: forward is what there is of training, and backward takes twice as long
    let test = test.unwrap_or(sizes.test as f64 * pace / 3.0);
    let more = sizes.epochs.saturating_sub(epoch) as f64;
    left + test + more * (sizes.train as f64 * pace + test)
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::{InMemoryTerm, ProgressDrawTarget};

    const SIZES: Sizes = Sizes {
        epochs: 3,
        train: 600,
        test: 300,
        batch: 50,
    };

    #[test]
    fn the_run_is_what_is_left_of_this_epoch_and_the_others() {
        // 0.01 s an example: 6 s of training and, for a third of that an example, 1 s of testing
        let left = |epoch, test| seconds_left(epoch, SIZES, test, 2.0, 0.01);
        assert_eq!(left(1, None), 2.0 + 1.0 + 2.0 * 7.0);
        assert_eq!(left(3, None), 2.0 + 1.0);
        assert_eq!(left(2, Some(4.0)), 2.0 + 4.0 + 10.0);
    }

    #[test]
    fn no_phase_begins_with_the_looks_of_another() {
        let term = InMemoryTerm::new(4, 80);
        let target = ProgressDrawTarget::term_like_with_hz(Box::new(term.clone()), 255);
        let mut bar = Bar {
            bar: ProgressBar::with_draw_target(Some(600), target),
            ..Bar::new(SIZES)
        };
        let mut drawn = |phase: &dyn Fn(&mut Bar), words: &str, not: &str| {
            phase(&mut bar);
            let drawn = term.moves_since_last_check();
            let drawn = drawn.rsplit("Clear").next().unwrap_or_default();
            assert!(drawn.contains(words) && !drawn.contains(not), "{drawn}");
        };
        drawn(&|bar| bar.begin(1, 0), "the first minibatch", "left");
        drawn(&|bar| bar.step(50, 2.3), "loss 2.300, ", "minibatch");
        drawn(&|bar| bar.test(), "testing on 300 examples", "left");
    }

    #[test]
    fn a_long_epoch_says_how_far_it_is_where_there_is_no_bar() {
        let (sender, lines) = channel();
        let every = Duration::from_millis(20);
        let hidden = ProgressBar::with_draw_target(Some(600), ProgressDrawTarget::hidden());
        let mut bar = Bar {
            _speaker: Some(speak(hidden.clone(), SIZES, every, move |line| {
                let _ = sender.send(line);
            })),
            bar: hidden,
            ..Bar::new(SIZES)
        };
        let next = |words: &str| {
            let start = Instant::now();
            while lines.recv_timeout(Duration::from_secs(10)).expect(words) != words {
                assert!(start.elapsed() < Duration::from_secs(10), "{words}");
            }
        };
        bar.begin(1, 0);
        next("epoch 1/3: 0 of 600 examples, the first minibatch");
        bar.step(50, 2.3);
        next("epoch 1/3: 50 of 600 examples, loss 2.300");
        bar.test();
        next("epoch 1/3: 50 of 600 examples, testing on 300 examples");
        bar.begin(2, 550); // a run that goes on
        next("epoch 2/3: 550 of 600 examples, the first minibatch");
        drop(bar);
        let start = Instant::now();
        while lines.recv_timeout(Duration::from_secs(10)) != Err(RecvTimeoutError::Disconnected) {
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "the thread goes on"
            );
        }
    }

    #[test]
    fn the_bar_fits_in_a_line_of_eighty_columns() {
        let term = InMemoryTerm::new(4, 80);
        let target = ProgressDrawTarget::term_like(Box::new(term.clone()));
        let bar = ProgressBar::with_draw_target(Some(60_000), target)
            .with_prefix("epoch 10/10")
            .with_message("loss 2.303");
        bar.set_style(training(10, SIZES, Some(36_000.0)));
        bar.set_position(30_000);
        let line = term.contents();
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(line.contains('░'), "{line}");
        assert!(line.contains(" left, run 10:00:"), "{line}");
    }
}
