//! A check that a network follows its parameters. A tensor that its function computes of a variable while it builds the
//! network, such as a fused or a normalized weight, stays as it was in all steps, and when a file is loaded. So a second
//! network is built from other numbers, gets the same ones afterwards, and has to compute the same. Nor may a network move
//! running statistics in inference.

use std::cell::Cell;

use candle_core::{Device, Result, Tensor, bail};
use candle_nn::VarBuilder;
use devices::ensure;
use functional::Network;

use super::loss::AnyNetwork;
use crate::network_state::{NetworkState, Origin, build};

/// The second network.
pub(crate) struct Twin {
    build: Box<dyn Fn(&NetworkState) -> Result<Box<dyn AnyNetwork>>>,
    /// True as soon as it was compared, and was right.
    is_done: Cell<bool>,
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
            build: Box::new(build),
            is_done: Cell::new(false),
        }
    }

    /// An error if the second network has other outputs than `net`, or if `net` moves running statistics `in_inference`. A
    /// network whose own outputs are not the same twice is not compared.
    pub fn check(
        &self,
        net: &dyn AnyNetwork,
        state: &NetworkState,
        in_inference: bool,
        outputs: impl Fn(&dyn AnyNetwork) -> Result<Tensor>,
    ) -> Result<()> {
        if self.is_done.get() {
            return Ok(());
        }
        let before = state.keep_buffers()?;
        let own = outputs(net);
        let moved = before.moved_statistic().filter(|_| in_inference);
        before.restore()?;
        ensure!(
            moved.is_none(),
            "the network moves {} in inference: a closure does not know whether it trains; give `candle` a ModuleT, which \
             calls the norm with `train`",
            moved.unwrap_or_default()
        );
        let Ok(own) = own else {
            return Ok(()); // the outputs are not there either
        };
        let others = || {
            let again = state.restore_buffers_after(|| outputs(net))?;
            Ok::<_, candle_core::Error>([again, outputs(&*(self.build)(state)?)?])
        };
        if let Ok([again, of_twin]) = others()
            && are_alike(&own, &again)?
            && !are_alike(&own, &of_twin)?
        {
            bail!(
                "the network does not follow its parameters: built once more by the same function, with the same \
                 parameters, it has other outputs. What the function computes from a weight or draws while it builds the \
                 network, or takes from another VarBuilder, stays as it was in training and when a file is loaded: compute \
                 it where the network is called, or ask `vb` for it"
            )
        }
        self.is_done.set(true);
        Ok(())
    }
}

/// Up to rounding, which differs on a GPU.
fn are_alike(a: &Tensor, b: &Tensor) -> Result<bool> {
    let numbers = |tensor: &Tensor| {
        let tensor = tensor.flatten_all()?.to_dtype(candle_core::DType::F64)?;
        tensor.to_vec1::<f64>()
    };
    let a = numbers(a)?;
    let b = numbers(b)?;
    let finite = a.iter().filter(|x| x.is_finite());
    let most = finite.fold(0.0, |most: f64, x| most.max(x.abs()));
    let is_near = |(a, b): (&f64, &f64)| {
        a == b || (a - b).abs() <= 1e-4 * most || !a.is_finite() && !b.is_finite()
    };
    Ok(a.len() == b.len() && a.iter().zip(&b).all(is_near))
}
