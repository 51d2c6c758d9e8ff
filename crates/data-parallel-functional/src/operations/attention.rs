//! Causal attention; on the CPU the matrix products of one example and one head at a time.

use crate::cpu::buffer::{Buffer, check_room};
use crate::cpu::exp::{exp, sum};
use crate::cpu::gemm::{Matrix, multiply};
use crate::cpu::gradient::{At, Grad, Pass};
use crate::cpu::threads::{InChunks, for_each_chunk, for_each_chunk_of_two};
use crate::graph::value::Value;
use crate::kernel::{Cpu, Kernel, SelfContained};
use candle_core::{D, DType, Result, Tensor, bail};

impl Value {
    /// Attention in `heads` heads, in which each token sees itself and the tokens before it: queries, keys and values side by
    /// side, (B, T, 3·C) → (B, T, C). In PyTorch: `F.scaled_dot_product_attention(…, is_causal=True)`.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// // two tokens with equal scores: the second one gets the mean of both values
    /// let x = Tensor::new(&[[[0f32, 1., 10.], [0., 1., 30.]]], &Device::Cpu)?;
    /// let y = Value::new(&x)?.causal_attention(1)?.eval()?;
    /// assert_eq!(y.to_vec3::<f32>()?, [[[10.], [20.]]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where it is not f32, or the sizes do not match.
    pub fn causal_attention(&self, heads: usize) -> Result<Self> {
        let op = Attention::new(self.dims(), heads)?;
        let dims = [self.dims()[0], op.tokens, op.width];
        self.self_contained("causal_attention", op, &[], &dims)
    }
}

/// Attention of each token to itself and to those before it.
#[derive(Debug, Clone, Copy)]
struct Attention {
    tokens: usize,
    /// Of all heads together.
    width: usize,
    heads: usize,
}

impl Attention {
    /// For queries, keys and values of shape (B, T, 3·C).
    fn new(x: &[usize], heads: usize) -> Result<Self> {
        match *x {
            [_, tokens, all] if heads > 0 && all % (3 * heads) == 0 && all > 0 => Ok(Self {
                tokens,
                width: all / 3,
                heads,
            }),
            _ => bail!(
                "causal_attention: x has shape {x:?}, expected (B, T, 3·C), where {heads} heads divide C"
            ),
        }
    }

    /// 1 / √(the width of a head).
    fn scale(&self) -> f32 {
        1. / ((self.width / self.heads) as f32).sqrt()
    }
}

impl SelfContained for Attention {
    fn on_cpu(&self) -> Box<dyn Kernel<Cpu>> {
        Box::new(*self)
    }

    fn with_candle(&self, x: &[Tensor]) -> Result<Tensor> {
        let tokens = self.tokens;
        let width = self.width;
        let heads = self.heads;
        let batch = x[0].dim(0)?;
        let x = x[0]
            .reshape((batch, tokens, 3, heads, width / heads))?
            .permute((2, 0, 3, 1, 4))?
            .contiguous()?;
        let of_all = (x.get(0)?.matmul(&x.get(1)?.t()?)? * f64::from(self.scale()))?;
        let seen = Tensor::tril2(tokens, DType::F32, x.device())?;
        let scores = of_all.broadcast_add(&((1. - seen)? * -1e9)?)?;
        let powers = scores
            .broadcast_sub(&scores.max_keepdim(D::Minus1)?.detach())?
            .exp()?;
        let weights = powers.broadcast_div(&powers.sum_keepdim(D::Minus1)?)?;
        let y = weights.matmul(&x.get(2)?)?.transpose(1, 2)?;
        y.reshape((batch, tokens, width))
    }
}

impl Attention {
    /// Of an example (T, 3·C): the queries (0), keys (1) or values (2) of a head, (T, D).
    fn part<'a>(&self, x: &'a [f32], part: usize, head: usize) -> Matrix<'a> {
        let first = part * self.width + head * self.width / self.heads;
        self.head(&x[first..], 3 * self.width)
    }

    /// One head, of rows of `row` elements.
    fn head<'a>(&self, rows: &'a [f32], row: usize) -> Matrix<'a> {
        Matrix::strided(rows, (self.tokens, self.width / self.heads), (row, 1))
    }
}

/// The weights of a token, from its scores: those of the tokens after it are 0.
#[inline(always)]
fn softmax(scores: &mut [f32], seen: usize, scale: f32) {
    let (seen, later) = scores.split_at_mut(seen);
    let largest = seen.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for score in seen.iter_mut() {
        *score = exp((*score - largest) * scale);
    }
    let total = sum(
        seen.len(),
        #[inline(always)]
        |i| seen[i],
    );
    seen.iter_mut().for_each(|weight| *weight /= total);
    later.fill(0.);
}

/// Copies the rows of `from` to every `stride`-th element of `to`.
fn spread(from: &[f32], width: usize, to: &mut [f32], stride: usize) {
    for (from, to) in from.chunks_exact(width).zip(to.chunks_mut(stride)) {
        to[..width].copy_from_slice(from);
    }
}

impl Kernel<Cpu> for Attention {
    /// Saves the weights of each example and head, (T, T).
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let t = self.tokens;
        let c = self.width;
        let d = self.width / self.heads;
        let len = x[0].len() / (3 * c) * self.heads * t;
        check_room(len)?;
        let mut weights = Buffer::new(len);
        for_each_chunk_of_two(
            InChunks {
                data: y,
                chunk: t * c,
            },
            InChunks {
                data: &mut weights,
                chunk: self.heads * t * t,
            },
            #[inline(always)]
            |i, y, weights| {
                let x = &x[0][i * 3 * t * c..][..3 * t * c];
                let mut of_head = vec![0.; t * d];
                for (head, weights) in weights.chunks_exact_mut(t * t).enumerate() {
                    let [query, key, value] = [0, 1, 2].map(|part| self.part(x, part, head));
                    multiply(weights, false, query, key.t());
                    for (token, scores) in weights.chunks_exact_mut(t).enumerate() {
                        softmax(scores, token + 1, self.scale());
                    }
                    multiply(&mut of_head, false, Matrix::new(weights, t, t), value);
                    spread(&of_head, d, &mut y[head * d..], c);
                }
            },
        );
        Ok(vec![weights])
    }

    fn backward(&self, _: &Pass, at: At<'_, '_>, dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        let t = self.tokens;
        let c = self.width;
        let d = self.width / self.heads;
        let mut gradient = Buffer::new(at.x[0].len());
        for_each_chunk(
            &mut gradient,
            3 * t * c,
            #[inline(always)]
            |i, dx| {
                let x = &at.x[0][i * 3 * t * c..][..3 * t * c];
                let all = &at.saved[0][i * self.heads * t * t..];
                let mut d_scores = vec![0.; t * t];
                let mut of_head = vec![0.; t * d];
                for (head, weights) in all.chunks_exact(t * t).take(self.heads).enumerate() {
                    let [query, key, value] = [0, 1, 2].map(|part| self.part(x, part, head));
                    let dy = self.head(&dy[i * t * c + head * d..], c);
                    multiply(&mut d_scores, false, dy, value.t());
                    for (weights, d) in weights.chunks_exact(t).zip(d_scores.chunks_exact_mut(t)) {
                        let mean = sum(
                            t,
                            #[inline(always)]
                            |i| weights[i] * d[i],
                        );
                        for (weight, d) in weights.iter().zip(d) {
                            *d = weight * (*d - mean) * self.scale();
                        }
                    }
                    let (weights, d_scores) =
                        (Matrix::new(weights, t, t), Matrix::new(&d_scores, t, t));
                    let products = [(d_scores, key), (d_scores.t(), query), (weights.t(), dy)];
                    for (part, (a, b)) in products.into_iter().enumerate() {
                        multiply(&mut of_head, false, a, b);
                        spread(&of_head, d, &mut dx[part * c + head * d..], 3 * c);
                    }
                }
            },
        );
        dx[0].give(gradient);
        Ok(())
    }
}
