//! Exercises to fill in. `cargo run -p lab` shows the first one that is not solved, and checks it when its file is saved.
//!
//! An exercise is a file of `exercises/`: its task, and its solution, in which the gaps are marked. Its check stands in
//! `checks/`. Readers write in copies, in the folder `lab` of the repository, which git ignores.
//!
//! The build cuts out the gaps, and `tests/answers.rs` compiles all gaps, solutions and wrong answers as modules of
//! one program. Hints and wrong answers stand in `hints/` and `tests/wrong/`. No other build reads the copies.
//!
//! [`Exercise`] is one of them, and [`Desk`] the folder with the copies. [`outcome`](answer::outcome) compiles an answer
//! and runs it with its check, and [`judge`] runs the check. [`training`] trains with the answers to exercises 1 to 5.
//! [`steps`] are what exercise 5b tests. [`race`] runs the schedule of a puzzle on threads.

extern crate data_parallel_collective as collective;
extern crate data_parallel_devices as devices;

pub mod answer;
mod desk;
mod exercise;
mod judge;
pub mod puzzle;
pub mod race;
pub mod steps;
pub mod training;

pub use desk::{Desk, repository};
pub use devices::without_backtrace;
pub use exercise::{ALL, Exercise, FIRST_PUZZLE, FUNCTIONS};
pub use judge::{Check, judge, print_verdict, same};
