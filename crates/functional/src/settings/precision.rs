//! How exactly values are computed: the arithmetic of convolutions, the type of values between operations, and
//! whether a run repeats bit for bit. On the CPU everything is f32 and repeats.

use std::sync::{PoisonError, RwLock};

/// How GPUs multiply in convolutions, and what they keep. Matrix products are always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// f32 throughout.
    F32,
    /// Inputs of convolutions rounded to 10 bits behind the point (TF32), sums in f32: PyTorch's default for
    /// convolutions.
    #[default]
    Tf32,
    /// Between operations, values and their gradients are kept with 7 bits behind the point (bfloat16), and
    /// convolutions multiply such numbers if their channels are multiples of 8. An operation sums in f32 and rounds what it gives; so the gradient of a
    /// convolution's weight is rounded before it is added. f32 are the tensors that go in and come out: images,
    /// parameters and their gradients, results, statistics of batch norms. Needs compute capability 8.0 or higher.
    /// `torch.autocast("cuda", torch.bfloat16)` narrows matrix products as well.
    Bf16,
}

/// What the functions below set.
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
/// functional::set_precision(functional::Precision::F32);
/// # functional::set_precision(functional::Precision::Tf32);
/// ```
pub fn set_precision(precision: Precision) {
    change(|arithmetic| arithmetic.precision = precision);
}

/// Whether GPUs may only use algorithms that give the same bits every time. In the book:
/// `torch.use_deterministic_algorithms`.
///
/// ```
/// functional::set_deterministic(true);
/// # functional::set_deterministic(false);
/// ```
pub fn set_deterministic(only: bool) {
    change(|arithmetic| arithmetic.deterministic = only);
}

/// Whether the convolutions of this process that are written down from now on may take Winograd's
/// algorithm; they may until told otherwise. To compare: it rounds a little more than a plain sum, to
/// some millionths of the largest value. So an output may miss an exact 0, which matters to a ReLU
/// right behind a convolution without a bias; the 5 × 5 convolution with pooling takes care of that.
///
/// ```
/// functional::set_winograd(false);
/// # functional::set_winograd(true);
/// ```
pub fn set_winograd(may: bool) {
    change(|arithmetic| arithmetic.winograd = may);
}
