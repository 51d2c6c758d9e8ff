//! One synchronized step of all replicas, as the trainer's thread takes it. What each replica does is in
//! `replica/replica.rs`.
//!
//! **A minibatch that cannot be computed changes nothing**, and training goes on. In several processes, or if a sum
//! fails, the replica that fails leaves the group instead, and the all-reduce of the others returns an error. The step
//! reports the cause, not the replicas that missed their peer.
//!
//! **NaN and infinity.** In one process on the CPU, a loss or a gradient that is not finite refuses the step. In
//! several processes the sums of gradients alone can refuse it. On a GPU neither is looked at before the step, because
//! the host would wait for it. There, and in several processes, the trainer finds a bad loss when it reads it, after
//! the step.
//!
//! **A parameter that an update has made NaN or infinite** is not looked for in each step, because that would read all
//! parameters once more. Where a step is refused, the trainer looks at them: then the error says that the network is
//! lost, and not that training can go on.
//!
//! **No step waits for a GPU**, except where losses are read. It also waits in the first step, with synchronized batch
//! norms, with clipping by a norm, with `allow_unused`, and with an optimizer of your own. So it does with sums in the
//! host's memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use candle_core::{Result, Tensor};
use devices::{ensure, find, lock};
use training::{Batch, BatchLoss};

use super::count::checked;
use super::global_batch::{
    Agreed, GlobalCounts, LocalBatch, agree, check_parts_differ, check_settings,
};
use super::losses::StepLabel;
use super::slots::Slots;
use super::trainer::{LossSees, Trainer, Waiting};
use crate::batch_tensors::{BatchTensors, Sent};
use crate::error::Kind;
use crate::replica::{Loss, LossOver, Refusal, Replica, Slot, StepJob, WholeMinibatch};
use crate::update_rule::StepRule;

/// What a step needs before the replicas begin.
struct Prepared {
    global: GlobalCounts,
    /// Of each replica of this process.
    inputs: Vec<Input>,
    loss_over: LossOver,
    sent: Sent,
}

/// Shard and gradients of a replica.
type Input = (BatchTensors, Arc<Mutex<Slot>>);

/// The result of a step.
#[derive(Debug)]
pub struct Step {
    /// The loss of the minibatch, before the step. Among accumulated minibatches, one that counts nothing has no mean: its
    /// `loss.mean()` is NaN. [`Trainer::mean_loss`] leaves it out.
    pub loss: BatchLoss,
    /// Outputs and labels of each shard, on its device, before the step: for a metric. Replicas
    /// without an example have none, and trainers of [`Trainer::with`] have none at all.
    pub shards: Vec<(Tensor, Tensor)>,
}

impl Trainer {
    /// One step on the minibatch `x` (B, …), `y` (B,): splits it over the devices, computes
    /// the loss and its gradient on all of them at once, sums the gradients, and takes the same
    /// step everywhere, divided by the number of examples there are, or as [`mean_over`](Self::mean_over) says.
    ///
    /// `x` and `y` are batches of any form: `step(&x, &(targets, mask))`, `step(&[anchor, positive, negative], &())`.
    /// [`Batch`](training::Batch) says which.
    ///
    /// Gradients are summed while others are still computed, as [`Replication`](crate::Replication)
    /// says.
    ///
    /// # Errors
    /// If `x` and `y` have different numbers of examples, do not fit the network and the loss, or have NaN; if a replica
    /// cannot compute its part; if a sum of gradients, or on one replica a running statistic, is NaN or infinite. Then no
    /// step was taken, nothing was changed, and training can go on with the next minibatch. Gradients that waited for the
    /// step are lost where the message says so.
    ///
    /// If a loss is NaN or infinite, on a GPU or in several processes: the step was taken. If an earlier step has made a
    /// parameter NaN or infinite: the network is lost. Both are [`Error::Diverged`](crate::Error::Diverged).
    ///
    /// If the optimizer has a setting that cannot be used, or the schedule gives no learning rate: nothing was changed.
    ///
    /// In several processes, and where the all-reduce fails, the network trains no further after an error of one replica.
    pub fn step<X: Batch, Y: Batch>(&mut self, x: &X, y: &Y) -> Result<Step> {
        let last = self.waiting.minibatches + 1 >= self.accumulate;
        self.minibatch(x, y, last)
    }

    /// The first half of a step: adds the gradients of a minibatch to those that wait. [`flush`](Self::flush) is the
    /// other half, which sums them over the replicas and takes the step with all of them.
    ///
    /// ```
    /// # use data_parallel::prelude::*;
    /// # let net = DataParallel::new(&devices(2)?, Initializer::Normal(0.1), 0, |vb| {
    /// #     Linear::new(3, 2, vb)
    /// # })?;
    /// # let (x, y) = (Tensor::ones((4, 3), DType::F32, &Device::Cpu)?, Tensor::zeros(4, DType::U32, &Device::Cpu)?);
    /// let weight = || candle_core::Result::Ok(net.parameter("weight", 0)?.to_vec2::<f32>()?);
    /// let (before, mut trainer) = (weight()?, Trainer::new(&net, cross_entropy, Sgd::new(0.1)));
    /// trainer.backward(&x, &y)?;
    /// assert_eq!(weight()?, before);
    /// trainer.flush()?;
    /// assert_ne!(weight()?, before);
    /// # data_parallel::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn backward<X: Batch, Y: Batch>(&mut self, x: &X, y: &Y) -> Result<Step> {
        self.minibatch(x, y, false)
    }

    /// A minibatch, or why the network trains no further.
    fn minibatch<X: Batch, Y: Batch>(&mut self, x: &X, y: &Y, last: bool) -> Result<Step> {
        self.net
            .watchers
            .step_on(&BatchTensors::ids_of_program(x, y));
        let trained = self.train(BatchTensors::of_program(x, y), last);
        trained.map_err(|error| self.or_lost(error))
    }

    /// One job of all replicas: [`Replica::train`].
    fn train(&mut self, data: Result<BatchTensors>, last: bool) -> Result<Step> {
        let rule = self.rule_of_step()?;
        let settings = self.take_settings_of_step(&rule, last);
        let prepared = self.prepare(data, last, &settings);
        let Prepared {
            global,
            inputs,
            loss_over,
            sent,
        } = prepared.map_err(|error| self.unprepared(error))?;
        self.last_divisor = None; // until the step is taken
        let of_step = self.step_label(&rule);
        let divisor = self.waiting.divisor + global.divisor;
        let job = self.job(rule, last.then_some(divisor), loss_over);
        let of_all = job.clone();
        let trained = self
            .net
            .on_each(inputs, move |replica, (share, slot): Input| {
                replica.train(&of_all, &share, &mut lock(&slot))
            });
        drop(sent);
        self.net.finite.step_ends();
        let trained = match trained {
            Ok(trained) => trained,
            Err(error) if job.dropped.load(Ordering::SeqCst) && !self.net.has_failed() => {
                if let Some(refused) = find::<Refusal>(&error) {
                    return self.refuse(of_step, refused);
                }
                let lost = self.drop_step()?;
                return Err(Kind::Refused.says(format!("{error}{lost}")));
            }
            Err(error) => return Err(self.failed(error)),
        };
        let refused = trained.iter().find_map(|trained| trained.refused.clone());
        let mut losses = Vec::new();
        let mut shards = Vec::new();
        for shard in trained.into_iter().filter_map(|trained| trained.shard) {
            losses.push(shard.loss);
            shards.extend(shard.outputs.zip(shard.labels));
        }
        if let Some(refused) = refused {
            let loss = global.loss_here(losses).mean()?;
            return if loss.is_finite() || counts_nothing(global.divisor) {
                self.refuse(of_step, &refused)
            } else {
                self.refuse(of_step, &Refusal::loss(loss))
            };
        }
        self.most_examples = self.most_examples.max(global.examples);
        if last {
            self.step_taken(divisor);
        } else {
            self.waits(divisor);
        }
        let loss = global.loss(&self.net.processes, losses)?;
        self.losses.push(&loss, of_step, self.checks_numbers)?;
        Ok(Step { loss, shards })
    }

    /// Agrees with the other processes on the minibatch, and splits this process's part of it.
    fn prepare(
        &mut self,
        data: Result<BatchTensors>,
        last: bool,
        settings: &str,
    ) -> Result<Prepared> {
        self.net.statistics.step_begins()?;
        self.net.resumed.step_begins(&self.net.states[0])?;
        let own = data.and_then(|data| {
            let count = self.checked_count(&data)?;
            Ok(LocalBatch { data, count })
        });
        let processes = &self.net.processes;
        let is_set = |flag: &Arc<AtomicBool>| flag.load(Ordering::Relaxed);
        let wants_to_stop = self.wants_to_stop.as_ref().is_some_and(is_set);
        let Agreed {
            data,
            global,
            stops,
        } = agree(processes, own, wants_to_stop, settings)?;
        if stops && !processes.are_one() {
            self.flags.stopping.store(true, Ordering::Relaxed);
        }
        let is_first = self.steps == 0 && self.waiting.minibatches == 0;
        if is_first && !processes.are_one() {
            check_parts_differ(processes, &data)?;
        }
        let (sent, shares) = self.net.scatter(data, global.examples)?;
        ensure!(
            global.examples > 0,
            "a step needs at least 1 example, the minibatch has 0"
        );
        let divisor = self.waiting.divisor + global.divisor;
        if last && counts_nothing(divisor) {
            let says = no_mean(self.steps + 1, divisor);
            return Err(Kind::Refused.says(says + "; leave out minibatches that count nothing"));
        }
        let loss_over = self.loss_over(&sent.data, &shares, global.examples)?;
        Ok(Prepared {
            global,
            inputs: shares.into_iter().zip(self.slots()?).collect(),
            loss_over,
            sent,
        })
    }

    /// True in the minibatches in which it is looked at whether losses depend on other examples: of the first step, until
    /// one is right, of the steps 2, 4, 8 and so on, and where there are more examples than ever before. A weight that grows,
    /// or minibatches that are all of one class, can hide it at first.
    fn looks_at_losses(&self, examples: usize) -> bool {
        let begins = self.waiting.minibatches == 0;
        begins && (self.steps + 1).is_power_of_two() || examples > self.most_examples
    }

    /// Of which examples the loss sees the outputs in a minibatch of n `examples`, of which this process has the part `data`.
    fn loss_over(
        &self,
        data: &BatchTensors,
        shares: &[BatchTensors],
        examples: usize,
    ) -> Result<LossOver> {
        match self.loss_sees {
            LossSees::EachExample => Ok(LossOver::Shard {
                checked: self.net.replicas() > 1 && self.looks_at_losses(examples),
            }),
            LossSees::Shard => Ok(LossOver::Shard { checked: false }),
            LossSees::Minibatch => {
                let processes = &self.net.processes;
                let targets = data.y.iter().map(|y| processes.gather_rows(y));
                let y = targets.collect::<Result<Vec<Tensor>>>()?;
                let mut first = processes.sum_before(data.examples)?;
                let mut rows = Vec::new();
                for share in shares {
                    rows.push(first..first + share.examples);
                    first += share.examples;
                }
                Ok(LossOver::Minibatch(WholeMinibatch {
                    y,
                    examples,
                    rows,
                    first_rank: self.net.first_rank,
                }))
            }
        }
    }

    /// The error of a minibatch that did not get to the replicas. Unless all processes know of it, the others wait for this
    /// one.
    fn unprepared(&self, error: candle_core::Error) -> candle_core::Error {
        let alone = self.net.processes.are_one();
        let kind = if alone { Kind::Refused } else { Kind::Failed };
        kind.of(error)
    }

    /// The error of a replica that failed: if the replicas had begun to sum, they sum no more.
    fn failed(&self, error: candle_core::Error) -> candle_core::Error {
        let kind = if self.net.has_failed() {
            Kind::Failed
        } else {
            Kind::Refused
        };
        kind.of(error)
    }

    /// Takes the step with the gradients that wait, if there are any: at the end of an epoch, where fewer minibatches are
    /// left.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn flush(&mut self) -> Result<()> {
        let taken = self.take_step();
        taken.map_err(|error| self.or_lost(error))
    }

    fn take_step(&mut self) -> Result<()> {
        if self.waiting.minibatches == 0 {
            return Ok(());
        }
        let rule = self.rule_of_step()?;
        let divisor = self.waiting.divisor;
        if counts_nothing(divisor) {
            self.slots.forget_gradients(&self.net)?;
            let lost = self.nothing_waits();
            return Err(Kind::Refused.says(no_mean(self.steps + 1, divisor) + &lost));
        }
        if !self.net.processes.are_one() {
            check_settings(
                &self.net.processes,
                &self.take_settings_of_step(&rule, true),
            )?;
        }
        let of_step = self.step_label(&rule);
        let no_loss = LossOver::Shard { checked: false };
        let job = self.job(rule, Some(divisor), no_loss);
        let flush = move |replica: &mut Replica, slot: Arc<Mutex<Slot>>| {
            replica.flush(&job, &mut lock(&slot), divisor)
        };
        let slots = self.slots()?;
        let flushed = self.net.on_each(slots, flush);
        self.net.finite.step_ends();
        let refusals = flushed.map_err(|error| self.failed(error))?;
        let refused = refusals.into_iter().flatten().next();
        if let Some(refused) = refused {
            return self.refuse(of_step, &refused);
        }
        self.step_taken(divisor);
        Ok(())
    }

    /// `error`; that the network is lost, if a step was refused and a parameter is NaN, infinite or too large.
    fn or_lost(&self, error: candle_core::Error) -> candle_core::Error {
        if Kind::Failed.is_of(&error) {
            self.net.processes.fail(&error);
        }
        if !self.checks_numbers || !Kind::Refused.is_of(&error) {
            return error;
        }
        let state = &self.net.states[0];
        let lost = self.net.finite.check_usable(state, &self.rule.rates).err();
        match lost {
            None => error,
            Some(lost) => Kind::Diverged.says(format!("{error}. {lost}")),
        }
    }

    /// The rule of the next step.
    ///
    /// # Errors
    /// If it cannot be used. With the next minibatch it would be the same, so no step is refused; in several processes the
    /// others wait.
    fn rule_of_step(&self) -> Result<StepRule> {
        let rule = self.usable_rule();
        rule.map_err(|error| {
            if self.net.processes.are_one() {
                error
            } else {
                Kind::Failed.of(error)
            }
        })
    }

    fn usable_rule(&self) -> Result<StepRule> {
        ensure!(
            !self.rule.rates.is_empty(),
            "the network has no parameters; build its layers from the VarBuilder that DataParallel gives"
        );
        let rule = self.rule.of_step(self.steps)?;
        ensure!(
            !rule.rates.is_empty(),
            "no parameter is trained: the rate of each is 0; give one another rate"
        );
        Ok(rule)
    }

    /// Takes what has to be the same in all processes for the step, a line each; nothing in a process that is alone.
    fn take_settings_of_step(&self, rule: &StepRule, takes_step: bool) -> String {
        if self.net.processes.are_one() {
            return String::new();
        }
        let lines = [
            format!("learning-rate {:?} of step {}", rule.lr, self.steps + 1),
            format!("waiting-minibatches {}", self.waiting.minibatches),
            self.settings(),
            format!("takes-step {takes_step}"),
            self.net.take_shared_settings(),
        ];
        lines.join("\n")
    }

    fn step_label(&self, rule: &StepRule) -> StepLabel {
        StepLabel {
            number: self.steps + 1,
            lr: rule.lr,
        }
    }

    /// What the replicas need to know of the next minibatch.
    fn job(&self, rule: StepRule, step_with: Option<f64>, loss_over: LossOver) -> Arc<StepJob> {
        Arc::new(StepJob {
            loss: self.loss.clone(),
            loss_over,
            rule,
            trainer: self.number,
            step: self.steps,
            minibatches_before: self.waiting.minibatches,
            step_with,
            checks_gradients: self.checks_gradients,
            checks_numbers: self.checks_numbers,
            dropped: AtomicBool::new(false),
        })
    }

    fn waits(&mut self, divisor: f64) {
        self.set_waiting(Waiting {
            minibatches: self.waiting.minibatches + 1,
            divisor,
        });
    }

    fn step_taken(&mut self, divisor: f64) {
        self.steps += 1;
        self.last_divisor = Some(divisor);
        self.set_waiting(Waiting::default());
    }

    /// The slots of the replicas, for the parameters that are trained now. Another choice of parameters takes the
    /// optimizer state along.
    fn slots(&mut self) -> Result<Vec<Arc<Mutex<Slot>>>> {
        if !self.slots.are_for(&self.rule) {
            let state = self.slots.state(&self.net, &self.rule)?;
            self.slots = Slots::new(&self.net, &self.rule, self.rule.trained(), &state)?;
        }
        Ok(self.slots.all())
    }

    /// Forgets a step that no replica has taken, and sets back what its last minibatch has changed. Returns what an error
    /// says of gradients that waited.
    fn drop_step(&mut self) -> Result<String> {
        self.slots.drop_step(&self.net)?;
        Ok(self.nothing_waits())
    }

    /// No gradients wait any more. Returns what an error says of those that did.
    fn nothing_waits(&mut self) -> String {
        let waited = self.waiting.minibatches;
        self.set_waiting(Waiting::default());
        self.last_divisor = None;
        match waited {
            0 => String::new(),
            1 => "; the gradients of 1 minibatch that waited for the step are lost".to_owned(),
            n => format!("; the gradients of {n} minibatches that waited for the step are lost"),
        }
    }

    /// The error of a step that was not taken.
    fn refuse<T>(&mut self, step: StepLabel, refused: &Refusal) -> Result<T> {
        let lost = self.drop_step()?;
        let StepLabel { number, lr } = step;
        let said = refused.sentence(&lost, self.steps == 0);
        Err(Kind::Refused.says(format!("step {number}, at learning rate {lr:?}: {said}")))
    }

    /// What the minibatch of this process counts in the mean of its step.
    ///
    /// # Errors
    /// If it does not fit the loss, or a number is NaN or infinite.
    fn checked_count(&self, data: &BatchTensors) -> Result<f64> {
        let targets = data.y.len();
        ensure!(
            targets == 1 || matches!(*self.loss, Loss::OfNetwork(_)),
            "the loss of Trainer::new is of 1 target, the minibatch has {targets}; Trainer::with takes a loss of all of them"
        );
        if self.checks_numbers {
            data.check_finite()?;
        }
        match &self.mean_over {
            None => Ok(data.examples as f64),
            Some(_) if data.examples == 0 => Ok(0.0),
            Some(count) => checked(count, data),
        }
    }
}

/// True if numbers of f32 have no mean over so little.
fn counts_nothing(sum: f64) -> bool {
    sum < f64::from(f32::MIN_POSITIVE)
}

/// What an error says of a step that has no mean.
fn no_mean(step: usize, sum: f64) -> String {
    let text = format!("{sum:?}");
    let sum = text.trim_end_matches(".0");
    format!(
        "step {step}: the counts of mean_over add up to {sum}, so there is no mean. No step was taken"
    )
}
