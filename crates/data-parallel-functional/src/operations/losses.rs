//! Losses: one number for each example, and no mean or sum over the examples, because shards of one minibatch have to be
//! added. The cross-entropy of a label has kernels on each device; the others, and the mean or sum over the elements of an
//! example, are here.

use crate::cpu::buffer::Buffer;
use crate::cpu::exp::{exp, ln_1p, sum};
use crate::cpu::gradient::{At, Grad, Pass};
use crate::cpu::threads::for_each_chunk;
use crate::descriptors::args;
use crate::graph::value::Value;
use crate::kernel::{Cpu, Kernel, SelfContained};
use candle_core::{DType, Result, Tensor, bail};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};

/// The cross-entropy of each example: logits `y_hat` (B, C) and labels `y` (B,) of u32 → (B,):
/// log Σⱼ exp(y_hatⱼ) − y_hat at the label. An example with several labels, (B, …, C) and (B, …), has the mean of theirs.
/// It takes no mean and no sum over the examples: shards of one minibatch have to be added.
///
/// In the book: `nn.CrossEntropyLoss(reduction='none')`.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use data_parallel_functional::{Value, cross_entropy};
/// let y_hat = Value::new(&Tensor::new(&[[0f32, 0.], [0., 100.]], &Device::Cpu)?)?;
/// let y = Tensor::new(&[0u32, 0], &Device::Cpu)?;
/// assert_eq!(cross_entropy(&y_hat, &y)?.eval()?.to_vec1::<f32>()?, [2f32.ln(), 100.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// Where the types, sizes or devices do not match, or a label is no class. On a GPU the host does not wait to
/// read the labels: there, a label that is no class gives a loss of NaN instead.
pub fn cross_entropy(y_hat: &Value, y: &Tensor) -> Result<Value> {
    y_hat.cross_entropy(y)
}

/// The masked cross-entropy of each example: logits `y_hat` (B, …, C), labels `y` (B, …) of u32 and `mask` (B, …) → (B,):
/// the sum over an example's labels of mask · [`cross_entropy`]. The mask has any type. It is 1 where a label counts, and
/// 0 where it is padding: there the label may be any number. Other weights are fine. The mean over all labels that count is
/// the sum of these losses divided by the sum of the mask, which `data_parallel::Trainer::mean_over` computes.
///
/// In PyTorch: `nn.CrossEntropyLoss(reduction='sum')` of each example, with `ignore_index` for padding.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use data_parallel_functional::{Value, masked_cross_entropy};
/// let y_hat = Value::new(&Tensor::new(&[[[0f32, 0.], [0., 100.], [0., 7.]]], &Device::Cpu)?)?;
/// let y = Tensor::new(&[[1u32, 0, 99]], &Device::Cpu)?;
/// let mask = Tensor::new(&[[1u8, 1, 0]], &Device::Cpu)?;
/// let losses = masked_cross_entropy(&y_hat, &y, &mask)?.eval()?;
/// assert_eq!(losses.to_vec1::<f32>()?, [2f32.ln() + 100.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// As [`cross_entropy`]; and where `mask` has another shape than `y`, is on another device, or depends on a variable that is
/// trained.
pub fn masked_cross_entropy(y_hat: &Value, y: &Tensor, mask: &Tensor) -> Result<Value> {
    let op = "masked_cross_entropy";
    if mask.dims() != y.dims() {
        let mask = mask.dims();
        let y = y.dims();
        bail!("{op}: mask has shape {mask:?}, y {y:?}, expected the same")
    }
    args::check_device(op, y_hat.device(), "mask", mask.device())?;
    args::check_device(op, y_hat.device(), "y", y.device())?;
    if Value::new(mask)?.is_wanted() {
        bail!(
            "{op}: the mask depends on parameters that are trained, and gets no gradient here; detach it, or multiply losses by it"
        )
    }
    let labels = y.elem_count();
    if labels == 0 || y.dtype() != DType::U32 {
        return y_hat.cross_entropy(y); // of no label, or it says what is wrong with `y`
    }
    let mask = mask.to_dtype(DType::F32)?.detach();
    let counts = mask.ne(0f32)?;
    let losses = y_hat.cross_entropies(&counts.where_cond(y, &y.zeros_like()?)?)?;
    let mask = mask.flatten_all()?;
    of_examples::<Masked>(&losses, &mask, y.dims()[0])
}

/// The mean squared error of each example: `y_hat` (B, …) and targets `y` (B, …) of f32 → (B,): the mean of
/// (y_hat − y)² over the elements of an example.
///
/// In the book: `nn.MSELoss(reduction='none')`, with the mean over an example.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use data_parallel_functional::{Value, squared_error};
/// let y_hat = Value::new(&Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?)?;
/// let y = Tensor::new(&[[1f32, 0.], [3., 1.]], &Device::Cpu)?;
/// assert_eq!(squared_error(&y_hat, &y)?.eval()?.to_vec1::<f32>()?, [2., 4.5]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// Where the types, shapes or devices do not match, or an example has no element.
pub fn squared_error(y_hat: &Value, y: &Tensor) -> Result<Value> {
    mean_of_pairs::<Squared>(y_hat, y)
}

/// The binary cross-entropy of each example: logits `y_hat` (B, …) and targets `y` (B, …) of f32, from 0 to 1 → (B,):
/// the mean of −y · log σ(y_hat) − (1 − y) · log σ(−y_hat) over the elements of an example.
///
/// In PyTorch: `nn.BCEWithLogitsLoss(reduction='none')`, with the mean over an example.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use data_parallel_functional::{Value, binary_cross_entropy};
/// let y_hat = Value::new(&Tensor::new(&[[0f32], [-200.]], &Device::Cpu)?)?;
/// let y = Tensor::new(&[[1f32], [1.]], &Device::Cpu)?;
/// let losses = binary_cross_entropy(&y_hat, &y)?.eval()?;
/// assert_eq!(losses.to_vec1::<f32>()?, [2f32.ln(), 200.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// As [`squared_error`]; and if a target is NaN, or not from 0 to 1. Rounding may move one past an end by 0.00001. On a
/// GPU the host does not wait to read the targets: there, such a target gives a loss of NaN instead.
pub fn binary_cross_entropy(y_hat: &Value, y: &Tensor) -> Result<Value> {
    mean_of_pairs::<Binary>(y_hat, y)
}

/// The mean over the elements of each example, where `y_hat` and `y` have the same shape.
fn mean_of_pairs<E: Element>(y_hat: &Value, y: &Tensor) -> Result<Value> {
    let op = E::NAME;
    let dims = y_hat.dims();
    let targets = y.dims();
    if dims != targets || dims.is_empty() {
        bail!("{op}: y_hat has shape {dims:?}, y {targets:?}, expected the same (B, …)")
    }
    if dims[1..].contains(&0) {
        bail!("{op}: y_hat has shape {dims:?}, expected at least one element for each example")
    }
    of_examples::<E>(y_hat, y, dims[0])
}

/// The loss of each of `examples` from its elements.
fn of_examples<E: Element>(x: &Value, targets: &Tensor, examples: usize) -> Result<Value> {
    let loss = OfExample::<E> {
        element: PhantomData,
        elements: x.dims().iter().product::<usize>() / examples.max(1),
    };
    Value::new(targets)?; // where they are computed from what eval returned, the pass is refused
    x.self_contained(E::NAME, loss, &[("y", &targets.detach())], &[examples])
}

impl Value {
    /// The cross-entropy of each example: logits (B, …, C) and labels `y` (B, …) of u32 → (B,):
    /// log Σⱼ exp(y_hatⱼ) − y_hat at the label. As the function [`cross_entropy`](crate::cross_entropy).
    ///
    /// # Errors
    /// As there.
    pub fn cross_entropy(&self, y: &Tensor) -> Result<Self> {
        let losses = self.cross_entropies(y)?;
        if self.dims().len() == 2 {
            return Ok(losses);
        }
        let no_targets = Tensor::zeros(losses.dims(), DType::F32, self.device())?;
        let examples = self.dims()[0];
        of_examples::<Mean>(&losses, &no_targets, examples)
    }
}

/// The part of an example's loss that comes from an element and its target.
trait Element: Sync + 'static {
    /// The name of the loss.
    const NAME: &str;

    /// True if the sum is divided by the number of elements.
    const IS_MEAN: bool = true;

    fn term(x: f32, target: f32) -> f32;

    /// The derivative of `term` by x.
    fn slope(x: f32, target: f32) -> f32;

    /// True if there is a loss for this target.
    #[inline(always)]
    fn takes(_target: f32) -> bool {
        true
    }

    /// `term` of all elements.
    fn terms(x: &Tensor, targets: &Tensor) -> Result<Tensor>;
}

/// The element itself.
struct Mean;

impl Element for Mean {
    const NAME: &str = "cross_entropy";

    #[inline(always)]
    fn term(x: f32, _: f32) -> f32 {
        x
    }

    #[inline(always)]
    fn slope(_: f32, _: f32) -> f32 {
        1.
    }

    fn terms(x: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok(x.clone())
    }
}

/// The element times its target; 0 where that is 0, also if the element is infinite.
struct Masked;

impl Element for Masked {
    const NAME: &str = "masked_cross_entropy";

    const IS_MEAN: bool = false;

    #[inline(always)]
    fn term(x: f32, target: f32) -> f32 {
        if target == 0. { 0. } else { x * target }
    }

    #[inline(always)]
    fn slope(_: f32, target: f32) -> f32 {
        target
    }

    fn terms(x: &Tensor, targets: &Tensor) -> Result<Tensor> {
        targets.ne(0f32)?.where_cond(x, &x.zeros_like()?)? * targets
    }
}

/// The square of the difference.
struct Squared;

impl Element for Squared {
    const NAME: &str = "squared_error";

    #[inline(always)]
    fn term(x: f32, target: f32) -> f32 {
        (x - target) * (x - target)
    }

    #[inline(always)]
    fn slope(x: f32, target: f32) -> f32 {
        2. * (x - target)
    }

    fn terms(x: &Tensor, targets: &Tensor) -> Result<Tensor> {
        (x - targets)?.sqr()
    }
}

/// log(1 + eˣ) − x · target: the binary cross-entropy of a logit.
struct Binary;

impl Element for Binary {
    const NAME: &str = "binary_cross_entropy";

    #[inline(always)]
    fn term(x: f32, target: f32) -> f32 {
        ln_1p(exp(-x.abs())) + x.max(0.) - x * target
    }

    #[inline(always)]
    fn slope(x: f32, target: f32) -> f32 {
        let power = exp(-x.abs());
        let sigmoid = if x < 0. { power } else { 1. } / (1. + power);
        sigmoid - target
    }

    #[inline(always)]
    fn takes(target: f32) -> bool {
        (LEAST_TARGET..=LARGEST_TARGET).contains(&target)
    }

    fn terms(x: &Tensor, targets: &Tensor) -> Result<Tensor> {
        // without an overflow, and with the right gradient at 0
        let size = x.abs()?;
        let log = ((size.neg()?.exp()? + 1.)?.log()? + ((x + size)? * 0.5)?)?;
        let terms = (log - (x * targets)?)?;
        let is_target = (targets.ge(LEAST_TARGET)? * targets.le(LARGEST_TARGET)?)?;
        is_target.where_cond(&terms, &(terms.zeros_like()? + f64::NAN)?)
    }
}

/// The ends of targets from 0 to 1, with what rounding may add.
const LEAST_TARGET: f32 = -1e-5;
const LARGEST_TARGET: f32 = 1. + 1e-5;

/// The loss of each example: the sum or the mean over its elements.
struct OfExample<E> {
    /// Of an example.
    elements: usize,
    element: PhantomData<E>,
}

/// Elements that are summed in f32 before they are added to the others: long sums in f32 are inexact.
const BLOCK: usize = 1024;

/// The fewest elements of a task.
const TASK: usize = 4096;

impl<E: Element> OfExample<E> {
    /// The divisor of a sum.
    fn divisor(&self) -> f32 {
        if E::IS_MEAN { self.elements as f32 } else { 1. }
    }

    /// An error that names the first target without a loss.
    fn check_targets(&self, targets: &[f32]) -> Result<()> {
        let Some(at) = targets.iter().position(|target| !E::takes(*target)) else {
            return Ok(());
        };
        let value = targets[at];
        let example = at / self.elements;
        let element = match self.elements {
            1 => String::new(),
            n => format!(", element {}", at % n),
        };
        bail!(
            "{}: y has the value {value} in example {example}{element}; expected 0 to 1",
            E::NAME
        )
    }

    /// Examples of a task.
    fn examples(&self) -> usize {
        TASK.div_ceil(self.elements.max(1))
    }

    #[inline(always)]
    fn loss(&self, x: &[f32], targets: &[f32]) -> f32 {
        let mut total = 0f64;
        for (x, targets) in x.chunks(BLOCK).zip(targets.chunks(BLOCK)) {
            total += f64::from(sum(
                x.len(),
                #[inline(always)]
                |i| E::term(x[i], targets[i]),
            ));
        }
        (total / f64::from(self.divisor())) as f32
    }
}

impl<E: Element> SelfContained for OfExample<E> {
    fn with_candle(&self, x: &[Tensor]) -> Result<Tensor> {
        let terms = E::terms(&x[0], &x[1])?;
        let examples = terms.elem_count() / self.elements.max(1);
        let sums = terms.reshape((examples, self.elements))?.sum(1)?;
        sums / f64::from(self.divisor())
    }
}

impl<E: Element> Kernel<Cpu> for OfExample<E> {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let targets = x[1];
        let x = x[0];
        let n = self.elements;
        let examples = self.examples();
        let all_taken = AtomicBool::new(true);
        for_each_chunk(
            y,
            examples,
            #[inline(always)]
            |i, losses| {
                let of_task = &targets[i * examples * n..][..losses.len() * n];
                // without a branch for each, so that it is computed with vectors
                let refused: u32 = of_task.iter().map(|t| u32::from(!E::takes(*t))).sum();
                if refused > 0 {
                    all_taken.store(false, Ordering::Relaxed);
                }
                for (j, loss) in losses.iter_mut().enumerate() {
                    let first = (i * examples + j) * n;
                    *loss = self.loss(&x[first..][..n], &targets[first..][..n]);
                }
            },
        );
        if !all_taken.into_inner() {
            self.check_targets(targets)?;
        }
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, at: At<'_, '_>, dy: Buffer, dx: &mut [Grad<'_>]) -> Result<()> {
        let n = self.elements.max(1);
        let examples = self.examples();
        let mut gradient = Buffer::new(at.x[0].len());
        for_each_chunk(
            &mut gradient,
            examples * n,
            #[inline(always)]
            |i, gradient| {
                for (j, dx) in gradient.chunks_exact_mut(n).enumerate() {
                    let example = i * examples + j;
                    let x = &at.x[0][example * n..];
                    let targets = &at.x[1][example * n..];
                    let d = dy[example] / self.divisor();
                    for ((dx, x), target) in dx.iter_mut().zip(x).zip(targets) {
                        *dx = d * E::slope(*x, *target);
                    }
                }
            },
        );
        dx[0].give(gradient);
        Ok(())
    }
}
