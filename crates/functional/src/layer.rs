//! What the steps of a tape are before it is said where they run, and the backends, where they can.

use crate::activation::{Relu, Sum};
use crate::conv::{Alone, Convolution, may_winograd};
use crate::direct::Direct;
use crate::layout::Transpose;
use crate::linear::Linear;
use crate::norm::Norm;
use crate::operation::Operation;
use crate::pool::{Average, GlobalAverage, Maximum};
use crate::winograd::Pooled;

/// One step: an operation, with those behind it that belong to it.
pub(crate) enum Layer {
    Transpose(Transpose),
    Relu(Relu),
    Sum(Sum),
    Average(Average),
    Maximum(Maximum),
    GlobalAverage(GlobalAverage),
    Linear(Linear),
    Norm(Norm),
    Convolution(Convolution),
}

/// Where steps run.
pub(crate) trait Backend {
    /// What a step is there.
    type Operation: ?Sized + Send + Sync;

    /// The operation that computes `layer`; none where the parts of a convolution with others behind
    /// it have to be steps of their own.
    fn operation(layer: Layer) -> Option<Box<Self::Operation>>;
}

/// The host's cores.
pub(crate) struct Cpu;

impl Backend for Cpu {
    type Operation = dyn Operation;

    fn operation(layer: Layer) -> Option<Box<dyn Operation>> {
        Some(match layer {
            Layer::Transpose(layer) => Box::new(layer),
            Layer::Relu(layer) => Box::new(layer),
            Layer::Sum(layer) => Box::new(layer),
            Layer::Average(layer) => Box::new(layer),
            Layer::Maximum(layer) => Box::new(layer),
            Layer::GlobalAverage(layer) => Box::new(layer),
            Layer::Linear(layer) => Box::new(layer),
            Layer::Norm(layer) => Box::new(layer),
            Layer::Convolution(layer) => return convolution(layer),
        })
    }
}

/// The algorithm for a convolution.
fn convolution(layer: Convolution) -> Option<Box<dyn Operation>> {
    let Convolution {
        geometry,
        relu,
        pool,
    } = layer;
    if let Some(pooled) = Pooled::new(geometry, relu, pool).filter(|_| may_winograd()) {
        return Some(Box::new(pooled));
    }
    if let Some(direct) = Direct::new(geometry, relu, pool) {
        return Some(Box::new(direct));
    }
    (!relu && pool == 1).then(|| Box::new(Alone::new(geometry)) as Box<dyn Operation>)
}
