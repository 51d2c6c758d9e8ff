//! Measures in rounds, A B C … A B C …, so that a slow phase of the machine affects all contenders.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};

use super::contender::Contender;
use super::machine::Spent;
use super::process::Process;
use super::stats::Summary;
use super::work::Work;

/// The pause between two contenders. OpenMP's threads look for work for 0.2 s, and would be in the way of the next one.
const SETTLE: Duration = Duration::from_millis(300);

/// Length of a measurement.
pub struct Effort {
    /// The number of rounds; each contender is timed once in each round.
    pub rounds: usize,
    /// A contender that has been timed for this many seconds with one kind of step is not timed again.
    pub seconds: f64,
    /// Steps before the first turn.
    pub warm_up: usize,
    /// Steps of a turn, at least. A process that lives for one turn does one step, and that is the time of its round.
    pub least_steps: usize,
    /// Steps of a turn, at most.
    pub most_steps: usize,
    /// True if the processes live on between rounds, however much memory a step takes.
    pub live_on: bool,
}

/// A contender and its measurements for one kind of step.
pub struct Row {
    /// The contender.
    pub contender: Contender,
    /// The name and version that its process reports.
    pub version: String,
    /// Milliseconds of a step: the median of each round.
    pub times: Vec<f64>,
    /// The most memory that it had, in MiB.
    pub memory: f64,
    /// Use of the processor's time while it was measured.
    pub spent: Spent,
    /// Its process, if this lives on between rounds.
    process: Option<Process>,
    /// Steps of a turn: enough for a third of a second, within the bounds of [`Effort`].
    steps: usize,
}

/// Measures one kind of step with all contenders.
///
/// # Errors
/// If a contender fails.
pub fn measure(work: &Work, contenders: &[Contender], effort: &Effort) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = contenders.iter().map(Row::new).collect();
    for round in 1..=effort.rounds {
        for row in &mut rows {
            if row.spent.seconds < effort.seconds {
                let Contender { name, threads, .. } = &row.contender;
                let what = format!("{work}: {name}, threads: {threads}");
                let done = row.turn(work, effort).with_context(|| what.clone())?;
                eprintln!("{what}, round {round} of {}: {done:.1} ms", effort.rounds);
            }
        }
    }
    // the next kind of step needs their memory
    rows.iter_mut().for_each(|row| row.process = None);
    Ok(rows)
}

impl Row {
    /// A row without times.
    pub fn new(contender: &Contender) -> Self {
        Self {
            contender: contender.clone(),
            version: String::new(),
            times: Vec::new(),
            memory: f64::NAN,
            spent: Spent::default(),
            process: None,
            steps: 1,
        }
    }

    /// The median of the rounds.
    pub fn median(&self) -> f64 {
        Summary::of(&self.times).median
    }

    /// One turn; returns the milliseconds of a step.
    fn turn(&mut self, work: &Work, effort: &Effort) -> Result<f64> {
        let mut process = match self.process.take() {
            // After a pause the first step takes longer, on some virtual machines by a half
            Some(mut process) => {
                process.ask(1, &mut Spent::default())?;
                process
            }
            None => self.warm_up(work, effort)?,
        };
        let times = process.ask(self.steps, &mut self.spent)?;
        let median = Summary::of(&times).median;
        self.times.push(median);
        self.memory = process.peak_memory().max(self.memory);
        sleep(SETTLE);
        if effort.live_on || !work.is_large() {
            self.process = Some(process);
        }
        Ok(median)
    }

    /// A process that has done its first steps, which are slower than the others.
    fn warm_up(&mut self, work: &Work, effort: &Effort) -> Result<Process> {
        let mut process = Process::start(self.contender.command(work))?;
        let once = work.is_large() && !effort.live_on;
        let first = if once { 1 } else { effort.warm_up };
        let not_counted = &mut Spent::default();
        let mut times = process.ask(first, not_counted)?;
        if effort.live_on {
            // the first steps also loaded libraries and compiled: what one takes is seen in the next
            times = process.ask(effort.warm_up, not_counted)?;
        }
        let last = times.last().context("no step")?;
        let least = if once { 1 } else { effort.least_steps };
        self.steps = ((333.0 / last) as usize).clamp(least, effort.most_steps);
        self.version = process.version.clone();
        sleep(SETTLE);
        Ok(process)
    }
}
