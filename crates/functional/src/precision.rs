//! How exactly GPUs compute: the arithmetic of convolutions, and whether a run repeats bit for bit. On
//! the CPU everything is f32 and repeats.

use std::sync::atomic::{AtomicBool, Ordering};

/// The arithmetic of convolutions on GPUs. Matrix products are always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// f32 throughout.
    F32,
    /// Inputs rounded to 10 bits behind the point (TF32), sums in f32: PyTorch's default for
    /// convolutions.
    #[default]
    Tf32,
}

static TF32: AtomicBool = AtomicBool::new(true);
static DETERMINISTIC: AtomicBool = AtomicBool::new(false);

/// Sets the arithmetic of all convolutions of this process on GPUs from now on; [`Precision::Tf32`]
/// until then.
///
/// ```
/// functional::set_precision(functional::Precision::F32);
/// # functional::set_precision(functional::Precision::Tf32);
/// ```
pub fn set_precision(precision: Precision) {
    TF32.store(precision == Precision::Tf32, Ordering::Relaxed);
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
    match TF32.load(Ordering::Relaxed) {
        false => Precision::F32,
        true => Precision::Tf32,
    }
}

#[cfg(feature = "cuda")]
pub(crate) fn deterministic() -> bool {
    DETERMINISTIC.load(Ordering::Relaxed)
}
