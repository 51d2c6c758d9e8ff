//! The bar on stderr: how far an epoch is, how fast, and how much time is left. It is drawn only where stderr is a
//! terminal, and nothing of it stays.

use std::fmt::Write;
use std::time::{Duration, Instant};

use indicatif::{FormattedDuration, ProgressBar, ProgressState, ProgressStyle};

use crate::lines::Sizes;
use crate::say::{is_quiet, set_bar};

const WAITING: &str = "{prefix} {spinner} {elapsed_precise} {wide_msg}";
const TRAINING: &str =
    "{prefix} {wide_bar:.cyan} loss {msg}, {per_sec:0}, {eta_precise} left, run {run}";

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
}

impl Bar {
    /// A bar that is drawn from the first epoch's beginning on, if stderr is a terminal.
    pub fn new(sizes: Sizes) -> Self {
        let bar = match is_quiet() || console::is_dumb() {
            true => ProgressBar::hidden(),
            false => ProgressBar::new(sizes.train as u64),
        };
        set_bar(&bar);
        Self {
            bar,
            sizes,
            epoch: 0,
            waits: true,
            tests_since: Instant::now(),
            test_seconds: None,
        }
    }

    /// An epoch begins, or goes on after so many examples.
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
        self.bar.set_message(format!("{loss:.3}"));
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
        if self.bar.is_hidden() {
            return;
        }
        let prefix = format!("epoch {}/{}", self.epoch, self.sizes.epochs);
        self.bar.set_style(style(WAITING)); // first: what follows draws
        self.bar.set_prefix(prefix);
        self.bar.set_message(what);
        self.bar.enable_steady_tick(Duration::from_millis(100));
    }
}

fn training(epoch: usize, sizes: Sizes, test_seconds: Option<f64>) -> ProgressStyle {
    let run = move |state: &ProgressState, line: &mut dyn Write| {
        let (left, pace) = (state.eta().as_secs_f64(), 1.0 / state.per_sec());
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
    fn the_bar_fits_in_a_line_of_eighty_columns() {
        let term = InMemoryTerm::new(4, 80);
        let target = ProgressDrawTarget::term_like(Box::new(term.clone()));
        let bar = ProgressBar::with_draw_target(Some(60_000), target)
            .with_prefix("epoch 10/10")
            .with_message("2.303");
        bar.set_style(training(10, SIZES, Some(36_000.0)));
        bar.set_position(30_000);
        let line = term.contents();
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(line.contains('░'), "{line}");
        assert!(line.contains(" left, run 10:00:"), "{line}");
    }
}
