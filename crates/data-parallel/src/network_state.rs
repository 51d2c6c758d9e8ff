//! What a network holds on one device: its parameters and its buffers, each an ordered list.
//!
//! The order is that in which the network asks for them, the same on every device. candle's own
//! `VarMap` has a random one, and replicas that sum their gradients in different orders mix
//! them up.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Result, Shape, Tensor, Var, bail};
use candle_nn::init::{FanInOut, NormalOrUniform};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use devices::{ensure, lock};
use training::weights::{COUNT, is_count};
use training::{Rng, normal, uniform};

/// How the weights of a new network are drawn: everything with two dimensions or more. What has one dimension starts
/// at zero where its layer would draw it (biases), and else as its layer says (the scale of batch norm at one).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Initializer {
    /// N(0, σ²); the book has σ = 0.01.
    Normal(f64),
    /// Evenly from ±√(m / ((inputs + outputs) / 2)) with the magnitude m, as Gluon's `Xavier`;
    /// the usual one is 3.
    Xavier(f64),
    /// As each layer asks for, biases too: PyTorch's defaults for the layers of this crate.
    Layers,
}

/// The value that a buffer gets on all replicas in each step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferRule {
    /// Their mean, weighted by the examples that each replica had in the step.
    Mean,
    /// The value of the first replica, as with `broadcast_buffers` of PyTorch's `DistributedDataParallel`.
    First,
}

/// The parameters and buffers of one replica.
#[derive(Debug, Clone, Default)]
pub(crate) struct NetworkState {
    entries: Vec<(String, Var)>,
    /// The buffers that the network has declared.
    rules: HashMap<String, BufferRule>,
}

impl NetworkState {
    /// The tensors that are trained.
    pub fn parameters(&self) -> impl Iterator<Item = &(String, Var)> {
        self.entries
            .iter()
            .filter(|(name, _)| !self.is_buffer(name))
    }

    /// The parameters by their names.
    pub fn named(&self) -> impl Iterator<Item = (&str, &Var)> {
        self.parameters().map(|(name, param)| (&name[..], param))
    }

    /// Where it is.
    pub fn device(&self) -> Device {
        let first = self.entries.first();
        first.map_or(Device::Cpu, |(_, var)| var.device().clone())
    }

    /// Tensors of the network that are not trained.
    pub fn buffers(&self) -> impl Iterator<Item = &(String, Var)> {
        self.entries.iter().filter(|(name, _)| self.is_buffer(name))
    }

    /// Runs `f`, and then sets the buffers to what they were before.
    pub fn restore_buffers_after<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let kept = self.keep_buffers()?;
        let result = f();
        kept.restore()?;
        result
    }

    /// The values of all buffers.
    pub fn keep_buffers(&self) -> Result<Kept<'_>> {
        let copy = |(name, buffer): &(String, Var)| Ok((name.clone(), buffer.copy()?));
        Ok(Kept {
            state: self,
            buffers: self.buffers().map(copy).collect::<Result<_>>()?,
        })
    }

    fn is_buffer(&self, name: &str) -> bool {
        self.has_rule(name) || is_statistic(name)
    }

    /// True for a buffer that follows a rule.
    pub fn has_rule(&self, name: &str) -> bool {
        self.rules.contains_key(name)
    }

    /// The buffers that follow a rule.
    pub fn shared_buffers(&self) -> impl Iterator<Item = (&str, &Var, BufferRule)> {
        self.entries.iter().filter_map(|(name, var)| {
            let rule = self.rules.get(name)?;
            Some((&name[..], var, *rule))
        })
    }

    /// The number of elements of all parameters.
    pub fn num_parameters(&self) -> usize {
        self.parameters().map(|(_, p)| p.elem_count()).sum()
    }

    /// Everything, as PyTorch's `state_dict` has it.
    pub fn all(&self) -> &[(String, Var)] {
        &self.entries
    }

    fn of_shape(&self, name: &str, shape: &Shape) -> Result<Tensor> {
        match self.get(name) {
            Some(var) if var.shape() == shape => Ok(var.as_tensor().clone()),
            _ => bail!("the first replica has no {name} of shape {shape:?}"),
        }
    }

    pub fn get(&self, name: &str) -> Option<&Var> {
        let entry = self.entries.iter().find(|(n, _)| n == name);
        entry.map(|(_, var)| var)
    }
}

/// Buffers as they were at some time.
pub(crate) struct Kept<'a> {
    state: &'a NetworkState,
    buffers: BTreeMap<String, Tensor>,
}

impl Kept<'_> {
    /// A running statistic of batch norm that has another value now.
    pub fn moved_statistic(&self) -> Option<&str> {
        let moved = |(name, before): &(&String, &Tensor)| {
            let is_statistic = is_statistic(name) && !self.state.has_rule(name);
            let now = self.state.get(name).filter(|_| is_statistic);
            now.is_some_and(|now| training::compare(name, ["", ""], [before, now]).is_err())
        };
        self.buffers.iter().find(moved).map(|(name, _)| &name[..])
    }

    pub fn restore(&self) -> Result<()> {
        for (name, value) in &self.buffers {
            if let Some(buffer) = self.state.get(name) {
                buffer.set(value)?;
            }
        }
        Ok(())
    }
}

/// True for the running statistics of batch norm, under the names that PyTorch and candle give them.
fn is_statistic(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    ["running_mean", "running_var", COUNT].contains(&last)
}

/// The source of the values of a new replica.
pub(crate) enum Origin {
    /// Drawn: the first replica.
    Drawn(Initializer, Box<Rng>),
    /// Copied from the first replica.
    Copy(NetworkState),
    /// Other ones than these.
    Other(NetworkState),
}

/// Builds a network on `device` and returns it with what it holds.
pub(crate) fn build<N>(
    device: &Device,
    origin: Origin,
    network: impl FnOnce(VarBuilder<'_>) -> Result<N>,
) -> Result<(N, NetworkState)> {
    let collector = Collector(Arc::new(Mutex::new((NetworkState::default(), origin))));
    let backend = Box::new(collector.clone());
    let vb = VarBuilder::from_backend(backend, DType::F32, device.clone());
    let net = devices::with_local(&BUILDING, Building::default(), || network(vb))?;
    let state = lock(&collector.0).0.clone();
    Ok((net, state))
}

/// The names that a network declares while it is built.
#[derive(Default)]
struct Building {
    /// The names of the layers without tensors.
    layers: HashSet<String>,
    /// The buffers that it has declared.
    buffers: HashMap<String, BufferRule>,
}

thread_local! {
    /// The network that this thread builds.
    static BUILDING: RefCell<Option<Building>> = const { RefCell::new(None) };
}

/// Declares a buffer of the network that this thread builds.
pub(crate) fn declare_buffer(name: String, rule: BufferRule) {
    BUILDING.with_borrow_mut(|building| {
        if let Some(building) = building {
            building.buffers.insert(name, rule);
        }
    });
}

/// The rule of a buffer that was declared.
fn declared(name: &str) -> Option<BufferRule> {
    BUILDING.with_borrow(|building| building.as_ref()?.buffers.get(name).copied())
}

/// Gives a layer without tensors its name, in the network that this thread builds.
///
/// # Errors
/// If another one has it.
pub(crate) fn name_layer(layer: &str, name: &str) -> Result<()> {
    let is_new = |building: &mut Option<Building>| match building {
        Some(building) => building.layers.insert(name.to_owned()),
        None => true,
    };
    if !BUILDING.with_borrow_mut(is_new) {
        bail!(
            "{layer}: the name {name:?} is requested twice: give each layer a name of its own with vb.pp(\"name\"). A \
             layer that is used several times is made once"
        )
    }
    Ok(())
}

/// The backend of the `VarBuilder`: makes a variable for each name that is asked for, and keeps the list.
#[derive(Clone)]
struct Collector(Arc<Mutex<(NetworkState, Origin)>>);

impl SimpleBackend for Collector {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        init: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let (state, origin) = &mut *lock(&self.0);
        if state.get(name).is_some() {
            bail!(
                "{name} is requested twice: give each layer a name of its own with vb.pp(\"name\"). Layers that \
                 share a tensor get it once, or with vb.get_unchecked"
            )
        }
        let rule = declared(name);
        let value = origin.value(shape, name, init, rule.is_some())?;
        // detached and then copied: variables of two replicas never share storage
        let device = if is_count(name) {
            &Device::Cpu // to count is no work for a GPU
        } else {
            device
        };
        let value = devices::to_device(&value.to_dtype(dtype)?, device)?.detach();
        let var = Var::from_tensor(&value)?;
        state.entries.push((name.to_owned(), var.clone()));
        state.rules.extend(rule.map(|rule| (name.to_owned(), rule)));
        Ok(var.into_inner())
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        match lock(&self.0).0.get(name) {
            Some(var) => Ok(var.as_tensor().clone()),
            None => {
                bail!("{name} is requested without a shape, and does not exist yet: give its shape")
            }
        }
    }

    fn contains_tensor(&self, name: &str) -> bool {
        lock(&self.0).0.get(name).is_some()
    }
}

impl Origin {
    /// The value of a tensor; its layer asks for `init`, and gets it for a buffer.
    fn value(&mut self, shape: Shape, name: &str, init: Init, is_buffer: bool) -> Result<Tensor> {
        match self {
            Origin::Drawn(_, rng) if is_buffer => draw(init, shape, rng),
            Origin::Drawn(initializer, rng) => draw(initializer.init(&shape, init), shape, rng),
            Origin::Copy(first) => first.of_shape(name, &shape),
            Origin::Other(state) => match state.of_shape(name, &shape)? {
                value if value.dtype().is_float() => other_numbers(&value),
                value => Ok(value),
            },
        }
    }
}

/// Each of them changes by another number, and positive ones stay positive.
fn other_numbers(value: &Tensor) -> Result<Tensor> {
    let n = value.elem_count();
    let step = 0.25 / n.max(1) as f64;
    let ramp = Tensor::arange(0f32, n as f32, value.device())?.affine(step, 0.125)?;
    value.affine(1.25, 0.0)? + ramp.reshape(value.shape())?.to_dtype(value.dtype())?
}

impl Initializer {
    /// An error if its number cannot be used.
    pub fn check(self) -> Result<()> {
        let (Initializer::Normal(number) | Initializer::Xavier(number)) = self else {
            return Ok(());
        };
        ensure!(
            number < f64::from(f32::MAX) / 100.0 && number >= 0.0,
            "Initializer::{self:?}: expected a finite number, 0 or more, whose weights fit f32"
        );
        Ok(())
    }

    /// The values that are drawn for a tensor; its layer asks for `hint`.
    fn init(&self, shape: &Shape, hint: Init) -> Init {
        match *self {
            Initializer::Normal(stdev) if shape.rank() >= 2 => Init::Randn { mean: 0.0, stdev },
            Initializer::Xavier(magnitude) if shape.rank() >= 2 => {
                let fan = FanInOut::FanIn.for_shape(shape) + FanInOut::FanOut.for_shape(shape);
                let up = (magnitude / (fan as f64 / 2.0)).sqrt();
                Init::Uniform { lo: -up, up }
            }
            Initializer::Layers => hint,
            _ if matches!(hint, Init::Const(_)) => hint,
            _ => Init::Const(0.0),
        }
    }
}

/// Draws on the host, so that a seed gives the same network on every device.
fn draw(init: Init, shape: Shape, rng: &mut Rng) -> Result<Tensor> {
    match init {
        Init::Const(value) => Tensor::full(value as f32, shape, &Device::Cpu),
        Init::Randn { mean, stdev } => normal(rng, stdev, shape)? + mean,
        Init::Uniform { lo, up } => uniform(rng, lo, up, shape),
        Init::Kaiming {
            dist,
            fan,
            non_linearity,
        } => {
            let std = non_linearity.gain() / (fan.for_shape(&shape) as f64).sqrt();
            match dist {
                NormalOrUniform::Normal => normal(rng, std, shape),
                NormalOrUniform::Uniform => {
                    let up = 3f64.sqrt() * std;
                    uniform(rng, -up, up, shape)
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use training::rng;

    fn two_layers(vb: VarBuilder<'_>) -> Result<()> {
        for layer in ["b", "a"] {
            let vb = vb.pp(layer);
            vb.get_with_hints((2, 2), "weight", candle_nn::init::ZERO)?;
            vb.get_with_hints(2, "running_mean", candle_nn::init::ONE)?;
            vb.get_with_hints_dtype((), "num_batches_tracked", Init::Const(0.), DType::I64)?;
        }
        Ok(())
    }

    #[test]
    fn the_order_is_that_of_the_network_and_buffers_are_apart() -> Result<()> {
        let origin = Origin::Drawn(Initializer::Layers, Box::new(rng(0)));
        let ((), state) = build(&Device::Cpu, origin, two_layers)?;
        let names: Vec<_> = state.named().map(|(name, _)| name).collect();
        assert_eq!(names, ["b.weight", "a.weight"]);
        assert_eq!(state.all().len(), 6);
        let count = state.get("a.num_batches_tracked").unwrap();
        assert_eq!(count.dtype(), DType::I64);
        Ok(())
    }

    #[test]
    fn xavier_keeps_within_its_bounds() -> Result<()> {
        let shape = Shape::from((30, 20, 5, 5));
        let init = Initializer::Xavier(3.0).init(&shape, Init::Const(0.));
        let drawn = draw(init, shape, &mut rng(0))?.abs()?.flatten_all()?;
        let bound = (3.0f32 / ((30.0 + 20.0) * 25.0 / 2.0)).sqrt();
        let largest = drawn.max(0)?.to_scalar::<f32>()?;
        let expected = 0.99 * bound..=bound;
        assert!(expected.contains(&largest), "{largest} of {bound}");
        Ok(())
    }
}
