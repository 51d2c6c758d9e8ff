//! The bar on stderr: how far an epoch is, how fast, and how much time is left. It is decoration: it is
//! drawn only where stderr is a terminal, and nothing of it stays.

use std::fmt::Write;
use std::io;
use std::time::{Duration, Instant};

use console::Term;
use indicatif::style::ProgressTracker;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle, TermLike};

use crate::say::set_bar;

/// One bar for a run, which begins anew in each epoch.
#[derive(Debug)]
pub(crate) struct Bar {
    bar: ProgressBar,
    epoch: usize,
    plan: Plan,
    /// The columns that the bar was made for; 0 while a spinner turns, because the speed is not known.
    columns: u16,
    /// Since when the network is tested.
    tests_since: Option<Instant>,
}

/// What a run has before it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Plan {
    pub epochs: usize,
    pub train_examples: usize,
    pub test_examples: usize,
    /// Seconds that the last evaluation took.
    pub test_seconds: Option<f64>,
}

impl Default for Bar {
    /// A bar that is not drawn.
    fn default() -> Self {
        Self {
            bar: ProgressBar::hidden(),
            epoch: 0,
            plan: Plan::default(),
            columns: 0,
            tests_since: None,
        }
    }
}

impl Bar {
    /// A bar that is drawn from the first epoch's beginning on, where stderr is a terminal.
    pub fn on_stderr(plan: Plan) -> Self {
        let term = Term::buffered_stderr();
        if !term.is_term() || console::is_dumb() {
            return Self::default();
        }
        let target = ProgressDrawTarget::term_like_with_hz(Box::new(Narrower(term)), 20);
        let bar = ProgressBar::with_draw_target(Some(plan.train_examples as u64), target);
        set_bar(&bar);
        Self {
            bar,
            plan,
            ..Self::default()
        }
    }

    /// An epoch begins, or goes on after so many examples; a spinner turns until the first loss is there.
    pub fn begin(&mut self, epoch: usize, had: usize) {
        self.epoch = epoch;
        self.wait("the first minibatch".to_owned());
        let left = self.plan.train_examples.saturating_sub(had);
        self.bar.set_length(left as u64);
        self.bar.reset();
    }

    /// A minibatch is done.
    pub fn step(&mut self, examples: usize, loss: f32) {
        if self.bar.is_hidden() {
            return;
        }
        self.bar.inc(examples as u64);
        let columns = Narrower(Term::stderr()).width();
        if self.columns != columns {
            self.columns = columns;
            self.bar.disable_steady_tick();
            self.bar.set_style(training(self.epoch, self.plan, columns));
        }
        self.bar.set_message(format!("{loss:.3}"));
    }

    /// The last minibatch is done, and the network is tested.
    pub fn test(&mut self) {
        self.tests_since = Some(Instant::now());
        self.bar.reset_elapsed();
        let n = self.plan.test_examples;
        self.wait(format!("testing on {n} examples"));
    }

    /// The epoch is over, and the bar gone.
    pub fn clear(&mut self) {
        if let Some(since) = self.tests_since.take() {
            self.plan.test_seconds = Some(since.elapsed().as_secs_f64());
        }
        self.bar.finish_and_clear();
    }

    fn wait(&mut self, what: String) {
        self.columns = 0;
        if self.bar.is_hidden() {
            return;
        }
        let prefix = format!("epoch {}/{}", self.epoch, self.plan.epochs);
        self.bar.set_style(waiting()); // first: what follows draws
        self.bar.set_prefix(prefix);
        self.bar.set_message(what);
        self.bar.enable_steady_tick(Duration::from_millis(100));
    }
}

fn waiting() -> ProgressStyle {
    let elapsed = |state: &ProgressState| state.elapsed().as_secs_f64();
    style("{prefix} {spinner} {time} {wide_msg}").with_key("time", time(elapsed))
}

/// What fits in so many columns, the bar itself with at least eight.
fn template(columns: u16) -> &'static str {
    match columns {
        76.. => "{prefix} {wide_bar:.cyan} loss {msg}, {rate} examples/s, {left} left, run {run}",
        62.. => "{prefix} {wide_bar:.cyan} loss {msg}, {rate} examples/s, {left} left",
        44.. => "{prefix} {wide_bar:.cyan} loss {msg}, {left} left",
        34.. => "{prefix} {wide_bar:.cyan} {msg} {left}",
        _ => "{prefix} {wide_bar:.cyan} {left}",
    }
}

fn training(epoch: usize, plan: Plan, columns: u16) -> ProgressStyle {
    let run = move |state: &ProgressState| plan.seconds_left(epoch, left(state), pace(state));
    style(template(columns))
        .with_key("rate", |state: &ProgressState, w: &mut dyn Write| {
            let _ = write!(w, "{:.0}", 1.0 / pace(state));
        })
        .with_key("left", time(left))
        .with_key("run", time(run))
        .progress_chars("█▉▊▋▌▍▎▏░")
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is valid")
}

/// Seconds for an example: the mean since the epoch began, so that it is of use from the first step on.
fn pace(state: &ProgressState) -> f64 {
    state.elapsed().as_secs_f64() / state.pos().max(1) as f64
}

/// Seconds until all examples were seen.
fn left(state: &ProgressState) -> f64 {
    let examples = state.len().unwrap_or(0).saturating_sub(state.pos());
    examples as f64 * pace(state)
}

impl Plan {
    /// Seconds until the last epoch's end, from those that are left of training in this one, and those for an example.
    fn seconds_left(&self, epoch: usize, left: f64, pace: f64) -> f64 {
        // a third: forward is what there is of training, and backward takes twice as long
        let test = self
            .test_seconds
            .unwrap_or(self.test_examples as f64 * pace / 3.0);
        let more = self.epochs.saturating_sub(epoch) as f64;
        left + test + more * (self.train_examples as f64 * pace + test)
    }
}

/// A key of a template that shows seconds as a clock does.
fn time(
    seconds: impl Fn(&ProgressState) -> f64 + Clone + Send + Sync + 'static,
) -> impl ProgressTracker {
    move |state: &ProgressState, w: &mut dyn Write| {
        let _ = w.write_str(&clock(seconds(state)));
    }
}

/// `01:23`, or from an hour on `1:23:45`.
fn clock(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes:02}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

/// A terminal that leaves its last columns free: there the `^C` of Ctrl-C is written, which would go on in
/// a new line otherwise, and leave the bar behind.
#[derive(Debug)]
struct Narrower(Term);

impl TermLike for Narrower {
    fn width(&self) -> u16 {
        self.0.size().1.saturating_sub(3).max(1)
    }

    fn height(&self) -> u16 {
        self.0.size().0
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_up(n)
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_down(n)
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_right(n)
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_left(n)
    }

    fn write_line(&self, s: &str) -> io::Result<()> {
        self.0.write_line(s)
    }

    fn write_str(&self, s: &str) -> io::Result<()> {
        self.0.write_str(s)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.0.clear_line()
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::InMemoryTerm;

    #[test]
    fn a_clock_shows_hours_where_there_are_any() {
        assert_eq!(clock(0.4), "00:00");
        assert_eq!(clock(59.6), "01:00");
        assert_eq!(clock(3599.0), "59:59");
        assert_eq!(clock(5025.0), "1:23:45");
    }

    #[test]
    fn the_run_is_what_is_left_of_this_epoch_and_the_others() {
        let plan = Plan {
            epochs: 3,
            train_examples: 600,
            test_examples: 300,
            test_seconds: None,
        };
        // 0.01 s an example: 6 s of training and, for a third of that an example, 1 s of testing
        let left = |plan: Plan, epoch| plan.seconds_left(epoch, 2.0, 0.01);
        assert_eq!(left(plan, 1), 2.0 + 1.0 + 2.0 * 7.0);
        assert_eq!(left(plan, 3), 2.0 + 1.0);
        let measured = Plan {
            test_seconds: Some(4.0),
            ..plan
        };
        assert_eq!(left(measured, 2), 2.0 + 4.0 + 10.0);
    }

    /// What the bar looks like half way through an epoch.
    fn drawn(columns: u16, epochs: usize) -> String {
        let term = InMemoryTerm::new(4, columns);
        let target = ProgressDrawTarget::term_like(Box::new(term.clone()));
        let plan = Plan {
            epochs,
            train_examples: 60_000,
            test_examples: 10_000,
            test_seconds: Some(36_000.0),
        };
        let bar = ProgressBar::with_draw_target(Some(60_000), target)
            .with_prefix(format!("epoch {epochs}/{epochs}"))
            .with_message("2.303")
            .with_elapsed(Duration::from_secs(1));
        bar.set_style(training(epochs, plan, columns));
        bar.set_position(30_000);
        term.contents()
    }

    #[test]
    fn no_phase_begins_with_the_looks_of_another() {
        let term = InMemoryTerm::new(4, 80);
        let target = ProgressDrawTarget::term_like_with_hz(Box::new(term.clone()), 255);
        let mut bar = Bar {
            bar: ProgressBar::with_draw_target(Some(100), target),
            ..Bar::default()
        };
        bar.begin(1, 0);
        let drawn = term.moves_since_last_check();
        assert!(drawn.contains("the first minibatch"), "{drawn}");
        assert!(!drawn.contains("/100"), "{drawn}");
        bar.step(50, 2.3);
        let drawn = term.moves_since_last_check();
        assert!(drawn.contains("examples/s, "), "{drawn}");
        bar.test();
        let drawn = term.moves_since_last_check();
        assert!(drawn.contains("testing on"), "{drawn}");
        assert!(!drawn.contains("examples/s, "), "{drawn}");
    }

    #[test]
    fn the_bar_fits_in_any_terminal() {
        for columns in [24, 37, 47, 57, 61, 62, 75, 77, 117] {
            let line = drawn(columns, 100);
            assert_eq!(line.lines().count(), 1, "{columns}: {line}");
            let cells = line.chars().filter(|c| "█▉▊▋▌▍▎▏░".contains(*c)).count();
            assert!(columns < 30 || cells >= 6, "{columns}: {line}");
        }
        assert!(drawn(77, 10).ends_with("examples/s, 00:01 left, run 10:00:01"));
        assert!(drawn(37, 10).ends_with("2.303 00:01"));
    }
}
