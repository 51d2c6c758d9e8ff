//! Measures in rounds, A B C … A B C …, so that a slow phase of the machine affects all contenders.

use anyhow::{Context, Result};

use super::contender::Contender;
use super::machine::Spent;
use super::process::Process;
use super::stats::Summary;
use super::work::Work;

/// How long to measure.
pub struct Plan {
    /// The number of rounds; each contender is timed once in each round.
    pub rounds: usize,
    /// A contender that has been timed for so many seconds with one kind of step is not timed again.
    pub seconds: f64,
    /// Steps before the first turn.
    pub warm_up: usize,
    /// Steps of a turn, at most.
    pub most_steps: usize,
    /// Whether the processes live on between rounds, however much memory a step takes.
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
    /// Seconds of the first step of its first process. In it, torch.compile compiles.
    pub first_step: Option<f64>,
    /// The most memory that it had, in MiB.
    pub memory: f64,
    /// Where the processor's time went while it was measured.
    pub spent: Spent,
    /// Its process, if this lives on between rounds.
    process: Option<Process>,
    /// Steps of a turn: enough for a third of a second.
    steps: usize,
}

/// Measures one kind of step with all contenders.
///
/// # Errors
/// If a contender fails.
pub fn measure(work: &Work, contenders: &[Contender], plan: &Plan) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = contenders.iter().map(Row::new).collect();
    for round in 1..=plan.rounds {
        for row in &mut rows {
            if row.spent.seconds < plan.seconds {
                let what = format!("{work}: {}", row.contender.label());
                let done = row.turn(work, plan).with_context(|| what.clone())?;
                eprintln!("{what}, round {round} of {}: {done:.1} ms", plan.rounds);
            }
        }
    }
    Ok(rows)
}

impl Row {
    /// A row without times.
    pub fn new(contender: &Contender) -> Self {
        Self {
            contender: contender.clone(),
            version: String::new(),
            times: Vec::new(),
            first_step: None,
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
    fn turn(&mut self, work: &Work, plan: &Plan) -> Result<f64> {
        let mut process = match self.process.take() {
            Some(process) => process,
            None => self.warm_up(work, plan)?,
        };
        let (times, spent) = process.ask(self.steps)?;
        let median = Summary::of(&times).median;
        self.times.push(median);
        self.spent += spent;
        self.memory = process.peak_memory().max(self.memory);
        process.settle();
        if plan.live_on || !work.is_large() {
            self.process = Some(process);
        }
        Ok(median)
    }

    /// A process that has done its first steps, which are slower than the others.
    fn warm_up(&mut self, work: &Work, plan: &Plan) -> Result<Process> {
        let mut process = Process::start(self.contender.command(work))?;
        let once = work.is_large() && !plan.live_on;
        let (mut times, _) = process.ask(if once { 1 } else { plan.warm_up })?;
        self.first_step.get_or_insert(times[0] / 1e3);
        if plan.live_on {
            // the first steps also loaded libraries and compiled: what one takes is seen in the next
            (times, _) = process.ask(plan.warm_up)?;
        }
        let last = times.last().context("no step")?;
        self.steps = (333.0 / last).clamp(1.0, plan.most_steps as f64) as usize;
        self.version = process.version.clone();
        process.settle();
        Ok(process)
    }
}
