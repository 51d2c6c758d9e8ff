//! Which vector instructions the processor has, asked at run time: one binary for all.

/// Runs `f` compiled for the best instruction set that there is: loops that are inlined into it are
/// vectorized for AVX-512 or AVX2 where the processor has them. The bits of a result do not depend
/// on it: no sum is reordered, and products are only fused where the source says so.
#[inline]
pub(crate) fn dispatch<R>(f: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(f)
}
