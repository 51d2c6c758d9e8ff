//! Attention; on the CPU the matrix products of one example and one head at a time.

mod mask;

use crate::cpu::buffer::{Buffer, check_room};
use crate::cpu::exp::{exp, sum};
use crate::cpu::gemm::{Matrix, multiply};
use crate::cpu::gradient::{At, Grad, Pass};
use crate::cpu::layout::columns;
use crate::cpu::threads::{for_each_chunk, for_each_chunk_with};
use crate::graph::value::Value;
use crate::kernel::{Cpu, Kernel, SelfContained};
use candle_core::{D, DType, Error, Result, Tensor, bail};
use mask::Mask;

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
        let x = self.dims();
        let &[batch, tokens, all] = x else {
            return Err(not_packed(x, heads));
        };
        if heads == 0 || all % (3 * heads) > 0 || all == 0 {
            return Err(not_packed(x, heads));
        }
        let kernel = AttentionKernel::of(
            &Attention::new(heads).causal(),
            tokens,
            tokens,
            all / 3,
            true,
        )?;
        let dims = [batch, tokens, kernel.width];
        self.self_contained("causal_attention", kernel, &[], &dims)
    }

    /// Attention of queries (B, T, heads·D) to keys and values (B, S, kv_heads·D), as `how` says; the result has the shape of
    /// the queries: softmax(Q·Kᵀ / √D)·V of each head. In PyTorch: `F.scaled_dot_product_attention`, there of
    /// (B, heads, T, D).
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::{Attention, Value};
    /// let [q, k] = [[[[1f32]]], [[[0f32]]]].map(|x| Value::new(&Tensor::new(&x, &Device::Cpu).unwrap()).unwrap());
    /// let v = Value::new(&Tensor::new(&[[[10f32]]], &Device::Cpu)?)?;
    /// let y = q.attention(&k, &v, &Attention::new(1))?.eval()?;
    /// assert_eq!(y.to_vec3::<f32>()?, [[[10.]]]); // one key: its value
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where one is not f32, or the sizes do not match.
    pub fn attention(&self, key: &Self, value: &Self, how: &Attention) -> Result<Self> {
        let shapes = [self.dims(), key.dims(), value.dims()];
        let ([batch, tokens, width], [of_key, keys, kv_width]) = (shapes[0], shapes[1]) else {
            bail!(
                "attention: shapes {shapes:?}, expected (B, T, heads·D) and twice (B, S, kv_heads·D)"
            )
        };
        let fits = how.heads > 0 && width.is_multiple_of(how.heads) && *width > 0 && *keys > 0;
        let is_kv = |size: usize| kv_width * how.heads == size * how.kv_heads;
        if !fits || batch != of_key || shapes[1] != shapes[2] || !is_kv(*width) {
            bail!(
                "attention: shapes {shapes:?}, expected (B, T, heads·D) and twice (B, S, kv_heads·D) for {} and {} heads",
                how.heads,
                how.kv_heads
            )
        }
        let kernel = AttentionKernel::of(how, *tokens, *keys, *width, false)?;
        if let Some(mask) = &kernel.mask {
            mask.check(*batch)?;
        }
        let others = [("key", key), ("value", value)];
        self.self_contained_with("attention", kernel, &others, self.dims())
    }
}

/// The error of queries, keys and values side by side that have another shape.
fn not_packed(x: &[usize], heads: usize) -> Error {
    Error::Msg(format!(
        "causal_attention: x has shape {x:?}, expected (B, T, 3·C), where {heads} heads divide C"
    ))
}

/// The settings of attention: the number of heads, and the keys that each token sees.
#[derive(Debug, Clone)]
pub struct Attention {
    heads: usize,
    kv_heads: usize,
    causal: bool,
    scale: Option<f32>,
    mask: Option<Tensor>,
}

impl Attention {
    /// In `heads` heads. Each token sees all.
    pub fn new(heads: usize) -> Self {
        Self {
            heads,
            kv_heads: heads,
            causal: false,
            scale: None,
            mask: None,
        }
    }

    /// Fewer heads of keys and values, each for as many heads of queries one after the other: grouped-query attention,
    /// PyTorch's `enable_gqa=True`.
    pub fn kv_heads(self, kv_heads: usize) -> Self {
        Self { kv_heads, ..self }
    }

    /// Each token sees itself and the tokens before it.
    pub fn causal(self) -> Self {
        Self {
            causal: true,
            ..self
        }
    }

    /// The factor of all scores, instead of 1 / √D.
    pub fn scale(self, scale: f32) -> Self {
        Self {
            scale: Some(scale),
            ..self
        }
    }

    /// A mask of u8, (B, T, S), of which the first two sizes may be 1: a token sees the keys that have 1, and not those that
    /// have 0. A token that sees none gets 0.
    pub fn mask(self, mask: &Tensor) -> Self {
        Self {
            mask: Some(mask.clone()),
            ..self
        }
    }
}

/// Attention of given sizes.
#[derive(Debug, Clone)]
struct AttentionKernel {
    tokens: usize,
    /// Tokens of keys and values.
    keys: usize,
    /// Of all heads of the queries together.
    width: usize,
    heads: usize,
    kv_heads: usize,
    causal: bool,
    scale: f32,
    mask: Option<Mask>,
    /// True if queries, keys and values are side by side in one input.
    packed: bool,
}

impl AttentionKernel {
    /// Of `tokens` queries of all heads' `width` to `keys` keys.
    fn of(how: &Attention, tokens: usize, keys: usize, width: usize, packed: bool) -> Result<Self> {
        let heads = how.heads;
        let kv_heads = how.kv_heads;
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            bail!("attention: {kv_heads} heads of keys do not divide {heads} heads of queries")
        }
        if how.causal && tokens != keys {
            bail!("attention: {tokens} queries and {keys} keys; causal attention is for as many")
        }
        let scale = how.scale.unwrap_or(1. / ((width / heads) as f32).sqrt());
        if !scale.is_finite() || scale <= 0. {
            bail!("attention: the scale is {scale}, expected a positive number")
        }
        let mask = how.mask.as_ref().map(|mask| Mask::new(mask, tokens, keys));
        Ok(Self {
            tokens,
            keys,
            width,
            heads,
            kv_heads,
            causal: how.causal,
            scale,
            mask: mask.transpose()?,
            packed,
        })
    }

    /// The width of a head.
    fn size(&self) -> usize {
        self.width / self.heads
    }

    /// The sizes of queries (0), keys (1) or values (2) of an example.
    fn part(&self, part: usize) -> Part {
        let rows = if part == 0 { self.tokens } else { self.keys };
        let width = if part == 0 {
            self.width
        } else {
            self.kv_heads * self.size()
        };
        if self.packed {
            return Part {
                input: 0,
                first: part * self.width,
                rows,
                row: 3 * self.width,
            };
        }
        Part {
            input: part,
            first: 0,
            rows,
            row: width,
        }
    }

    /// The first element of a head in a row of queries (0), keys (1) or values (2).
    fn head(&self, part: usize, head: usize) -> usize {
        let of_queries = self.heads / self.kv_heads;
        let head = if part == 0 { head } else { head / of_queries };
        self.part(part).first + head * self.size()
    }

    /// The queries (0), keys (1) or values (2) of a head of an example: (T, D).
    fn matrix<'a>(&self, x: &[&'a [f32]], example: usize, part: usize, head: usize) -> Matrix<'a> {
        let Part {
            input, rows, row, ..
        } = self.part(part);
        let of_example = &x[input][example * rows * row..][..rows * row];
        let first = self.head(part, head);
        Matrix::strided(&of_example[first..], (rows, self.size()), (row, 1))
    }

    /// The weights of the tokens of an example, from their scores, (T, S): those of what a token does not see are 0.
    #[inline(always)]
    fn softmax(&self, example: usize, scores: &mut [f32]) {
        for (token, scores) in scores.chunks_exact_mut(self.keys).enumerate() {
            if let Some(mask) = &self.mask {
                for (score, seen) in scores.iter_mut().zip(mask.of_token(example, token)) {
                    if *seen == 0 {
                        *score = f32::NEG_INFINITY;
                    }
                }
            }
            let seen = if self.causal { token + 1 } else { self.keys };
            softmax(scores, seen, self.scale);
        }
    }
}

/// Rows of an example in an input.
struct Part {
    input: usize,
    /// The first element in a row.
    first: usize,
    rows: usize,
    /// Elements from a row to the next one.
    row: usize,
}

impl SelfContained for AttentionKernel {
    fn with_candle(&self, x: &[Tensor]) -> Result<Tensor> {
        let batch = x[0].dim(0)?;
        let size = self.size();
        let each = self.heads / self.kv_heads;
        let part = |part: usize| {
            let heads = if part == 0 { self.heads } else { self.kv_heads };
            let Part {
                input, first, rows, ..
            } = self.part(part);
            let of_part = x[input].narrow(2, first, heads * size)?.contiguous()?;
            let by_head = of_part
                .reshape((batch, rows, heads, size))?
                .transpose(1, 2)?
                .contiguous()?
                .reshape((batch, heads, 1, rows * size))?;
            let repeated = if part == 0 { 1 } else { each };
            let all = by_head.broadcast_as((batch, heads, repeated, rows * size))?;
            all.contiguous()?.reshape((batch, self.heads, rows, size))
        };
        let mut scores = (part(0)?.matmul(&part(1)?.t()?)? * f64::from(self.scale))?;
        let hide = |scores: &Tensor, seen: &Tensor| {
            let hidden = seen.to_dtype(DType::F32)?.affine(1e9, -1e9)?;
            scores.broadcast_add(&hidden)
        };
        if self.causal {
            scores = hide(
                &scores,
                &Tensor::tril2(self.tokens, DType::U8, x[0].device())?,
            )?;
        }
        let mut sees_any = None;
        if let Some(mask) = &self.mask {
            let mask = devices::to_device(&mask.tensor, x[0].device())?.unsqueeze(1)?;
            scores = hide(&scores, &mask)?;
            sees_any = Some(mask.max_keepdim(D::Minus1)?.to_dtype(DType::F32)?);
        }
        let powers = scores
            .broadcast_sub(&scores.max_keepdim(D::Minus1)?.detach())?
            .exp()?;
        let mut weights = powers.broadcast_div(&powers.sum_keepdim(D::Minus1)?)?;
        if let Some(sees_any) = sees_any {
            weights = weights.broadcast_mul(&sees_any)?;
        }
        let y = weights.matmul(&part(2)?)?.transpose(1, 2)?;
        y.reshape((batch, self.tokens, self.width))
    }
}

/// The weights of a token, from its scores: those of the tokens after it are 0, and all if it sees none.
#[inline(always)]
fn softmax(scores: &mut [f32], seen: usize, scale: f32) {
    let (seen, later) = scores.split_at_mut(seen);
    later.fill(0.);
    let largest = seen.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if largest == f32::NEG_INFINITY {
        let number = |score: &mut f32| *score = if score.is_nan() { f32::NAN } else { 0. };
        return seen.iter_mut().for_each(number);
    }
    for score in seen.iter_mut() {
        *score = exp((*score - largest) * scale);
    }
    let total = sum(
        seen.len(),
        #[inline(always)]
        |i| seen[i],
    );
    seen.iter_mut().for_each(|weight| *weight /= total);
}

/// Copies the rows of `from` to every `stride`-th element of `to`, or adds them.
fn spread(from: &[f32], width: usize, to: &mut [f32], stride: usize, add: bool) {
    for (from, to) in from.chunks_exact(width).zip(to.chunks_mut(stride)) {
        if add {
            to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        } else {
            to[..width].copy_from_slice(from);
        }
    }
}

impl Kernel<Cpu> for AttentionKernel {
    /// Saves the weights of each example and head, (T, S).
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let of_head = self.tokens * self.keys;
        let example = self.tokens * self.width;
        let len = y.len() / example.max(1) * self.heads * of_head;
        check_room(len)?;
        let mut weights = Buffer::new(len);
        for_each_chunk_with(
            y,
            example,
            [(&mut weights, self.heads * of_head)],
            #[inline(always)]
            |i, y, [weights]| {
                let mut result = vec![0.; self.tokens * self.size()];
                for (head, weights) in weights.chunks_exact_mut(of_head).enumerate() {
                    let [query, key, value] = [0, 1, 2].map(|part| self.matrix(x, i, part, head));
                    multiply(weights, false, query, key.t());
                    self.softmax(i, weights);
                    let weights = Matrix::new(weights, self.tokens, self.keys);
                    multiply(&mut result, false, weights, value);
                    let y = &mut y[head * self.size()..];
                    spread(&result, self.size(), y, self.width, false);
                }
            },
        );
        Ok(vec![weights])
    }

    fn backward(&self, _: &Pass, at: At<'_, '_>, dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        let parts = [0, 1, 2].map(|part| self.part(part));
        // queries, keys and values of an example, one after the other or side by side
        let lens = parts.each_ref().map(|part| part.rows * part.row);
        let example = if self.packed {
            lens[0]
        } else {
            lens.iter().sum()
        };
        let mut gradient = Buffer::new(dy.len() / (self.tokens * self.width).max(1) * example);
        for_each_chunk(
            &mut gradient,
            example,
            #[inline(always)]
            |i, dx| self.backward_of_example(&at, i, &dy, dx),
        );
        if self.packed {
            dx[0].give(gradient);
            return Ok(());
        }
        let mut first = 0;
        for (dx, len) in dx.iter_mut().zip(lens) {
            if dx.wanted() {
                let mut part = Buffer::new(gradient.len() / example.max(1) * len);
                columns(&gradient, example, first, &mut part, len, false);
                dx.give(part);
            }
            first += len;
        }
        Ok(())
    }
}

impl AttentionKernel {
    /// Writes the gradients of queries, keys and values of example `i`.
    #[inline(always)]
    fn backward_of_example(&self, at: &At<'_, '_>, i: usize, dy: &[f32], dx: &mut [f32]) {
        let size = self.size();
        let of_head = self.tokens * self.keys;
        let of_queries = self.heads / self.kv_heads;
        let all = &at.saved[0][i * self.heads * of_head..][..self.heads * of_head];
        let mut d_scores = vec![0.; of_head];
        let mut result = vec![0.; self.tokens.max(self.keys) * size];
        let dy = &dy[i * self.tokens * self.width..][..self.tokens * self.width];
        for (head, weights) in all.chunks_exact(of_head).enumerate() {
            let [query, key, value] = [0, 1, 2].map(|part| self.matrix(at.x, i, part, head));
            let dy = &dy[head * size..];
            let dy = Matrix::strided(dy, (self.tokens, size), (self.width, 1));
            multiply(&mut d_scores, false, dy, value.t());
            self.softmax_backward(weights, &mut d_scores);
            let weights = Matrix::new(weights, self.tokens, self.keys);
            let d_scores = Matrix::new(&d_scores, self.tokens, self.keys);
            let products = [(d_scores, key), (d_scores.t(), query), (weights.t(), dy)];
            let mut first = 0;
            for (part, (a, b)) in products.into_iter().enumerate() {
                let Part { rows, row, .. } = self.part(part);
                let result = &mut result[..rows * size];
                multiply(result, false, a, b);
                // heads of queries that share keys and values
                let adds = part > 0 && head % of_queries > 0;
                spread(
                    result,
                    size,
                    &mut dx[first + self.head(part, head)..],
                    row,
                    adds,
                );
                first += if self.packed { 0 } else { rows * row };
            }
        }
    }

    /// The gradients of the scores, from those of the weights.
    #[inline(always)]
    fn softmax_backward(&self, weights: &[f32], d: &mut [f32]) {
        let keys = self.keys;
        for (weights, d) in weights.chunks_exact(keys).zip(d.chunks_exact_mut(keys)) {
            let mean = sum(
                keys,
                #[inline(always)]
                |i| weights[i] * d[i],
            );
            for (weight, d) in weights.iter().zip(d) {
                *d = weight * (*d - mean) * self.scale;
            }
        }
    }
}
