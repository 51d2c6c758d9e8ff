//! Turning off the recording of the graph. It refuses nothing and changes no value.

use crate::scoped;
use std::cell::Cell;

thread_local! {
    static RECORDING: Cell<bool> = const { Cell::new(true) };
}

/// Runs `f`; inside, the operations of this crate called from this thread record no graph, so that
/// evaluation keeps no activation alive. It nests, and ends even if `f` panics.
///
/// Operations of candle's own go on recording. In the book: `with torch.no_grad():`.
///
/// ```
/// use candle_core::{Device, Var};
/// let x = Var::new(&[-1f32, 2.], &Device::Cpu)?;
/// assert!(functional::relu(&x)?.track_op());
/// assert!(!functional::no_grad(|| functional::relu(&x))?.track_op());
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn no_grad<R>(f: impl FnOnce() -> R) -> R {
    scoped::with(&RECORDING, false, f)
}

/// Whether operations called from this thread record a graph.
pub(crate) fn recording() -> bool {
    RECORDING.get()
}
