//! Examples that do not depend on each other, to see whether a loss makes them.

use std::cell::Cell;

thread_local! {
    static EACH_ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`, in which batch norms, dropout and candle's modules are written down as in inference, although they are called
/// with `train`: so the results of an example do not depend on the others, unless a function of the program's own makes
/// them.
pub fn each_example_alone<R>(f: impl FnOnce() -> R) -> R {
    /// Ends it also after a panic.
    struct Ends(bool);
    impl Drop for Ends {
        fn drop(&mut self) {
            EACH_ALONE.set(self.0);
        }
    }
    let _ends = Ends(EACH_ALONE.replace(true));
    f()
}

/// True if examples may depend on others, because they train together.
pub(crate) fn are_together(train: bool) -> bool {
    train && !EACH_ALONE.get()
}
