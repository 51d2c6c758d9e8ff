//! Rotary embeddings of positions.

use crate::cpu::buffer::Buffer;
use crate::cpu::gradient::{At, CHUNK, Grad, Pass};
use crate::cpu::threads::for_each_chunk;
use crate::graph::value::Value;
use crate::kernel::{Cpu, Kernel, SelfContained};
use candle_core::{Result, Tensor, bail};

impl Value {
    /// Rotates pairs of numbers of each head of (B, T, heads·D) by the angles of their position, of which `cos` and `sin`,
    /// (T, D/2), are given: number i of a head with number i + D/2. It is the order of Llama's weights at Hugging Face, and
    /// candle's `rope`.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// // by a right angle
    /// let (cos, sin) = (Tensor::new(&[[0f32]], &Device::Cpu)?, Tensor::new(&[[1f32]], &Device::Cpu)?);
    /// let x = Value::new(&Tensor::new(&[[[3f32, 5.]]], &Device::Cpu)?)?;
    /// assert_eq!(x.rotary(1, &cos, &sin)?.eval()?.to_vec3::<f32>()?, [[[-5., 3.]]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where one is not f32, the sizes do not match, or angles are trained.
    pub fn rotary(&self, heads: usize, cos: &Tensor, sin: &Tensor) -> Result<Self> {
        self.rotated("rotary", heads, [cos, sin], false)
    }

    /// The same rotation of number 2·i with number 2·i + 1: the order of the paper, of Llama's own weights, and
    /// candle's `rope_i`.
    ///
    /// # Errors
    /// As [`rotary`](Self::rotary).
    pub fn rotary_interleaved(&self, heads: usize, cos: &Tensor, sin: &Tensor) -> Result<Self> {
        self.rotated("rotary_interleaved", heads, [cos, sin], true)
    }

    fn rotated(
        &self,
        name: &str,
        heads: usize,
        [cos, sin]: [&Tensor; 2],
        interleaved: bool,
    ) -> Result<Self> {
        let x = self.dims();
        let &[_, tokens, width] = x else {
            bail!("{name}: x has shape {x:?}, expected (B, T, heads·D)")
        };
        let half = width / 2 / heads.max(1);
        if heads == 0 || half * 2 * heads != width || width == 0 {
            bail!(
                "{name}: x has shape {x:?}, expected (B, T, heads·D) for {heads} heads and an even D"
            )
        }
        for (of, angles) in [("cos", cos), ("sin", sin)] {
            let shape = angles.dims();
            if shape != [tokens, half] {
                bail!("{name}: {of} has shape {shape:?}, expected [{tokens}, {half}] for x {x:?}")
            }
        }
        let [cos, sin] = [Self::new(cos)?, Self::new(sin)?];
        if cos.is_wanted() || sin.is_wanted() {
            bail!("{name}: cos or sin depends on a variable that is trained; it gets no gradient")
        }
        let op = Rotary {
            tokens,
            heads,
            half,
            interleaved,
        };
        self.self_contained_with(name, op, &[("cos", &cos), ("sin", &sin)], x)
    }
}

/// Rotation of pairs in each head.
#[derive(Debug, Clone, Copy)]
struct Rotary {
    tokens: usize,
    heads: usize,
    /// Pairs of a head.
    half: usize,
    /// True if a pair stands side by side, and not half a head apart.
    interleaved: bool,
}

impl SelfContained for Rotary {
    fn with_candle(&self, x: &[Tensor]) -> Result<Tensor> {
        let half = self.half;
        let (pairs, axis) = if self.interleaved {
            ((half, 2), 4)
        } else {
            ((2, half), 3)
        };
        let by_pair = x[0].reshape(((), self.tokens, self.heads, pairs.0, pairs.1))?;
        let part = |i: usize| by_pair.narrow(axis, i, 1)?.squeeze(axis);
        let [a, b] = [part(0)?, part(1)?];
        let cos = x[1].reshape((self.tokens, 1, half))?;
        let sin = x[2].reshape((self.tokens, 1, half))?;
        let first = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
        let second = (a.broadcast_mul(&sin)? + b.broadcast_mul(&cos)?)?;
        Tensor::stack(&[first, second], axis)?.reshape(x[0].shape())
    }
}

impl Rotary {
    /// Rotates all of `values`, by the angles or, with a `sign` of −1, back.
    fn rotate(&self, values: &mut [f32], cos: &[f32], sin: &[f32], sign: f32) {
        let half = self.half;
        let row = 2 * half * self.heads;
        let rows = (CHUNK / row).max(1);
        for_each_chunk(
            values,
            rows * row,
            #[inline(always)]
            |i, values| {
                for (n, token) in values.chunks_exact_mut(row).enumerate() {
                    let first = (i * rows + n) % self.tokens * half;
                    let cos = &cos[first..][..half];
                    let sin = &sin[first..][..half];
                    for head in token.chunks_exact_mut(2 * half) {
                        if self.interleaved {
                            for ((pair, cos), sin) in head.chunks_exact_mut(2).zip(cos).zip(sin) {
                                let [a, b] = [pair[0], pair[1]];
                                pair[0] = a * cos - b * (sign * sin);
                                pair[1] = a * (sign * sin) + b * cos;
                            }
                        } else {
                            let (left, right) = head.split_at_mut(half);
                            for k in 0..half {
                                let [a, b] = [left[k], right[k]];
                                left[k] = a * cos[k] - b * (sign * sin[k]);
                                right[k] = a * (sign * sin[k]) + b * cos[k];
                            }
                        }
                    }
                }
            },
        );
    }
}

impl Kernel<Cpu> for Rotary {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        y.copy_from_slice(x[0]);
        self.rotate(y, x[1], x[2], 1.);
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, at: At<'_, '_>, mut dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        self.rotate(&mut dy, at.x[1], at.x[2], -1.);
        dx[0].give(dy);
        Ok(())
    }
}
