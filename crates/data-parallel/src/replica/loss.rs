//! The losses of the examples of a shard, as a function of outputs or of the network.

use std::any::Any;

use candle_core::{Result, Tensor};
use functional::{Network, Value};

/// A network that can be cast back to its own type, for a loss that is a function of the network.
pub(crate) trait AnyNetwork: Network {
    fn as_any(&self) -> &dyn Any;
}

impl<N: Network + 'static> AnyNetwork for N {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The losses of the examples of a shard.
pub(crate) enum Loss {
    /// A function of the network's outputs, and of the labels.
    OfOutputs(Box<OfOutputs>),
    /// A function of the network, the inputs and the targets.
    OfNetwork(Box<OfNetwork>),
}

type OfOutputs = dyn Fn(&Value, &Tensor) -> Result<Value> + Send + Sync;
type OfNetwork = dyn Fn(&dyn Any, &[Value], &[Tensor]) -> Result<Value> + Send + Sync;

/// The network's outputs in inference.
pub(crate) fn outputs_of(net: &dyn AnyNetwork, x: &[Tensor]) -> Result<Tensor> {
    net.forward_all(&values(x)?, false)?.eval()
}

pub(crate) fn values(tensors: &[Tensor]) -> Result<Vec<Value>> {
    tensors.iter().map(Value::new).collect()
}
