//! Schedules of the learning rate: what it is multiplied by at each step, counted from 0, for
//! [`Trainer::schedule`](crate::Trainer::schedule). [`step()`] gives what PyTorch's `StepLR` gives. The others differ from
//! PyTorch's schedulers in their ends, as each says.

use std::f64::consts::PI;

/// From 1 down to 0 along half a cosine, in `steps` steps; 0 after them. Up to there PyTorch's
/// `CosineAnnealingLR(optimizer, T_max=steps)` gives the same. After them PyTorch's rises again.
///
/// ```
/// let lr = data_parallel::schedule::cosine(100);
/// assert_eq!([0, 50, 100].map(|step| (100.0 * lr(step)).round()), [100.0, 50.0, 0.0]);
/// ```
pub fn cosine(steps: usize) -> impl Fn(usize) -> f64 + Clone {
    move |step| (1.0 + libm::cos(PI * done(step, steps))) / 2.0
}

/// From 1 down to 0 along a line, in `steps` steps; 0 after them. It is PyTorch's
/// `LinearLR(optimizer, start_factor=1, end_factor=0, total_iters=steps)`. By itself, `LinearLR` rises from 1/3 to 1 in 5
/// steps, which is a warm-up.
///
/// ```
/// let lr = data_parallel::schedule::linear(4);
/// assert_eq!([0, 1, 3, 4, 9].map(lr), [1.0, 0.75, 0.25, 0.0, 0.0]);
/// ```
pub fn linear(steps: usize) -> impl Fn(usize) -> f64 + Clone {
    move |step| 1.0 - done(step, steps)
}

/// Multiplied by `factor` after every `every` steps.
///
/// ```
/// let lr = data_parallel::schedule::step(30, 0.1);
/// assert_eq!([0, 29, 30, 59].map(lr), [1.0, 1.0, 0.1, 0.1]);
/// ```
///
/// # Panics
/// If `every` is 0.
pub fn step(every: usize, factor: f64) -> impl Fn(usize) -> f64 + Clone {
    assert!(every > 0, "a schedule changes every 1 step at least");
    move |step| libm::pow(factor, (step / every) as f64)
}

/// In three tenths of the steps from 1/25 up to 1, in the others down to 1/250,000, both along half a cosine:
/// "Super-Convergence", with the numbers of PyTorch's `OneCycleLR`, whose `max_lr` is the rate of the optimizer. It moves no
/// momentum, which PyTorch's does unless `cycle_momentum=False`. After the last step it stays, where PyTorch's is an error.
pub fn one_cycle(steps: usize) -> impl Fn(usize) -> f64 + Clone {
    let up = 0.3 * steps as f64 - 1.0;
    let down = steps as f64 - 1.0 - up;
    let between =
        |from: f64, to: f64, done: f64| to + (from - to) * (1.0 + libm::cos(PI * done)) / 2.0;
    move |step| match step as f64 {
        step if step <= up => between(1.0 / 25.0, 1.0, step / up),
        step => between(1.0, 4e-6, ((step - up) / down).min(1.0)),
    }
}

/// In the first `steps` along a line up to where `then` begins, which counts its steps from there: large minibatches
/// need it ("Accurate, Large Minibatch SGD").
///
/// ```
/// use data_parallel::schedule::{cosine, warmup};
/// let lr = warmup(4, cosine(100));
/// assert_eq!([0, 1, 3, 4, 104].map(lr), [0.25, 0.5, 1.0, 1.0, 0.0]);
/// ```
pub fn warmup<S: Fn(usize) -> f64 + Clone>(steps: usize, then: S) -> impl Fn(usize) -> f64 + Clone {
    move |step| match step.checked_sub(steps) {
        None => then(0) * (step + 1) as f64 / steps as f64,
        Some(step) => then(step),
    }
}

/// The part of `steps` that is over.
fn done(step: usize, steps: usize) -> f64 {
    (step as f64 / steps.max(1) as f64).min(1.0)
}
