//! GELU, the embedding of tokens, and layer normalization on the CPU.

use crate::cpu::buffer::Buffer;
use crate::cpu::exp::{normal, sum};
use crate::cpu::gradient::{At, CHUNK, Cpu, Grad, Pass};
use crate::cpu::sums::sum_of_chunks;
use crate::cpu::threads::{InChunks, for_each_chunk, for_each_chunk_of_two};
use crate::kernel::Kernel;
use crate::ops::tokens::{EPS, Embedding, Gelu, LayerNorm};
use candle_core::Result;

/// Rows of a block; those of layer normalization have their gradients of weight and bias added up together.
const BLOCK: usize = 64;

/// The most tasks of an embedding's gradient.
const TASKS: usize = 32;

impl Kernel<Cpu> for Gelu {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        for_each_chunk(
            y,
            CHUNK,
            #[inline(always)]
            |i, y| {
                for (y, x) in y.iter_mut().zip(&x[0][i * CHUNK..]) {
                    *y = x * normal(*x).0;
                }
            },
        );
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, at: At<'_, '_>, mut dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        for_each_chunk(
            &mut dy,
            CHUNK,
            #[inline(always)]
            |i, dy| {
                for (dy, x) in dy.iter_mut().zip(&at.x[0][i * CHUNK..]) {
                    let (below, density) = normal(*x);
                    *dy *= below + x * density;
                }
            },
        );
        dx[0].give(dy);
        Ok(())
    }
}

impl Kernel<Cpu> for Embedding {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let tokens = self.tokens.to_vec1::<u32>()?;
        let width = self.width.max(1);
        for_each_chunk(y, BLOCK * width, |i, y| {
            for (y, token) in y.chunks_exact_mut(width).zip(&tokens[i * BLOCK..]) {
                y.copy_from_slice(&x[0][*token as usize * width..][..width]);
            }
        });
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, _: At<'_, '_>, dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        if let Some((to, add)) = dx[0].target() {
            let tokens = self.tokens.to_vec1::<u32>()?;
            let width = self.width.max(1);
            // each task looks for its own rows among all tokens
            let rows = (to.len() / width).div_ceil(TASKS).max(1);
            for_each_chunk(to, rows * width, |i, to| {
                if !add {
                    to.fill(0.);
                }
                for (dy, token) in dy.chunks_exact(width).zip(&tokens) {
                    let row = (*token as usize).checked_sub(i * rows);
                    if let Some(row) = row.filter(|row| row * width < to.len()) {
                        let to = &mut to[row * width..][..width];
                        to.iter_mut().zip(dy).for_each(|(to, dy)| *to += dy);
                    }
                }
            });
        }
        Ok(())
    }
}

impl Kernel<Cpu> for LayerNorm {
    /// Saves the mean and 1 / √(variance + ε) of each row.
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let (c, weight, bias) = (self.features, x[1], x[2]);
        let mut statistics = Buffer::new(y.len() / c * 2);
        for_each_chunk_of_two(
            InChunks {
                data: y,
                chunk: BLOCK * c,
            },
            InChunks {
                data: &mut statistics,
                chunk: BLOCK * 2,
            },
            #[inline(always)]
            |i, y, statistics| {
                let x = x[0][i * BLOCK * c..].chunks_exact(c);
                let rows = y.chunks_exact_mut(c).zip(x);
                for ((y, x), of_row) in rows.zip(statistics.chunks_exact_mut(2)) {
                    let mean = sum(
                        c,
                        #[inline(always)]
                        |k| x[k],
                    ) / c as f32;
                    let squares = sum(
                        c,
                        #[inline(always)]
                        |k| (x[k] - mean) * (x[k] - mean),
                    );
                    let scale = 1. / (squares / c as f32 + EPS).sqrt();
                    for k in 0..c {
                        y[k] = (x[k] - mean) * scale * weight[k] + bias[k];
                    }
                    of_row.copy_from_slice(&[mean, scale]);
                }
            },
        );
        Ok(vec![statistics])
    }

    fn backward(&self, _: &Pass, at: At<'_, '_>, mut dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        let (c, x, weight) = (self.features, at.x[0], at.x[1]);
        let mut sums = Buffer::zeros(dy.len().div_ceil(BLOCK * c) * 2 * c);
        for_each_chunk_of_two(
            InChunks {
                data: &mut dy,
                chunk: BLOCK * c,
            },
            InChunks {
                data: &mut sums,
                chunk: 2 * c,
            },
            #[inline(always)]
            |i, dy, sums| {
                let (dw, db) = sums.split_at_mut(c);
                let x = x[i * BLOCK * c..].chunks_exact(c);
                let rows = dy.chunks_exact_mut(c).zip(x);
                let statistics = at.saved[0][i * BLOCK * 2..].chunks_exact(2);
                for ((dy, x), of_row) in rows.zip(statistics) {
                    let (mean, scale) = (of_row[0], of_row[1]);
                    for k in 0..c {
                        dw[k] += dy[k] * (x[k] - mean) * scale;
                        db[k] += dy[k];
                        dy[k] *= weight[k];
                    }
                    let shift = sum(
                        c,
                        #[inline(always)]
                        |k| dy[k],
                    ) / c as f32;
                    let along = sum(
                        c,
                        #[inline(always)]
                        |k| dy[k] * (x[k] - mean),
                    ) / c as f32;
                    for k in 0..c {
                        dy[k] = scale * (dy[k] - shift - (x[k] - mean) * scale * scale * along);
                    }
                }
            },
        );
        let total = sum_of_chunks(&sums, 2 * c);
        dx[1].put(total[..c].iter().copied());
        dx[2].put(total[c..].iter().copied());
        dx[0].give(dy);
        Ok(())
    }
}
