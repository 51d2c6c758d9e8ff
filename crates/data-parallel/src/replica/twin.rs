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

/// How often a network is called again that has other outputs: it may draw them.
const AGAIN: usize = 8;

/// A network as its function has built it.
pub(crate) struct Built {
    pub net: Box<dyn AnyNetwork>,
    pub state: NetworkState,
    pub twin: Twin,
}

/// Builds the second network, with the parameters of a state.
type Build = dyn Fn(&NetworkState) -> Result<Box<dyn AnyNetwork>>;

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
            let (twin, of_twin) = build(&device, Origin::Other(state.clone()), &network)?;
            for (name, var) in of_twin.all() {
                if let Some(value) = state.get(name) {
                    var.set(value)?;
                }
            }
            Ok(Box::new(twin) as Box<dyn AnyNetwork>)
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
        let of_twin = quietly(|| or_panic(|| outputs(&*build(state)?)));
        let Ok(Ok(of_twin)) = of_twin else {
            return Ok(true);
        };
        self.tries.update(|tries| tries + 1);
        if are_alike(&own, &of_twin)? {
            return Ok(shows_something(&own)? || self.tries.get() >= TRIES);
        }
        for _ in 0..AGAIN {
            let again = state.restore_buffers_after(|| outputs(net))?;
            if !are_alike(&own, &again)? {
                return Ok(true); // it draws
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
