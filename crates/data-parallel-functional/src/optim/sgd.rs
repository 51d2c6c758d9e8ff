//! Stochastic gradient descent.

use candle_core::{Result, Tensor, Var, bail};

use super::{Data, Optimizer, Slice, check_range};
use crate::memory::tensors::read_all;

/// SGD with momentum, Nesterov's momentum and weight decay, as in PyTorch: g = grad + weight_decay · param;
/// v = momentum · v + g; param −= lr · v, or with Nesterov's lr · (g + momentum · v).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    /// Learning rate, 0 or more.
    pub lr: f64,
    /// The part of the step before that goes on, 0 or more; 0 for none.
    pub momentum: f64,
    /// The factor of the L2 penalty, 0 or more; 0 for none.
    pub weight_decay: f64,
    /// True if momentum looks ahead, as Nesterov's does; then `momentum` is above 0.
    pub nesterov: bool,
}

impl Sgd {
    /// Plain gradient descent: no momentum, no weight decay.
    pub fn new(lr: f64) -> Self {
        Self {
            lr,
            momentum: 0.,
            weight_decay: 0.,
            nesterov: false,
        }
    }

    fn plain(&self, slice: &mut Slice<'_>) -> Result<()> {
        let lr = (slice.lr / slice.examples) as f32;
        let decay = (slice.lr * self.weight_decay) as f32;
        slice.each(
            #[inline(always)]
            |p, sum, []| *p -= lr * sum + decay * *p,
        )
    }

    fn with_momentum(&self, slice: &mut Slice<'_>) -> Result<()> {
        let [lr, momentum, ahead, decay, share] = self.numbers(slice);
        slice.each(
            #[inline(always)]
            |p, sum, [v]| {
                let g = share * sum + decay * *p;
                *v = momentum * *v + g;
                *p -= lr * if ahead != 0. { g + ahead * *v } else { *v };
            },
        )
    }

    /// The numbers of a step: the rate, the momentum, Nesterov's momentum, the decay, and what makes a sum a mean.
    fn numbers(&self, slice: &Slice<'_>) -> [f32; 5] {
        let ahead = if self.nesterov { self.momentum } else { 0. };
        let share = 1. / slice.examples;
        [slice.lr, self.momentum, ahead, self.weight_decay, share].map(|value| value as f32)
    }
}

impl Optimizer for Sgd {
    fn lr(&self) -> f64 {
        self.lr
    }

    fn state(&self) -> &'static [&'static str] {
        match self.momentum {
            0. => &[],
            _ => &["momentum"],
        }
    }

    /// The ranges of PyTorch's `SGD`.
    fn check(&self) -> Result<()> {
        check_range("Sgd", "lr", self.lr, f64::INFINITY)?;
        check_range("Sgd", "momentum", self.momentum, f64::INFINITY)?;
        check_range("Sgd", "weight_decay", self.weight_decay, f64::INFINITY)?;
        if self.nesterov && self.momentum == 0. {
            bail!("Sgd: nesterov needs a momentum, which is 0; expected more than 0")
        }
        Ok(())
    }

    fn step(&self, slices: &mut [Slice<'_>]) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Some(slices) = Slice::on_a_gpu(slices, |slice| self.numbers(slice)) {
            return crate::cuda::sgd(&slices);
        }
        slices.iter_mut().try_for_each(|slice| match self.momentum {
            0. => self.plain(slice),
            _ => self.with_momentum(slice),
        })
    }
}

/// The step of plain gradient descent on whole parameters: param −= lr · sum / batch_size, where `sums` has the sum
/// of each one's gradients over the examples, in as many elements and on the same device.
///
/// # Errors
/// Where they do not fit, or one is not f32.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// let (w, b) = (Var::new(&[3f32, 1.], &Device::Cpu)?, Var::new(&[5f32], &Device::Cpu)?);
/// let sums = [Tensor::new(&[0f32, 8.], &Device::Cpu)?, Tensor::new(&[4f32], &Device::Cpu)?];
/// data_parallel_functional::sgd(&[&w, &b], &sums, 0.5, 4)?;
/// assert_eq!(w.to_vec1::<f32>()?, [3., 0.]);
/// assert_eq!(b.to_vec1::<f32>()?, [4.5]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn sgd(params: &[&Var], sums: &[Tensor], lr: f64, batch_size: usize) -> Result<()> {
    let expected: Vec<usize> = params.iter().map(|p| p.elem_count()).collect();
    let found: Vec<usize> = sums.iter().map(Tensor::elem_count).collect();
    if expected != found {
        bail!("sgd: the parameters have {expected:?} elements, the gradients {found:?}")
    }
    if params.iter().zip(sums).any(|(p, sum)| p.id() == sum.id()) {
        bail!("sgd: a parameter and its gradient are the same tensor")
    }
    let sums: Vec<Tensor> = sums.iter().map(Tensor::contiguous).collect::<Result<_>>()?;
    if sums.iter().any(|sum| sum.device().is_cuda()) {
        let memories = sums.iter().map(|sum| Data::Gpu {
            sum: sum.clone(),
            state: Vec::new(),
            first: 0,
        });
        return descend(params, memories, lr, batch_size);
    }
    read_all(&sums, |sums| {
        let memories = sums.iter().map(|sum| Data::Cpu {
            sum,
            state: Vec::new(),
        });
        descend(params, memories, lr, batch_size)
    })
}

fn descend<'a>(
    params: &'a [&Var],
    sums: impl Iterator<Item = Data<'a>>,
    lr: f64,
    batch_size: usize,
) -> Result<()> {
    let slices = params.iter().zip(sums).map(|(param, data)| Slice {
        name: "",
        range: 0..param.elem_count(),
        lr,
        step: 1,
        examples: batch_size as f64,
        param,
        data,
    });
    Sgd::new(lr).step(&mut slices.collect::<Vec<_>>())
}
