//! Batch normalization: its sizes. The running statistics belong to the caller.

use super::args;
use candle_core::{Result, Var, bail};

/// The numbers of a batch norm, of which the default ones are PyTorch's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchNorm {
    /// The ε that is added to the variance: 1e-5.
    pub eps: f32,
    /// The weight of a batch in the running statistics: 0.1.
    pub momentum: f64,
}

impl Default for BatchNorm {
    fn default() -> Self {
        Self {
            eps: 1e-5,
            momentum: 0.1,
        }
    }
}

impl BatchNorm {
    /// An error for numbers with which no norm trains.
    pub(crate) fn check(self) -> Result<()> {
        args::eps("batch_norm2d", self.eps)?;
        let momentum = self.momentum;
        if !(0. ..=1.).contains(&momentum) {
            bail!("batch_norm2d: the momentum is {momentum}, expected a number from 0 to 1")
        }
        Ok(())
    }
}

/// Batch norm, then a sum with the shortcut where there is one, then ReLU.
#[derive(Clone)]
pub(crate) struct Norm {
    pub(crate) channels: usize,
    /// Values a channel that are here.
    pub(crate) count: usize,
    /// Pixels of an example.
    pub(crate) pixels: usize,
    pub(crate) running: [Var; 2],
    /// The number of batches that moved them, a scalar on the CPU.
    pub(crate) batches: Option<Var>,
    pub(crate) train: bool,
    pub(crate) how: BatchNorm,
    pub(crate) relu: bool,
    /// True if there is one more input, which is added.
    pub(crate) shortcut: bool,
    /// True if the last input is the bias of the convolution before this norm. The convolution leaves it out, because
    /// the batch's mean would subtract it again. So only the running mean needs it.
    pub(crate) shift: bool,
}

impl Norm {
    /// For inputs x, weight and bias of these shapes.
    pub(crate) fn new(
        [x, weight, bias]: [&[usize]; 3],
        running: [Var; 2],
        train: bool,
    ) -> Result<Self> {
        let op = "batch_norm2d";
        let [b, h, w, channels] = args::dims4(op, "(B, H, W, C)", x)?;
        let vector = |name, v| args::vector(op, name, v, channels, "channels of x");
        vector("running_mean", running[0].dims())?;
        vector("running_var", running[1].dims())?;
        vector("weight", weight)?;
        vector("bias", bias)?;
        args::check_float(op, "running_mean", running[0].dtype())?;
        args::check_float(op, "running_var", running[1].dtype())?;
        if channels == 0 {
            bail!("{op}: x has shape {x:?}, expected at least one channel")
        }
        Ok(Self {
            channels,
            count: b * h * w,
            pixels: h * w,
            running,
            batches: None,
            train,
            how: BatchNorm::default(),
            relu: false,
            shortcut: false,
            shift: false,
        })
    }

    /// Of the inputs: the value that is added after the norm.
    pub(crate) fn shortcut<T: Copy>(&self, x: &[T]) -> Option<T> {
        self.shortcut.then(|| x[3])
    }

    /// Of the inputs: the bias that the convolution left out.
    pub(crate) fn shift<T: Copy>(&self, x: &[T]) -> Option<T> {
        x.last().copied().filter(|_| self.shift)
    }
}
