//! How exactly GPUs compute: the arithmetic of convolutions, the type of values between operations, and whether a
//! run repeats bit for bit. On the CPU everything is f32 and repeats.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// How GPUs multiply in convolutions, and what they keep. Matrix products are always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Precision {
    /// f32 throughout.
    F32,
    /// Inputs of convolutions rounded to 10 bits behind the point (TF32), sums in f32: PyTorch's default for
    /// convolutions.
    #[default]
    Tf32,
    /// Between operations, values and their gradients are kept with 7 bits behind the point (bfloat16), and
    /// convolutions multiply such numbers. An operation sums in f32 and rounds what it gives; so the gradient of a
    /// convolution's weight is rounded before it is added. f32 are the tensors that go in and come out: images,
    /// parameters and their gradients, results, statistics of batch norms. Needs compute capability 8.0 or higher.
    /// `torch.autocast("cuda", torch.bfloat16)` narrows matrix products as well.
    Bf16,
}

static PRECISION: AtomicU8 = AtomicU8::new(Precision::Tf32 as u8);
static DETERMINISTIC: AtomicBool = AtomicBool::new(false);

/// Sets how GPUs compute the values of this process from now on; [`Precision::Tf32`] until then. A backward pass
/// keeps the types of its forward pass; whether a convolution of f32 rounds is asked when it runs.
///
/// ```
/// functional::set_precision(functional::Precision::F32);
/// # functional::set_precision(functional::Precision::Tf32);
/// ```
pub fn set_precision(precision: Precision) {
    PRECISION.store(precision as u8, Ordering::Relaxed);
}

/// Whether GPUs may only use algorithms that give the same bits every time. In the book:
/// `torch.use_deterministic_algorithms`.
///
/// ```
/// functional::set_deterministic(true);
/// # functional::set_deterministic(false);
/// ```
pub fn set_deterministic(only: bool) {
    DETERMINISTIC.store(only, Ordering::Relaxed);
}

#[cfg(feature = "cuda")]
pub(crate) fn get() -> Precision {
    let all = [Precision::F32, Precision::Tf32, Precision::Bf16];
    all[usize::from(PRECISION.load(Ordering::Relaxed))]
}

#[cfg(feature = "cuda")]
pub(crate) fn deterministic() -> bool {
    DETERMINISTIC.load(Ordering::Relaxed)
}
