//! Which vector instructions the processor has, asked at run time: one binary for all.

use pulp::{Arch, Simd, WithSimd};

/// Runs `op` with the best instructions of this machine.
pub(crate) fn dispatch<Op: WithSimd>(op: Op) -> Op::Output {
    #[cfg(test)]
    if let Some(arch) = crate::cpu::case::ARCH.get() {
        return arch.dispatch(op);
    }
    // the processor is asked once; after that this is a load and a jump
    Arch::new().dispatch(op)
}

/// Runs `f` compiled for the best instruction set that there is: loops that are inlined into it are
/// vectorized for AVX-512 or AVX2 where the processor has them. The bits of a result do not depend
/// on it: no sum is reordered, and products are only fused where the source says so.
///
/// Code that is not inlined is compiled for the oldest processor, without a warning. So closures and
/// the functions that they call are `#[inline(always)]`, and loops replace iterators with closures.
#[inline(always)]
pub(crate) fn vectorized<R>(f: impl FnOnce() -> R) -> R {
    struct Call<F>(F);
    impl<R, F: FnOnce() -> R> WithSimd for Call<F> {
        type Output = R;
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> R {
            (self.0)()
        }
    }
    Arch::new().dispatch(Call(f))
}
