//! Losses: one number for each example, and no mean or sum over the examples, because shards of one minibatch have to be
//! added.

use super::value::Value;
use crate::descriptors::args;
use candle_core::{DType, Result, Tensor, bail};

/// The cross-entropy of each example: logits `y_hat` (B, C) and labels `y` (B,) of u32 → (B,):
/// log Σⱼ exp(y_hatⱼ) − y_hat at the label. An example with several labels, (B, …, C) and (B, …), has the mean of theirs.
/// It takes no mean and no sum over the examples: shards of one minibatch have to be added.
///
/// In the book: `nn.CrossEntropyLoss(reduction='none')`.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use functional::{Value, cross_entropy};
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
/// use functional::{Value, masked_cross_entropy};
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
        let (mask, y) = (mask.dims(), y.dims());
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
    let batch = y.dims()[0];
    let shape = (batch, labels / batch);
    let (mask, counts) = (mask.reshape(shape)?, counts.reshape(shape)?);
    let sum = move |l: &[Tensor]| {
        // not times 0: the loss of what is hidden may be infinite
        let losses = counts.where_cond(&l[0].reshape(shape)?, &mask.zeros_like()?)?;
        (losses * &mask)?.sum(1)
    };
    Ok(Value::candle(&[&losses], sum, &[batch]))
}

/// The mean squared error of each example: `y_hat` (B, …) and targets `y` (B, …) of f32 → (B,): the mean of
/// (y_hat − y)² over the elements of an example.
///
/// In the book: `nn.MSELoss(reduction='none')`, with the mean over an example.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use functional::{Value, squared_error};
/// let y_hat = Value::new(&Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?)?;
/// let y = Tensor::new(&[[1f32, 0.], [3., 1.]], &Device::Cpu)?;
/// assert_eq!(squared_error(&y_hat, &y)?.eval()?.to_vec1::<f32>()?, [2., 4.5]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// Where the types, shapes or devices do not match, or an example has no element.
pub fn squared_error(y_hat: &Value, y: &Tensor) -> Result<Value> {
    mean_of_each("squared_error", y_hat, y, |y_hat, y| (y_hat - y)?.sqr())
}

/// The binary cross-entropy of each example: logits `y_hat` (B, …) and targets `y` (B, …) of f32, from 0 to 1 → (B,):
/// the mean of −y · log σ(y_hat) − (1 − y) · log σ(−y_hat) over the elements of an example.
///
/// In PyTorch: `nn.BCEWithLogitsLoss(reduction='none')`, with the mean over an example.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use functional::{Value, binary_cross_entropy};
/// let y_hat = Value::new(&Tensor::new(&[[0f32], [-200.]], &Device::Cpu)?)?;
/// let y = Tensor::new(&[[1f32], [1.]], &Device::Cpu)?;
/// let losses = binary_cross_entropy(&y_hat, &y)?.eval()?;
/// assert_eq!(losses.to_vec1::<f32>()?, [2f32.ln(), 200.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// As [`squared_error`].
pub fn binary_cross_entropy(y_hat: &Value, y: &Tensor) -> Result<Value> {
    mean_of_each("binary_cross_entropy", y_hat, y, |y_hat, y| {
        // log(1 + exp(y_hat)) without an overflow, and with the right gradient at 0
        let size = y_hat.abs()?;
        let log = ((size.neg()?.exp()? + 1.)?.log()? + ((y_hat + size)? * 0.5)?)?;
        log - (y_hat * y)?
    })
}

/// The mean of `f` over the elements of each example, where `y_hat` and `y` have the same shape.
fn mean_of_each(
    op: &'static str,
    y_hat: &Value,
    y: &Tensor,
    f: impl Fn(&Tensor, &Tensor) -> Result<Tensor> + 'static,
) -> Result<Value> {
    let (dims, targets) = (y_hat.dims(), y.dims());
    if dims != targets || dims.is_empty() {
        bail!("{op}: y_hat has shape {dims:?}, y {targets:?}, expected the same (B, …)")
    }
    if dims[1..].contains(&0) {
        bail!("{op}: y_hat has shape {dims:?}, expected at least one element for each example")
    }
    y_hat.check(op, &[("y", &Value::new(y)?)])?;
    let (y, shape) = (y.detach(), (dims[0], dims[1..].iter().product::<usize>()));
    let of_each = move |y_hat: &[Tensor]| f(&y_hat[0], &y)?.reshape(shape)?.mean(1);
    Ok(Value::candle(&[y_hat], of_each, &dims[..1]))
}
