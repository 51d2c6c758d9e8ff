//! Which vector instructions the processor has, asked at run time: one binary for all.

/// Runs `f` compiled for the best instruction set that there is: loops that are inlined into it are
/// vectorized for AVX-512 or AVX2 where the processor has them. The bits of a result do not depend
/// on it: no sum is reordered, and products are only fused where the source says so.
///
/// Code that is not inlined is compiled for the oldest processor, without a warning. So closures and
/// the functions that they call are `#[inline(always)]`, and loops replace iterators with closures.
#[inline(always)]
pub(crate) fn dispatch<R>(f: impl FnOnce() -> R) -> R {
    struct Call<F>(F);
    impl<R, F: FnOnce() -> R> pulp::WithSimd for Call<F> {
        type Output = R;
        #[inline(always)]
        fn with_simd<S: pulp::Simd>(self, _: S) -> R {
            (self.0)()
        }
    }
    pulp::Arch::new().dispatch(Call(f))
}
