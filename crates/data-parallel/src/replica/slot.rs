//! What a trainer keeps on one replica: the gradients of the parameters that it trains, and its optimizer state. So
//! several trainers can take turns on one network. It sums nothing: that is the reducer's.

use std::collections::{BTreeMap, BTreeSet};

use candle_core::{DType, Result, Tensor, Var};
use devices::ensure;
use functional::{
    Bucket, BucketMemory, GradientChecks, Gradients, OptimizerState, Part, Update, Variables,
};

use crate::agreement::checksum;
use crate::network_state::NetworkState;
use crate::replication::Replication;
use crate::update_rule::StepRule;

/// One trainer's numbers on one replica. They go to the replica with each job.
pub(crate) struct Slot {
    /// The names and values of all parameters of the network.
    parameters: Vec<(String, Var)>,
    /// The parameters that are trained, by their numbers. The others have no gradient.
    trained: Vec<usize>,
    pub gradients: Gradients,
    /// What was compared of candle's gradients.
    pub checks: GradientChecks,
    optimizer_state: OptimizerState,
    /// What the network's buffers were before the last minibatch.
    buffers: Vec<Var>,
    /// The examples of this replica since the last step.
    pub examples: usize,
    /// The minibatches that were computed.
    pub minibatches: u64,
    how: Replication,
    /// The optimizer state of parameters that were trained before and are frozen now.
    frozen: NamedState,
}

/// An optimizer state by names.
#[derive(Clone, Default)]
pub(crate) struct NamedState {
    /// For each parameter the tensors of its state, such as `momentum fc.weight`.
    pub tensors: BTreeMap<String, Tensor>,
    /// The steps of each parameter; empty before the first step.
    pub steps: Vec<u64>,
}

/// The name of one tensor of an optimizer state.
pub(crate) fn state_name(name: &str, parameter: &str) -> String {
    format!("{name} {parameter}")
}

/// The names of all tensors of an optimizer state that has these `names` for each of `parameters`.
///
/// # Errors
/// If two have one name: one of them would be lost.
pub(crate) fn state_names<'a>(
    names: &[&str],
    parameters: impl Iterator<Item = &'a str>,
) -> Result<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for parameter in parameters {
        for name in names {
            let entry = state_name(name, parameter);
            ensure!(
                !all.contains(&entry),
                "two parts of the optimizer's state are called {entry:?}; rename one of {names:?} in Optimizer::state"
            );
            all.insert(entry);
        }
    }
    Ok(all)
}

/// Parameters that are not trained, and their checksums.
pub(crate) struct Untrained(Vec<(String, Var, u32)>);

impl Untrained {
    fn new(parameters: Vec<(String, Var)>) -> Result<Self> {
        let all = parameters.into_iter().map(|(name, var)| {
            let sum = checksum([&var])?;
            Ok((name, var, sum))
        });
        Ok(Self(all.collect::<Result<_>>()?))
    }

    /// An error if one has changed.
    pub fn check(&self) -> Result<()> {
        for (name, var, before) in &self.0 {
            ensure!(
                checksum([var])? == *before,
                "the network sets {name} itself, so it would be another one on each replica; data_parallel::buffer makes it a \
                 buffer, which has one value on all of them"
            );
        }
        Ok(())
    }
}

impl Slot {
    /// For the parameters that are `trained`, with the state `named` of an optimizer whose state has these `names`.
    ///
    /// # Errors
    /// If a parameter cannot be trained, or there is no memory for it.
    pub fn new(
        of: &NetworkState,
        trained: &[bool],
        how: &Replication,
        names: &[&str],
        named: &NamedState,
    ) -> Result<Self> {
        let parameters: Vec<(String, Var)> = of.parameters().cloned().collect();
        let trained: Vec<usize> = (0..parameters.len()).filter(|i| trained[*i]).collect();
        for (name, param) in trained.iter().map(|i| &parameters[*i]) {
            let dtype = param.dtype();
            let what_to_do = if dtype.is_float() {
                "build the network with a VarBuilder of F32, and convert the parameter with to_dtype where it is used"
                    .to_owned()
            } else {
                format!("Trainer::rate(\"{name}\", 0.0) leaves it as it is")
            };
            ensure!(
                dtype == DType::F32,
                "the parameter {name} has type {dtype:?}, and only F32 is trained; {what_to_do}"
            );
        }
        let mut slot = Self {
            gradients: gradients(&parameters, &trained, how)?,
            checks: checks(of, &parameters, &trained)?,
            parameters,
            trained,
            optimizer_state: OptimizerState::default(),
            buffers: Vec::new(),
            examples: 0,
            minibatches: 0,
            how: how.clone(),
            frozen: NamedState::default(),
        };
        if !named.steps.is_empty() {
            slot.set_state(names, named)?;
        }
        Ok(slot)
    }

    /// Puts new gradients in the place of those of which a backward pass that failed may have left nothing.
    pub fn renew_gradients(&mut self) -> Result<()> {
        self.gradients = gradients(&self.parameters, &self.trained, &self.how)?;
        Ok(())
    }

    /// Keeps what the buffers of the network are now.
    pub fn keep_buffers(&mut self, of: &NetworkState) -> Result<()> {
        let buffers: Vec<&Tensor> = of.buffers().map(|(_, buffer)| buffer.as_tensor()).collect();
        if self.buffers.len() == buffers.len() {
            return functional::copy_all(&buffers, &self.buffers);
        }
        let copies = buffers
            .iter()
            .map(|buffer| Var::from_tensor(&buffer.detach()));
        self.buffers = copies.collect::<Result<_>>()?;
        Ok(())
    }

    /// The parameters that are not trained, with checksums, before the minibatches 1, 4, 16 and so on; none before others. No
    /// network may set them.
    pub fn untrained_to_check(&self) -> Result<Option<Untrained>> {
        if !functional::is_power_of_four(self.minibatches + 1) {
            return Ok(None);
        }
        let is_untrained = |(i, _): &(usize, _)| !self.trained.contains(i);
        let untrained = self.parameters.iter().enumerate().filter(is_untrained);
        let parameters = untrained.map(|(_, parameter)| parameter.clone());
        Ok(Some(Untrained::new(parameters.collect())?))
    }

    /// Sets the buffers of the network to what was kept.
    pub fn set_back_buffers(&self, of: &NetworkState) -> Result<()> {
        for ((_, buffer), kept) in of.buffers().zip(&self.buffers) {
            buffer.set(kept)?;
        }
        Ok(())
    }

    /// Takes the optimizer's step with the sums of the gradients, divided by `divisor`. A parameter that no replica has
    /// `used` stays as it is, and so does its optimizer state: as in PyTorch, it has no gradient.
    pub fn step(
        &mut self,
        rule: &StepRule,
        used: &[bool],
        sums: &[Bucket],
        divisor: f64,
    ) -> Result<()> {
        let trained = self.trained.iter().map(|i| &self.parameters[*i]);
        let trained: Vec<(&str, &Var)> = trained.map(|(name, var)| (name.as_str(), var)).collect();
        let rates = rule.rates.iter().zip(used);
        let rates: Vec<f64> = rates
            .map(|(rate, used)| if *used { *rate } else { 0.0 })
            .collect();
        let how = Update {
            lr: rule.lr,
            rates: &rates,
            max_norm: rule.max_norm,
            examples: divisor,
        };
        self.optimizer_state
            .step(&*rule.optimizer, &trained, sums, how)
    }

    /// The name of a parameter that is trained, by its number among those.
    pub fn name(&self, trained: usize) -> &str {
        &self.parameters[self.trained[trained]].0
    }

    /// The sums of the gradients of the last step, by the names of the parameters, in their shapes.
    pub fn sums(&self) -> Result<Vec<(String, Tensor)>> {
        let params = self.trained.iter().map(|i| &self.parameters[*i]);
        let sums = self.gradients.values()?.into_iter();
        let named = |((name, param), sum): (&(String, Var), Tensor)| {
            Ok((name.clone(), sum.reshape(param.shape())?))
        };
        params.zip(sums).map(named).collect()
    }

    /// The optimizer state, whose tensors have these `names` for each parameter.
    pub fn state(&self, names: &[&str]) -> Result<NamedState> {
        let mut all = self.frozen.clone();
        let steps = self.optimizer_state.steps();
        if steps.is_empty() {
            return Ok(all);
        }
        all.steps.resize(self.parameters.len(), 0);
        for (i, steps) in self.trained.iter().zip(steps) {
            all.steps[*i] = *steps;
        }
        let buckets = self.optimizer_state.buckets().iter();
        for (bucket, parts) in buckets.zip(self.gradients.layout()) {
            for (name, values) in names.iter().zip(bucket) {
                for part in parts.iter() {
                    let entry = state_name(name, self.name(part.parameter));
                    all.tensors.insert(entry, values.get(part.range.clone())?);
                }
            }
        }
        Ok(all)
    }

    /// Goes on with a state that [`state`](Self::state) returned.
    fn set_state(&mut self, names: &[&str], named: &NamedState) -> Result<()> {
        let layout = self.gradients.layout();
        let buckets = layout.map(|parts| {
            let of_name = |name: &&str| self.values(name, parts, named);
            names.iter().map(of_name).collect()
        });
        let buckets = buckets.collect::<Result<Vec<_>>>()?;
        let steps = self.trained.iter().map(|i| named.steps[*i]);
        self.optimizer_state = OptimizerState::new(buckets, steps.collect());
        self.frozen = named.clone();
        for i in &self.trained {
            self.frozen.steps[*i] = 0;
            for name in names {
                self.frozen
                    .tensors
                    .remove(&state_name(name, &self.parameters[*i].0));
            }
        }
        Ok(())
    }

    /// One tensor of the state for all parameters of a bucket. A parameter of which there is none has zeros.
    fn values(&self, name: &str, parts: &[Part], named: &NamedState) -> Result<BucketMemory> {
        let of_param = |part: &Part| {
            let number = self.trained[part.parameter];
            let (param, var) = &self.parameters[number];
            let entry = state_name(name, param);
            match named.tensors.get(&entry) {
                None => Ok(var.zeros_like()?.flatten_all()?),
                Some(found) => devices::to_device(&found.flatten_all()?, var.device()),
            }
        };
        let of_params = parts.iter().map(of_param).collect::<Result<Vec<_>>>()?;
        let all = Tensor::cat(&of_params, 0)?;
        Ok(if all.device().is_cpu() {
            BucketMemory::Floats(all.to_vec1()?)
        } else {
            BucketMemory::Tensor(all)
        })
    }
}

/// The check of the gradients of the parameters with these numbers. Each replica checks for itself: shards may have
/// different shapes, and a check moves no variable that another replica reads.
fn checks(
    of: &NetworkState,
    parameters: &[(String, Var)],
    trained: &[usize],
) -> Result<GradientChecks> {
    let mut variables = Variables::default();
    for (i, (name, param)) in parameters.iter().enumerate() {
        if trained.contains(&i) {
            variables.trained.push((name.clone(), param.clone()));
        } else {
            variables.frozen.push(param.clone());
        }
    }
    variables.buffers = of.buffers().map(|(_, buffer)| buffer.clone()).collect();
    GradientChecks::new(variables)
}

/// Room for the gradients of the parameters with these numbers.
fn gradients(
    parameters: &[(String, Var)],
    trained: &[usize],
    how: &Replication,
) -> Result<Gradients> {
    let named = trained.iter().map(|i| {
        let (name, param) = &parameters[*i];
        (name.as_str(), param)
    });
    let mut gradients = Gradients::new(named, how.bucket_bytes / size_of::<f32>())?;
    gradients.allow_unused(how.allow_unused);
    Ok(gradients)
}
