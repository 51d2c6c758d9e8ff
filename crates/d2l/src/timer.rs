//! A stopwatch that remembers its times.

use std::time::Instant;

/// Records several running times in seconds, as in the book's "Linear Regression".
///
/// ```
/// let mut timer = d2l::Timer::new();
/// timer.start();
/// timer.stop();
/// timer.start();
/// timer.stop();
/// assert_eq!(timer.sum(), timer.times()[0] + timer.times()[1]);
/// assert_eq!(timer.avg(), timer.sum() / 2.0);
/// ```
#[derive(Debug, Clone)]
pub struct Timer {
    started: Instant,
    /// Seconds that count to the time which is recorded next.
    before: f64,
    times: Vec<f64>,
}

impl Timer {
    /// A timer that runs.
    pub fn new() -> Self {
        Self {
            started: Instant::now(),
            before: 0.0,
            times: Vec::new(),
        }
    }

    /// A timer that goes on after `times`, and after `before` seconds of the next one.
    pub fn after(times: Vec<f64>, before: f64) -> Self {
        Self {
            before,
            times,
            ..Self::new()
        }
    }

    /// Seconds since the last start.
    pub fn running(&self) -> f64 {
        self.before + self.started.elapsed().as_secs_f64()
    }

    /// Starts the clock anew.
    pub fn start(&mut self) {
        self.started = Instant::now();
    }

    /// Records the time since the last start, and returns it.
    pub fn stop(&mut self) -> f64 {
        let time = self.running();
        self.before = 0.0;
        self.times.push(time);
        time
    }

    /// The mean time; 0 where nothing was recorded.
    pub fn avg(&self) -> f64 {
        self.sum() / self.times.len().max(1) as f64
    }

    /// The sum of the times.
    pub fn sum(&self) -> f64 {
        self.times.iter().fold(0.0, |sum, time| sum + time) // `sum` of nothing is -0
    }

    /// The recorded times.
    pub fn times(&self) -> &[f64] {
        &self.times
    }
}

impl Default for Timer {
    fn default() -> Self {
        Self::new()
    }
}
