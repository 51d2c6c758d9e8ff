//! Batch normalization on the CPU, over all but the last dimension. It keeps no statistics of its
//! own: the running ones belong to the caller, and only training mode changes them.
//!
//! It reads its input twice forward and twice backward: half of the memory that a step of ResNet-18 moves. Its sums
//! are not part of the convolution's passes, where the values would still be in the cache. On one core this could save
//! at most 1.8% of a step of ResNet-18 (batch 64): two thirds of the forward sums, which take 1.2%, and a third of the
//! backward ones, which take 3.0%. For that, one kernel would have to know the other.
//!
//! No partial sum of forward spans two examples. So a batch in parts, whose statistics are synchronized, has the
//! statistics of the whole batch to the bit. Its gradients differ by rounding.

use crate::cpu::activation::{mask, positive};
use crate::cpu::buffer::Buffer;
use crate::cpu::gradient::{At, Grad, Pass};
use crate::cpu::threads::{for_each_chunk, for_each_chunk_with};
use crate::descriptors::norm::Norm;
use crate::kernel::{Cpu, Kernel};
use crate::statistics::{Moments, Sums, batch_statistics, gradient_through_statistics, inv_std};
use candle_core::Result;

/// Pixels of a block: its sums are f32, and f64 combines them.
const BLOCK: usize = 256;

/// Channels whose blocks one task combines: a line of the cache.
const STRIP: usize = 16;

/// Moments of each of `c` channels over examples of `pixels` pixels: by blocks, each around its own mean,
/// so that nothing is lost where the mean is large. A block is a part of one example, so that a batch
/// in parts has the blocks of the whole: what is rounded is the same, and no value comes to lie on the
/// other side of ReLU's edge.
fn moments(x: &[f32], c: usize, pixels: usize) -> Moments {
    let of_example = pixels.div_ceil(BLOCK).max(1);
    // the rows of the batch, a pixel each, that are block i
    let rows = |i: usize| {
        let first = i / of_example * pixels;
        let from = i % of_example * BLOCK;
        first + from..first + pixels.min(from + BLOCK)
    };
    let examples = x.len() / (pixels * c).max(1);
    let mut sums = Buffer::new(examples * of_example * 2 * c);
    for_each_chunk(
        &mut sums,
        2 * c,
        #[inline(always)]
        |i, block| {
            let (mean, squares) = block.split_at_mut(c);
            let rows = rows(i);
            let x = &x[rows.start * c..rows.end * c];
            for_strips(
                c,
                #[inline(always)]
                |at, n| {
                    let x = &x[at..];
                    let mean = &mut mean[at..];
                    let squares = &mut squares[at..];
                    match n {
                        64 => block_statistics::<64>(x, c, mean, squares),
                        16 => block_statistics::<16>(x, c, mean, squares),
                        4 => block_statistics::<4>(x, c, mean, squares),
                        _ => block_statistics::<1>(x, c, mean, squares),
                    }
                },
            );
        },
    );
    combine(&sums, |i| rows(i).len(), c)
}

/// Calls `f(first, n)` for strips of `c` channels, which have their sums in registers at a time: n is 64, or what
/// fits into the channels that are left.
#[inline(always)]
fn for_strips(c: usize, mut f: impl FnMut(usize, usize)) {
    let mut at = 0;
    for n in [64, 16, 4, 1] {
        while n <= c - at {
            f(at, n);
            at += n;
        }
    }
}

/// The means of N channels over a block, and the sums of squares around them. `x` begins at the
/// first of the channels in the block's first row.
#[inline(always)]
fn block_statistics<const N: usize>(x: &[f32], c: usize, mean: &mut [f32], squares: &mut [f32]) {
    let mut sum = [0f32; N];
    let mut square = [0f32; N];
    for x in x.chunks(c) {
        for i in 0..N {
            sum[i] += x[..N][i];
        }
    }
    let rows = x.len().div_ceil(c) as f32;
    sum.iter_mut().for_each(|v| *v /= rows);
    for x in x.chunks(c) {
        for i in 0..N {
            let d = x[..N][i] - sum[i];
            square[i] += d * d;
        }
    }
    mean[..N].copy_from_slice(&sum);
    squares[..N].copy_from_slice(&square);
}

/// The moments of all blocks, each of `rows(i)` rows, and given as its mean and its sum of squares around it.
fn combine(sums: &[f32], rows: impl Fn(usize) -> usize + Sync, c: usize) -> Moments {
    let each = || sums.chunks_exact(2 * c).enumerate();
    let count: usize = each().map(|(i, _)| rows(i)).sum();
    let all = f64::max(count as f64, 1.);
    let mut mean = vec![0f64; c];
    let mut squares = vec![0f64; c];
    for_each_chunk_with(
        &mut mean,
        STRIP,
        [(&mut squares, STRIP)],
        |strip, mean, [squares]| {
            let first = strip * STRIP;
            for (i, block) in each() {
                let n = rows(i) as f64;
                mean.iter_mut()
                    .zip(&block[first..c])
                    .for_each(|(mean, m)| *mean += n * f64::from(*m));
            }
            mean.iter_mut().for_each(|mean| *mean /= all);
            for (i, block) in each() {
                let n = rows(i) as f64;
                let (means, of_block) = block.split_at(c);
                for k in 0..mean.len() {
                    let around = f64::from(means[first + k]) - mean[k];
                    squares[k] += f64::from(of_block[first + k]) + n * around * around;
                }
            }
        },
    );
    Moments {
        count,
        mean,
        squares,
    }
}

impl Norm {
    /// The mean and 1 / √(variance + ε) of each channel.
    fn statistics(&self, pass: &Pass, x: &[f32], shift: Option<&[f32]>) -> Result<[Vec<f32>; 2]> {
        if self.train {
            let here = moments(x, self.channels, self.pixels);
            return batch_statistics(self, pass.norms.as_deref(), pass.keep, here, shift);
        }
        if let Some(norms) = &pass.norms {
            norms.note_frozen();
        }
        let [mean, var] = &self.running;
        Ok([mean.to_vec1()?, inv_std(&var.to_vec1()?, self.how.eps)])
    }
}

/// The numbers that normalize each channel: (x − mean) · scale + bias.
#[derive(Clone, Copy)]
struct Channels<'a> {
    mean: &'a [f32],
    scale: &'a [f32],
    bias: &'a [f32],
    relu: bool,
}

impl Kernel<Cpu> for Norm {
    fn forward(&self, pass: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let [mean, inv_std] = self.statistics(pass, x[0], self.shift(x))?;
        let [means, scale, bias] = [&mean, &product(x[1], &inv_std), x[2]].map(repeated);
        let channels = Channels {
            mean: &means,
            scale: &scale,
            bias: &bias,
            relu: self.relu,
        };
        let row = means.len();
        for_each_chunk(
            y,
            BLOCK * row,
            #[inline(always)]
            |i, y| {
                for (j, y) in y.chunks_mut(row).enumerate() {
                    let at = (i * BLOCK + j) * row;
                    match self.shortcut(x) {
                        None => channels.normalize::<false>(&x[0][at..], &[], y),
                        Some(other) => channels.normalize::<true>(&x[0][at..], &other[at..], y),
                    }
                }
            },
        );
        Ok(if pass.keep {
            [mean, inv_std].map(|v| Buffer::copy_of(&v)).into()
        } else {
            vec![]
        })
    }

    fn backward(&self, pass: &Pass, at: At<'_, '_>, mut dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        let mean = &at.saved[0];
        let inv_std = &at.saved[1];
        let scale = product(at.x[1], inv_std);
        let mut channels = Channels {
            mean,
            scale: &scale,
            bias: at.x[2],
            relu: self.relu,
        };
        // the shortcut's gradient is the one behind the ReLU, of which nothing is left after that
        let masked = (self.relu && self.shortcut).then_some(at.y);
        channels.relu &= masked.is_none();
        let sums = Sums {
            count: self.count,
            of: channels.sums(at.x[0], &mut dy, masked),
        };
        // of the values here alone: the owner of the parameters sums their gradients over the replicas
        let [dw, db] = &sums.of;
        dx[1].put(dw.iter().zip(&inv_std[..]).map(|(dw, s)| *dw as f32 * s));
        dx[2].put(db.iter().map(|db| *db as f32));
        if dx[0].wanted() {
            let statistics =
                gradient_through_statistics(self, pass.norms.as_deref(), sums, inv_std)?;
            let [shift, stretch] = statistics.map(|v| repeated(&v));
            let [mean, scale, bias] = [mean, &scale[..], at.x[2]].map(repeated);
            let channels = Channels {
                mean: &mean,
                scale: &scale,
                bias: &bias,
                ..channels
            };
            if self.shortcut && dx[3].wanted() {
                let mut d_input = Buffer::new(dy.len());
                channels.dx(at.x[0], &mut dy, &mut d_input, &shift, &stretch);
                dx[0].give(d_input);
            } else {
                channels.dx_in_place(at.x[0], &mut dy, &shift, &stretch);
                dx[0].give(std::mem::take(&mut dy));
            }
        }
        if self.shortcut && dx[3].wanted() {
            dx[3].give(dy);
        }
        if let Some(shift) = dx.last_mut().filter(|_| self.shift) {
            shift.put(std::iter::repeat_n(0., self.channels));
        }
        Ok(())
    }
}

fn product(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}

/// A number for each channel, repeated until there are 64: 64 values at a time are computed with
/// whole vectors.
fn repeated(channels: &[f32]) -> Vec<f32> {
    channels.repeat(64usize.div_ceil(channels.len().max(1)))
}

/// Batch norm of one value; all callers get the same bits.
#[inline(always)]
fn normalized(x: f32, mean: f32, scale: f32, bias: f32) -> f32 {
    (x - mean) * scale + bias
}

/// One row at a time, a pixel or more: all slices begin with its first channel.
impl Channels<'_> {
    /// With `other` if it `ADDS`.
    #[inline(always)]
    fn normalize<const ADDS: bool>(&self, x: &[f32], other: &[f32], y: &mut [f32]) {
        let c = y.len();
        let x = &x[..c];
        let mean = &self.mean[..c];
        let scale = &self.scale[..c];
        let bias = &self.bias[..c];
        let other = if ADDS { &other[..c] } else { other };
        for i in 0..c {
            let own = normalized(x[i], mean[i], scale[i], bias[i]);
            let v = if ADDS { own + other[i] } else { own };
            y[i] = if self.relu { positive(v) } else { v };
        }
    }

    /// The gradient of x from that of y, where `shift` and `stretch` go through the statistics.
    #[inline(always)]
    fn dx_of(&self, x: &[f32], dy: &mut [f32], shift: &[f32], stretch: &[f32]) {
        let c = dy.len();
        let x = &x[..c];
        let mean = &self.mean[..c];
        let scale = &self.scale[..c];
        let bias = &self.bias[..c];
        let shift = &shift[..c];
        let stretch = &stretch[..c];
        for i in 0..c {
            let d = self.cut(x[i], dy[i], mean[i], scale[i], bias[i]);
            dy[i] = scale[i] * (d - shift[i] - (x[i] - mean[i]) * stretch[i]);
        }
    }

    /// `dy`, or zero where ReLU had cut the value off.
    #[inline(always)]
    fn cut(&self, x: f32, dy: f32, mean: f32, scale: f32, bias: f32) -> f32 {
        let cut = self.relu && normalized(x, mean, scale, bias) <= 0.;
        if cut { 0. } else { dy }
    }
}

/// Whole batches.
impl Channels<'_> {
    /// For each channel the sums of dy · (x − mean), and of dy, by blocks and then in f64. Where
    /// `masked` is ReLU's result, `dy` is first set to zero where that is.
    fn sums(&self, x: &[f32], dy: &mut [f32], masked: Option<&[f32]>) -> [Vec<f64>; 2] {
        let c = self.mean.len();
        let size = BLOCK * c;
        let mut blocks = Buffer::new(x.len().div_ceil(size.max(1)) * 2 * c);
        for_each_chunk_with(
            &mut blocks,
            2 * c,
            [(dy, size)],
            #[inline(always)]
            |i, block, [dy]| {
                if let Some(y) = masked {
                    for (dy, y) in dy.iter_mut().zip(&y[i * size..]) {
                        *dy = mask(*dy, *y);
                    }
                }
                let (dw, db) = block.split_at_mut(c);
                let x = &x[i * size..][..dy.len()];
                for_strips(
                    c,
                    #[inline(always)]
                    |at, n| match n {
                        64 => self.block_sums::<64>(x, dy, at, dw, db),
                        16 => self.block_sums::<16>(x, dy, at, dw, db),
                        4 => self.block_sums::<4>(x, dy, at, dw, db),
                        _ => self.block_sums::<1>(x, dy, at, dw, db),
                    },
                );
            },
        );
        let mut dw = vec![0f64; 2 * c];
        for_each_chunk(&mut dw, STRIP, |strip, sums| {
            for block in blocks.chunks_exact(2 * c) {
                sums.iter_mut()
                    .zip(&block[strip * STRIP..])
                    .for_each(|(sum, v)| *sum += f64::from(*v));
            }
        });
        let db = dw.split_off(c);
        [dw, db]
    }

    /// The two sums of N channels from `first` on over a block.
    #[inline(always)]
    fn block_sums<const N: usize>(
        &self,
        x: &[f32],
        dy: &[f32],
        first: usize,
        dw: &mut [f32],
        db: &mut [f32],
    ) {
        let c = self.mean.len();
        let of = |v: &[f32]| -> [f32; N] { std::array::from_fn(|i| v[first + i]) };
        let mean = of(self.mean);
        let scale = of(self.scale);
        let bias = of(self.bias);
        let mut sum_dw = [0f32; N];
        let mut sum_db = [0f32; N];
        for (x, dy) in x.chunks_exact(c).zip(dy.chunks_exact(c)) {
            let x = &x[first..first + N];
            let dy = &dy[first..first + N];
            for i in 0..N {
                let d = self.cut(x[i], dy[i], mean[i], scale[i], bias[i]);
                sum_dw[i] += d * (x[i] - mean[i]);
                sum_db[i] += d;
            }
        }
        dw[first..first + N].copy_from_slice(&sum_dw);
        db[first..first + N].copy_from_slice(&sum_db);
    }

    /// The gradient of x, beside the one of y.
    fn dx(&self, x: &[f32], dy: &mut [f32], dx: &mut [f32], shift: &[f32], stretch: &[f32]) {
        let c = self.mean.len();
        let size = BLOCK * c;
        for_each_chunk_with(
            dx,
            size,
            [(dy, size)],
            #[inline(always)]
            |i, dx, [dy]| {
                for (j, dx) in dx.chunks_mut(c).enumerate() {
                    dx.copy_from_slice(&dy[j * c..][..dx.len()]);
                    self.dx_of(&x[i * size + j * c..], dx, shift, stretch);
                }
            },
        );
    }

    /// The gradient of x, over the one of y.
    fn dx_in_place(&self, x: &[f32], dy: &mut [f32], shift: &[f32], stretch: &[f32]) {
        let c = self.mean.len();
        let size = BLOCK * c;
        for_each_chunk(
            dy,
            size,
            #[inline(always)]
            |i, dy| {
                for (j, dy) in dy.chunks_mut(c).enumerate() {
                    self.dx_of(&x[i * size + j * c..], dy, shift, stretch);
                }
            },
        );
    }
}
