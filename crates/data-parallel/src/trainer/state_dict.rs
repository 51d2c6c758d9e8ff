//! The state of training besides the network, for checkpoints: taken, checked, and set as a whole or not at all.

use std::collections::{BTreeMap, BTreeSet};

use candle_core::{DType, Device, Result, Tensor, Var};
use devices::{Context, bail, ensure};
use training::weights;

use super::slots::Slots;
use super::trainer::Trainer;
use crate::data_parallel::DataParallel;
use crate::replica::{NamedState, state_name, state_names};

/// The name of the numbers of steps: of all, and of each parameter.
const STEPS: &str = "steps";

/// The name of the trainer's number among those of the network, if it is not the first.
const NUMBER: &str = "trainer";

/// The name of the learning rate that [`Trainer::set_lr`] has set.
const LR: &str = "lr";

/// The name of a buffer of a replica that is not the first of all.
fn buffer_of(replica: usize, name: &str) -> String {
    format!("replica {replica} {name}")
}

/// True if a name is one of [`buffer_of`].
fn is_of_replica(name: &str) -> bool {
    let rest = name.strip_prefix("replica ");
    let number = rest.and_then(|rest| rest.split(' ').next());
    number.is_some_and(|number| number.parse::<usize>().is_ok())
}

/// A state that fits a trainer and its network.
pub(crate) struct CheckedState {
    /// None where only running statistics are set.
    pub of_trainer: Option<TrainerState>,
    /// Running statistics of other replicas.
    pub buffers: Vec<CheckedBuffer>,
    /// True if the state has running statistics of replicas, here or in other processes.
    pub has_buffers: bool,
}

/// A running statistic of a replica, and its new value.
pub(crate) struct CheckedBuffer {
    pub name: String,
    pub buffer: Var,
    pub value: Tensor,
}

/// The state of a trainer itself.
pub(crate) struct TrainerState {
    pub slots: Slots,
    pub steps: usize,
    pub lr: Option<f64>,
    pub number: usize,
}

impl Trainer {
    /// All that the next steps depend on beside [`DataParallel::state_dict`], by name: the optimizer state, which all
    /// replicas have in common, the numbers of steps, and the buffers of the other replicas, those of other processes as
    /// well. In several processes all call this.
    ///
    /// ```
    /// # use data_parallel::prelude::*;
    /// # let net = DataParallel::new(&devices(2)?, Initializer::Normal(0.1), 0, |vb| {
    /// #     Linear::new(3, 2, vb)
    /// # })?;
    /// # let (x, y) = (Tensor::ones((4, 3), DType::F32, &Device::Cpu)?, Tensor::zeros(4, DType::U32, &Device::Cpu)?);
    /// let trainer = || Trainer::new(&net, cross_entropy, AdamW::default());
    /// let mut first = trainer();
    /// first.step(&x, &y)?;
    /// let (network, state) = (net.state_dict()?, first.state_dict()?); // a checkpoint
    /// first.step(&x, &y)?;
    /// let expected = net.parameter("weight", 1)?.to_vec2::<f32>()?;
    /// net.load_state_dict(&network)?;
    /// let mut second = trainer();
    /// second.load_state_dict(state)?;
    /// second.step(&x, &y)?;
    /// assert_eq!(net.parameter("weight", 1)?.to_vec2::<f32>()?, expected);
    /// # data_parallel::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If gradients wait for their step, which no state has: [`flush`](Self::flush) takes it. If a number of the optimizer
    /// state, a running statistic or the learning rate is NaN or infinite. And if a device fails.
    pub fn state_dict(&self) -> Result<Vec<(String, Tensor)>> {
        self.check_no_gradients_wait("state_dict")?;
        let NamedState { tensors, steps } = self.slots.state(&self.net, &self.rule)?;
        let steps = [self.steps as u64].into_iter().chain(steps);
        let steps = Tensor::from_iter(steps.map(|steps| steps as i64), &Device::Cpu)?;
        let buffers = self.net.other_buffers()?;
        // after all processes have brought theirs
        weights::check_all_numbers(&buffers)?;
        self.net.check_buffers()?;
        for (entry, tensor) in &tensors {
            check_finite(entry, tensor)?;
        }
        let mut state: Vec<(String, Tensor)> = tensors.into_iter().collect();
        state.push((STEPS.to_owned(), steps));
        if let Some(lr) = self.rule.lr {
            check_lr(lr)?;
            state.push((LR.to_owned(), Tensor::new(&[lr], &Device::Cpu)?));
        }
        if self.number > 0 {
            let number = self.number as i64;
            state.push((NUMBER.to_owned(), Tensor::new(&[number], &Device::Cpu)?));
        }
        state.extend(buffers);
        Ok(state)
    }

    /// Sets the state that [`state_dict`](Self::state_dict) returned, after [`DataParallel::load_state_dict`]: all of it,
    /// so that the trainer goes on as the one that had this state. Gradients that wait are forgotten. Without numbers of
    /// steps only the running statistics of the other replicas are set.
    ///
    /// # Errors
    /// If it is the state of another network or optimizer, or has a number that no trainer has: NaN, infinity, a running
    /// variance, a mean of squares or a number of steps below 0. The message names it. Then nothing was changed.
    pub fn load_state_dict(
        &mut self,
        state: impl IntoIterator<Item = (String, Tensor)>,
    ) -> Result<()> {
        let checked = self.check_state(&state.into_iter().collect(), self.rule.trained())?;
        self.set_state(checked)
    }

    /// The number of steps in a trainer's state; none in one without it.
    pub(crate) fn steps_in(state: &BTreeMap<String, Tensor>) -> Option<usize> {
        let steps = state.get(STEPS)?.to_vec1::<i64>().ok()?;
        usize::try_from(*steps.first()?).ok()
    }

    /// What of a state is this trainer's, in the memory where it is used if these parameters are `trained`.
    ///
    /// # Errors
    /// As [`load_state_dict`](Self::load_state_dict).
    pub(crate) fn check_state(
        &self,
        state: &BTreeMap<String, Tensor>,
        trained: Vec<bool>,
    ) -> Result<CheckedState> {
        let buffers = self.net.find_other_buffers(state)?;
        let mut of_trainer = None;
        if let Some(steps) = state.get(STEPS) {
            let steps: Vec<u64> = counts(STEPS, steps)?;
            let (all, of_each) = steps.split_first().context("steps: of none")?;
            let lr = match state.get(LR) {
                None => None,
                Some(lr) => Some(lr_of(lr)?),
            };
            let number = match state.get(NUMBER) {
                None => 0,
                Some(number) => *counts(NUMBER, number)?
                    .first()
                    .context("trainer: of none")?,
            };
            let slots = if of_each.is_empty() {
                Default::default() // before the first step
            } else {
                let named = self.named_state(state, of_each)?;
                let slots = Slots::new(&self.net, &self.rule, trained, &named);
                slots.context("the optimizer's state")?
            };
            of_trainer = Some(TrainerState {
                slots,
                steps: *all as usize,
                lr,
                number: number as usize,
            });
        }
        let of_optimizer = self.state_names()?;
        let is_buffer = |name: &String| is_of_replica(name) && !of_optimizer.contains(name);
        Ok(CheckedState {
            of_trainer,
            buffers,
            // of any process's replicas, so that all processes agree
            has_buffers: state.keys().any(is_buffer),
        })
    }

    /// Sets a state that [`check_state`](Self::check_state) has checked.
    pub(crate) fn set_state(&mut self, state: CheckedState) -> Result<()> {
        if let Some(state) = state.of_trainer {
            self.set_slots(state.slots, state.steps);
            self.rule.lr = state.lr;
            self.number = state.number;
        }
        self.net.statistics.trainer_is_loaded(state.has_buffers);
        for CheckedBuffer {
            name,
            buffer,
            value,
        } in state.buffers
        {
            buffer.set(&value).context(name)?;
        }
        Ok(())
    }

    /// The names of all tensors of the optimizer's state.
    fn state_names(&self) -> Result<BTreeSet<String>> {
        let params = self.net.states[0].named().map(|(name, _)| name);
        state_names(self.rule.optimizer.state(), params)
    }

    /// The optimizer state in `state`, after this many steps of each parameter.
    ///
    /// # Errors
    /// If something is missing, is left over, has another size, or is not finite; also of parameters that are frozen now.
    fn named_state(&self, state: &BTreeMap<String, Tensor>, steps: &[u64]) -> Result<NamedState> {
        let params: Vec<&(String, Var)> = self.net.states[0].parameters().collect();
        let all = params.len();
        let found = steps.len();
        ensure!(
            found == all,
            "steps: of {found} parameters, the network has {all}"
        );
        let names = self.rule.optimizer.state();
        let of_optimizer = self.state_names()?;
        let is_own = |entry: &str| {
            [STEPS, LR, NUMBER].contains(&entry)
                || is_of_replica(entry)
                || of_optimizer.contains(entry)
        };
        if let Some(entry) = state.keys().find(|entry| !is_own(entry)) {
            bail!("the optimizer's state: {entry} is not this optimizer's or this network's")
        }
        let mut tensors = BTreeMap::new();
        for ((param, var), steps) in params.into_iter().zip(steps) {
            for name in names {
                let entry = state_name(name, param);
                let Some(tensor) = state.get(&entry) else {
                    ensure!(*steps == 0, "the checkpoint has no {entry}");
                    continue;
                };
                let found = tensor.elem_count();
                let expected = var.elem_count();
                ensure!(
                    found == expected,
                    "{entry} has {found} elements, the parameter {expected}"
                );
                let numbers = tensor.to_dtype(DType::F32)?;
                check_finite(&entry, &numbers)?;
                if name.ends_with("_sq") {
                    check_squares(&entry, &numbers)?;
                }
                tensors.insert(entry, tensor.clone());
            }
        }
        Ok(NamedState {
            tensors,
            steps: steps.to_vec(),
        })
    }
}

/// An error that names a number of an optimizer state that is NaN or infinite: no step goes on from it.
fn check_finite(entry: &str, tensor: &Tensor) -> Result<()> {
    if let Some(value) = weights::first_beyond(tensor, f32::MAX)? {
        bail!("{entry} contains {value}; expected finite numbers")
    }
    Ok(())
}

/// An error for a mean of squares that is negative: its root would be NaN.
fn check_squares(entry: &str, tensor: &Tensor) -> Result<()> {
    let numbers: Vec<f32> = tensor.flatten_all()?.to_vec1()?;
    if let Some(value) = numbers.into_iter().find(|number| *number < 0.0) {
        bail!("{entry} contains {value}; expected 0 or more")
    }
    Ok(())
}

fn check_lr(lr: f64) -> Result<()> {
    let is_rate = lr.is_finite() && lr >= 0.0;
    ensure!(is_rate, "lr is {lr}; expected a finite number, 0 or more");
    Ok(())
}

/// The learning rate of a state.
fn lr_of(tensor: &Tensor) -> Result<f64> {
    let values: Vec<f64> = tensor.flatten_all()?.to_vec1().context(LR)?;
    let [lr] = values[..] else {
        bail!("lr: {} numbers; expected 1", values.len())
    };
    check_lr(lr)?;
    Ok(lr)
}

/// Numbers of a state that count something.
fn counts(name: &str, tensor: &Tensor) -> Result<Vec<u64>> {
    let values: Vec<i64> = tensor.to_vec1().with_context(|| name.to_owned())?;
    let end = 1 << 53; // whole numbers of f64
    let count = |value: i64| {
        let count = u64::try_from(value).ok().filter(|count| *count < end);
        count.with_context(|| format!("{name}: {value}; expected 0 or more, and less than {end}"))
    };
    values.into_iter().map(count).collect()
}

impl DataParallel {
    /// The rank of replica `i` of this process.
    fn rank(&self, i: usize) -> usize {
        self.first_rank + i
    }

    /// The buffers of all replicas but the first, from all processes, in the order of their names.
    fn other_buffers(&self) -> Result<Vec<(String, Tensor)>> {
        let mut own = Vec::new();
        for (i, state) in self.states.iter().enumerate() {
            for (name, buffer) in state.buffers().filter(|_| self.rank(i) > 0) {
                own.push((buffer_of(self.rank(i), name), buffer.copy()?.detach()));
            }
        }
        let mut all = own;
        if !self.processes.are_one() {
            let own = weights::to_bytes(&all, None)?;
            all.clear();
            for bytes in self.processes.gather("the buffers of a network", &own)? {
                all.extend(candle_core::safetensors::load_buffer(&bytes, &Device::Cpu)?);
            }
        }
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(all)
    }

    /// The buffers of the other replicas that are in `state`, each with its name and its new value. The others keep their
    /// values, those of the first replica.
    fn find_other_buffers(&self, state: &BTreeMap<String, Tensor>) -> Result<Vec<CheckedBuffer>> {
        // those of other processes as well, so that all find the same
        for (name, tensor) in state.iter().filter(|(name, _)| is_of_replica(name)) {
            weights::check_numbers(name, tensor)?;
        }
        let mut found = Vec::new();
        for (i, replica) in self.states.iter().enumerate() {
            for (name, buffer) in replica.buffers() {
                let name = buffer_of(self.rank(i), name);
                let Some(tensor) = state.get(&name) else {
                    continue;
                };
                let shape = tensor.dims();
                let expected = buffer.dims();
                ensure!(
                    shape == expected && tensor.dtype() == buffer.dtype(),
                    "{name} has shape {shape:?} and type {:?}, expected {expected:?} and {:?}",
                    tensor.dtype(),
                    buffer.dtype()
                );
                found.push(CheckedBuffer {
                    name,
                    buffer: buffer.clone(),
                    value: devices::to_device(tensor, buffer.device())?,
                });
            }
        }
        Ok(found)
    }
}
