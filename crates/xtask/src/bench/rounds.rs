//! Measures in rounds, A B C … A B C …, so that a slow phase of the machine affects all contenders.

use anyhow::{Context, Result};

use super::contender::Contender;
use super::process::{Answer, Process};
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

/// The measurements of a contender for one kind of step.
pub struct Row {
    /// The contender.
    pub contender: Contender,
    /// The name and version that its process reports.
    pub version: String,
    /// Milliseconds of a step: the median of each round.
    pub times: Vec<f64>,
    /// Seconds of its very first step, in which torch.compile compiles.
    pub first: Option<f64>,
    /// The most memory that it had, in MiB.
    pub memory: Option<f64>,
    seconds: f64,
    own: Option<f64>,
    other: Option<f64>,
}

impl Row {
    /// A row without times.
    pub fn new(contender: &Contender) -> Self {
        Self {
            contender: contender.clone(),
            version: String::new(),
            times: Vec::new(),
            first: None,
            memory: None,
            seconds: 0.0,
            own: Some(0.0),
            other: Some(0.0),
        }
    }

    fn add(&mut self, answer: &Answer, process: &Process) {
        let sum = |a: Option<f64>, b: Option<f64>| Some(a? + b?);
        self.times.push(Summary::of(&answer.times).median);
        self.seconds += answer.spent.seconds;
        self.own = sum(self.own, answer.spent.own);
        self.other = sum(self.other, answer.spent.other);
        let memory = [self.memory, process.peak_memory()];
        self.memory = memory.into_iter().flatten().reduce(f64::max);
    }

    /// How many cores it kept busy while it was measured.
    pub fn cores(&self) -> Option<f64> {
        Some(self.own? / self.seconds)
    }

    /// How many cores were at other work while it was measured.
    pub fn other(&self) -> Option<f64> {
        Some(self.other? / self.seconds)
    }
}

/// A contender with its process, if the process lives on between rounds.
struct Seat {
    row: Row,
    process: Option<Process>,
    /// Steps of a turn: enough for a third of a second.
    steps: usize,
    spent: f64,
}

/// Measures one kind of step with all contenders.
pub fn measure(work: &Work, contenders: &[Contender], plan: &Plan) -> Result<Vec<Row>> {
    let mut seats: Vec<Seat> = contenders.iter().map(Seat::new).collect();
    for round in 1..=plan.rounds {
        for seat in &mut seats {
            if seat.spent < plan.seconds {
                let who = seat.row.contender.label();
                let done = seat
                    .turn(work, plan)
                    .with_context(|| format!("{work}: {who}"))?;
                eprintln!(
                    "{work}, round {round} of {}: {who}: {done:.1} ms",
                    plan.rounds
                );
            }
        }
    }
    Ok(seats.into_iter().map(|seat| seat.row).collect())
}

impl Seat {
    fn new(contender: &Contender) -> Self {
        Self {
            row: Row::new(contender),
            process: None,
            steps: 1,
            spent: 0.0,
        }
    }

    /// One turn; returns the milliseconds of a step.
    fn turn(&mut self, work: &Work, plan: &Plan) -> Result<f64> {
        let mut process = match self.process.take() {
            Some(process) => process,
            None => self.warm_up(work, plan)?,
        };
        let answer = process.ask(self.steps)?;
        self.spent += answer.spent.seconds;
        self.row.add(&answer, &process);
        if !process.settle() {
            eprintln!("warning: its process keeps the cores busy while it waits");
        }
        if plan.live_on || !work.is_large() {
            self.process = Some(process);
        }
        Ok(*self.row.times.last().context("no turn")?)
    }

    /// A process that has done its first steps, which are slower than the others.
    fn warm_up(&mut self, work: &Work, plan: &Plan) -> Result<Process> {
        let mut process = Process::start(self.row.contender.command(work))?;
        let once = work.is_large() && !plan.live_on;
        let mut answer = process.ask(if once { 1 } else { plan.warm_up })?;
        let first = answer.times.first().context("no step")?;
        self.row.first.get_or_insert(first / 1e3);
        if plan.live_on {
            // the first steps also loaded libraries and compiled: what one takes is seen in the next
            answer = process.ask(plan.warm_up)?;
        }
        let last = answer.times.last().context("no step")?;
        self.steps = (333.0 / last).clamp(1.0, plan.most_steps as f64) as usize;
        self.row.version = process.version.clone();
        process.settle();
        Ok(process)
    }
}
