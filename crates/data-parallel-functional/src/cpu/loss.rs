//! Cross-entropy, sum and mean on the CPU.

use crate::cpu::buffer::Buffer;
use crate::cpu::exp::{exp, ln, sum};
use crate::cpu::gradient::{At, CHUNK, Grad, Pass, put};
use crate::cpu::threads::for_each_chunk;
use crate::descriptors::loss::CrossEntropy;
use crate::descriptors::{Mean, Sum};
use crate::kernel::{Cpu, Kernel};
use candle_core::Result;

/// Examples of a chunk.
const EXAMPLES: usize = 16;

/// Classes whose terms are summed before they are added to the others: long sums in f32 are inexact.
const CLASSES: usize = 256;

/// The largest logit, and Σ exp(logit − largest): the shift keeps exp from overflowing.
#[inline(always)]
fn log_sum_exp(logits: &[f32]) -> (f32, f32) {
    let mut largest = f32::NEG_INFINITY;
    for v in logits {
        largest = largest.max(*v);
    }
    let mut total = 0.;
    for logits in logits.chunks(CLASSES) {
        total += sum(
            logits.len(),
            #[inline(always)]
            |i| exp(logits[i] - largest),
        );
    }
    (largest, total)
}

impl Kernel<Cpu> for CrossEntropy {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let (y_hat, classes, labels) = (x[0], self.classes, self.labels.to_vec1::<u32>()?);
        for_each_chunk(
            y,
            EXAMPLES,
            #[inline(always)]
            |i, losses| {
                let rows = y_hat[i * EXAMPLES * classes..].chunks_exact(classes);
                let examples = rows.zip(&labels[i * EXAMPLES..]);
                for (loss, (row, label)) in losses.iter_mut().zip(examples) {
                    let (largest, sum) = log_sum_exp(row);
                    *loss = ln(sum) - (row[*label as usize] - largest);
                }
            },
        );
        Ok(vec![])
    }

    /// softmax(y_hat), less 1 at the label.
    fn backward(&self, _: &Pass, at: At<'_, '_>, dy: Buffer, dx: &mut [Grad<'_>]) -> Result<()> {
        let (y_hat, classes, labels) = (at.x[0], self.classes, self.labels.to_vec1::<u32>()?);
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
                    let (largest, sum) = log_sum_exp(row);
                    for (to, v) in to.iter_mut().zip(row) {
                        *to = d_loss * exp(v - largest) / sum;
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
