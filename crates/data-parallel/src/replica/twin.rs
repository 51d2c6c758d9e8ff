//! A check that a network follows its parameters. A tensor that its function computes from a variable while it builds the
//! network, such as a fused or a normalized weight, stays as it was in all steps, and when a file is loaded. So a second
//! network is built from other numbers, gets the parameters of the first one afterwards, and has to give the same outputs.

use std::cell::Cell;

use candle_core::{DType, Device, Result, Tensor, bail};
use candle_nn::VarBuilder;
use devices::{or_panic, quietly};
use functional::Network;

use super::loss::AnyNetwork;
use crate::network_state::{NetworkState, Origin, build};

/// The most calls of a network in which it is compared, as long as they show nothing.
const TRIES: usize = 4;

/// How often both networks are called again where their outputs differ: they may draw them.
const AGAIN: usize = 16;

/// A network as its function has built it.
pub(crate) struct Built {
    pub net: Box<dyn AnyNetwork>,
    pub state: NetworkState,
    pub twin: Twin,
}

/// A network that was built from other numbers, and then got the parameters of the first one.
struct Second {
    net: Box<dyn AnyNetwork>,
    state: NetworkState,
}

impl Second {
    /// Nothing if they cannot be computed.
    fn outputs(&self, outputs: impl Fn(&dyn AnyNetwork) -> Result<Tensor>) -> Option<Tensor> {
        let outputs = || self.state.restore_buffers_after(|| outputs(&*self.net));
        quietly(|| or_panic(outputs)).ok()?.ok()
    }
}

/// Builds the second network, with the parameters of a state.
type Build = dyn Fn(&NetworkState) -> Result<Second>;

/// The second network of one replica.
#[derive(Default)]
pub(crate) struct Twin {
    /// None on other replicas, and as soon as the network was compared.
    build: Cell<Option<Box<Build>>>,
    tries: Cell<usize>,
}

impl Twin {
    pub fn new<N: Network + 'static>(
        device: Device,
        network: impl Fn(VarBuilder<'_>) -> Result<N> + 'static,
    ) -> Self {
        let build = move |state: &NetworkState| {
            let (net, of_second) = build(&device, Origin::Other(state.clone()), &network)?;
            for (name, var) in of_second.all() {
                if let Some(value) = state.get(name) {
                    var.set(value)?;
                }
            }
            Ok(Second {
                net: Box::new(net),
                state: of_second,
            })
        };
        Self {
            build: Cell::new(Some(Box::new(build))),
            tries: Cell::default(),
        }
    }

    /// An error if the second network has other `outputs` than `net`, for which they are `own`. A network that draws its
    /// outputs, or whose second one fails, is not compared. The error comes again in each call.
    pub fn check(
        &self,
        net: &dyn AnyNetwork,
        state: &NetworkState,
        own: impl FnOnce() -> Result<Tensor>,
        outputs: impl Fn(&dyn AnyNetwork) -> Result<Tensor>,
    ) -> Result<()> {
        let Some(build) = self.build.take() else {
            return Ok(());
        };
        let is_done = self.compare(&*build, net, state, own, outputs);
        if !matches!(is_done, Ok(true)) {
            self.build.set(Some(build)); // for the next call
        }
        is_done.map(drop)
    }

    /// True if there is nothing more to compare.
    fn compare(
        &self,
        build: &Build,
        net: &dyn AnyNetwork,
        state: &NetworkState,
        own: impl FnOnce() -> Result<Tensor>,
        outputs: impl Fn(&dyn AnyNetwork) -> Result<Tensor>,
    ) -> Result<bool> {
        let own = own()?;
        let Ok(Ok(second)) = quietly(|| or_panic(|| build(state))) else {
            return Ok(true);
        };
        let Some(of_second) = second.outputs(&outputs) else {
            return Ok(true);
        };
        self.tries.update(|tries| tries + 1);
        if are_alike(&own, &of_second)? {
            return Ok(shows_something(&own)? || self.tries.get() >= TRIES);
        }
        for _ in 0..AGAIN {
            let again = state.restore_buffers_after(|| outputs(net))?;
            let Some(again_of_second) = second.outputs(&outputs) else {
                return Ok(true);
            };
            if !are_alike(&own, &again)? || !are_alike(&of_second, &again_of_second)? {
                return Ok(true); // they draw
            }
        }
        bail!(
            "built a second time with the same parameters, the network has other outputs. So a tensor that its function \
             computes from a weight, or draws, while it builds the network would never change: compute it where the \
             network is called, or ask `vb` for it"
        )
    }
}

fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.flatten_all()?.to_dtype(DType::F64)?.to_vec1()
}

/// The largest finite number.
fn largest(numbers: &[f64]) -> f64 {
    let finite = numbers.iter().filter(|x| x.is_finite());
    finite.fold(0.0, |most, x| most.max(x.abs()))
}

/// False for outputs that are zero or not finite, whatever the weights are.
fn shows_something(outputs: &Tensor) -> Result<bool> {
    Ok(largest(&numbers(outputs)?) > 0.0)
}

/// Up to rounding, which differs on a GPU.
fn are_alike(a: &Tensor, b: &Tensor) -> Result<bool> {
    let a = numbers(a)?;
    let b = numbers(b)?;
    let allowed = 1e-4 * largest(&a);
    let is_near = |(a, b): (&f64, &f64)| {
        a == b || (a - b).abs() <= allowed || !a.is_finite() && !b.is_finite()
    };
    Ok(a.len() == b.len() && a.iter().zip(&b).all(is_near))
}
