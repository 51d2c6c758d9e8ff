//! Cross-entropy, sum and mean on the CPU.

use crate::cpu::buffer::Buffer;
use crate::cpu::exp::{exp, ln, sum};
use crate::cpu::gradient::{At, CHUNK, Grad, Pass, put};
use crate::cpu::threads::for_each_chunk;
use crate::cpu::vector::VECTOR;
use crate::descriptors::loss::CrossEntropy;
use crate::descriptors::{Mean, Sum};
use crate::kernel::{Cpu, Kernel};
use candle_core::Result;

/// Examples of a chunk.
const EXAMPLES: usize = 16;

/// Classes whose terms are summed before they are added to the others: long sums in f32 are inexact.
const CLASSES: usize = 256;

/// The largest logit: subtracting it keeps exp from overflowing.
#[inline(always)]
fn largest(logits: &[f32]) -> f32 {
    let mut largest = f32::NEG_INFINITY;
    for v in logits {
        largest = largest.max(*v);
    }
    largest
}

/// Σ exp(logit − largest). `take` gets the terms in parts, each with the number of its first class.
#[inline(always)]
fn sum_of_exps(logits: &[f32], largest: f32, mut take: impl FnMut(usize, &[f32])) -> f32 {
    let mut total = 0.;
    let mut exps = [0.; CLASSES];
    for (i, logits) in logits.chunks(CLASSES).enumerate() {
        // whole vectors: the exp of minus infinity adds 0
        let exps = &mut exps[..logits.len().next_multiple_of(VECTOR)];
        let (of_logits, others) = exps.split_at_mut(logits.len());
        of_logits.copy_from_slice(logits);
        others.fill(f32::NEG_INFINITY);
        for v in exps.iter_mut() {
            *v = exp(*v - largest);
        }
        take(i * CLASSES, &exps[..logits.len()]);
        total += sum(
            exps.len(),
            #[inline(always)]
            |i| exps[i],
        );
    }
    total
}

impl Kernel<Cpu> for CrossEntropy {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let y_hat = x[0];
        let classes = self.classes;
        let labels = self.labels.to_vec1::<u32>()?;
        for_each_chunk(
            y,
            EXAMPLES,
            #[inline(always)]
            |i, losses| {
                let rows = y_hat[i * EXAMPLES * classes..].chunks_exact(classes);
                let examples = rows.zip(&labels[i * EXAMPLES..]);
                for (loss, (row, label)) in losses.iter_mut().zip(examples) {
                    let largest = largest(row);
                    let sum = sum_of_exps(
                        row,
                        largest,
                        #[inline(always)]
                        |_, _| (),
                    );
                    *loss = ln(sum) - (row[*label as usize] - largest);
                }
            },
        );
        Ok(vec![])
    }

    /// softmax(y_hat), less 1 at the label.
    fn backward(&self, _: &Pass, at: At<'_, '_>, dy: Buffer, dx: &mut [Grad<'_>]) -> Result<()> {
        let y_hat = at.x[0];
        let classes = self.classes;
        let labels = self.labels.to_vec1::<u32>()?;
        let mut gradient = Buffer::new(y_hat.len());
        for_each_chunk(
            &mut gradient,
            EXAMPLES * classes,
            #[inline(always)]
            |i, gradient| {
                let first = i * EXAMPLES;
                let rows = y_hat[first * classes..].chunks_exact(classes);
                let examples = rows.zip(&labels[first..]).zip(&dy[first..]);
                let gradients = gradient.chunks_exact_mut(classes);
                for (to, ((row, label), d_loss)) in gradients.zip(examples) {
                    let sum = sum_of_exps(
                        row,
                        largest(row),
                        #[inline(always)]
                        |first, exps| to[first..][..exps.len()].copy_from_slice(exps),
                    );
                    for to in to.iter_mut() {
                        *to = d_loss * *to / sum;
                    }
                    to[*label as usize] -= d_loss;
                }
            },
        );
        dx[0].give(gradient);
        Ok(())
    }
}

fn total(x: &[f32]) -> f64 {
    x.iter().copied().map(f64::from).sum()
}

/// The gradient of each of the elements of `x` is the same.
fn spread(dx: &mut Grad<'_>, d: f32) {
    if let Some((to, add)) = dx.target() {
        for_each_chunk(to, CHUNK, |_, to| {
            put(to, std::iter::repeat(d), add);
        });
    }
}

impl Kernel<Cpu> for Sum {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        y[0] = total(x[0]) as f32;
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, _: At<'_, '_>, dy: Buffer, dx: &mut [Grad<'_>]) -> Result<()> {
        spread(&mut dx[0], dy[0]);
        Ok(())
    }
}

impl Kernel<Cpu> for Mean {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        y[0] = (total(x[0]) / x[0].len() as f64) as f32;
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, at: At<'_, '_>, dy: Buffer, dx: &mut [Grad<'_>]) -> Result<()> {
        spread(&mut dx[0], dy[0] / at.x[0].len() as f32);
        Ok(())
    }
}
