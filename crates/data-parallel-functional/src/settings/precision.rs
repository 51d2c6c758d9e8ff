//! The precision of computations: the arithmetic of convolutions, the type of values between operations, and
//! whether a run repeats bit for bit. On the CPU everything is f32 and repeats.

use std::sync::{PoisonError, RwLock};

use candle_core::Device;

/// The precision with which GPUs multiply in convolutions and keep values. Matrix products are always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// f32 throughout.
    F32,
    /// Inputs of convolutions rounded to 10 bits behind the point (TF32), sums in f32: PyTorch's default for
    /// convolutions. Small convolutions are f32: of one channel, or of few channels that are no
    /// multiples of 8.
    #[default]
    Tf32,
    /// Values between operations and their gradients have 7 bits behind the point (bfloat16). Convolutions multiply such
    /// numbers if both numbers of channels are multiples of 8; the others compute as with [`Tf32`](Self::Tf32). An
    /// operation sums in f32 and rounds its result. So the gradient of a convolution's weight is rounded before it is
    /// added. Images, parameters and their gradients, results, and statistics of batch norms are f32. Needs compute
    /// capability 8.0 or higher. `torch.autocast("cuda", torch.bfloat16)` narrows matrix products as well.
    Bf16,
}

/// The settings of the functions below.
#[derive(Clone, Copy)]
pub(crate) struct Arithmetic {
    pub precision: Precision,
    pub deterministic: bool,
    pub winograd: bool,
}

/// For the whole process: two replicas that compute differently would train two networks.
static ARITHMETIC: RwLock<Arithmetic> = RwLock::new(Arithmetic {
    precision: Precision::Tf32,
    deterministic: false,
    winograd: true,
});

pub(crate) fn arithmetic() -> Arithmetic {
    *ARITHMETIC.read().unwrap_or_else(PoisonError::into_inner)
}

fn change(f: impl FnOnce(&mut Arithmetic)) {
    f(&mut ARITHMETIC.write().unwrap_or_else(PoisonError::into_inner));
}

/// Sets how GPUs compute the values of this process from now on; [`Precision::Tf32`] until then. A backward pass
/// keeps the types of its forward pass; whether a convolution of f32 rounds is asked when it runs.
///
/// ```
/// data_parallel_functional::set_precision(data_parallel_functional::Precision::F32);
/// # data_parallel_functional::set_precision(data_parallel_functional::Precision::Tf32);
/// ```
pub fn set_precision(precision: Precision) {
    change(|arithmetic| arithmetic.precision = precision);
}

/// With `true`, GPUs only use algorithms that give the same bits every time. In the book:
/// `torch.use_deterministic_algorithms`.
///
/// ```
/// data_parallel_functional::set_deterministic(true);
/// # data_parallel_functional::set_deterministic(false);
/// ```
pub fn set_deterministic(only: bool) {
    change(|arithmetic| arithmetic.deterministic = only);
}

/// The settings above as far as `device` follows them, in a line: with others its results have other bits.
///
/// ```
/// use candle_core::Device;
/// assert_eq!(data_parallel_functional::describe_arithmetic(&Device::Cpu), "cpu, winograd true");
/// ```
pub fn describe_arithmetic(device: &Device) -> String {
    let Arithmetic {
        precision,
        deterministic,
        winograd,
    } = arithmetic();
    if device.is_cpu() {
        format!("cpu, winograd {winograd}")
    } else {
        format!("cuda, {precision:?}, deterministic {deterministic}, winograd {winograd}")
            .to_lowercase()
    }
}

/// With `true`, the convolutions of this process may use Winograd's algorithm in passes that begin from now on; the
/// default is `true`. It rounds a little more than a plain sum: to some millionths of the largest value. So an output
/// may miss an exact 0, which matters to a ReLU right after a convolution without a bias. The 5 × 5 convolution with
/// pooling gives exact zeros.
///
/// ```
/// data_parallel_functional::set_winograd(false);
/// # data_parallel_functional::set_winograd(true);
/// ```
pub fn set_winograd(may: bool) {
    change(|arithmetic| arithmetic.winograd = may);
}
