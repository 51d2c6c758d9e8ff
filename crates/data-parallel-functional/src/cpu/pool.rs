//! Pooling on the CPU, sample by sample. It knows square kernels and no padding; rows and columns
//! that no whole window covers are left out, and get no gradient.

use crate::cpu::buffer::Buffer;
use crate::cpu::gradient::{At, Grad, Pass, put};
use crate::cpu::sums::{add, add_rows, add_scaled};
use crate::cpu::threads::for_each_chunk;
use crate::descriptors::pool::{Average, GlobalAverage, Maximum, Windows};
use crate::kernel::{Cpu, Kernel};
use candle_core::Result;
use std::cmp::Ordering;

impl Windows {
    fn sample(&self) -> usize {
        self.height * self.width * self.channels
    }

    fn out_sample(&self) -> usize {
        self.out_height * self.out_width * self.channels
    }

    /// Calls `f(o, i)` for each window and each of its pixels, a row of all windows at a time:
    /// the starts of the window's pixel in a sample of y and of the other pixel in a sample of x.
    #[inline(always)]
    fn for_each_pixel(&self, mut f: impl FnMut(usize, usize)) {
        let c = self.channels;
        for oy in 0..self.out_height {
            for ky in 0..self.kernel {
                let row = (oy * self.stride + ky) * self.width;
                for ox in 0..self.out_width {
                    let first = row + ox * self.stride;
                    for pixel in first..first + self.kernel {
                        f((oy * self.out_width + ox) * c, pixel * c);
                    }
                }
            }
        }
    }

    /// y from x, `f` computing a sample of it from a sample of x.
    #[inline(always)]
    fn forward(&self, x: &[f32], y: &mut [f32], f: impl Fn(&[f32], &mut [f32]) + Sync) {
        for_each_chunk(
            y,
            self.out_sample(),
            #[inline(always)]
            |i, y| f(&x[i * self.sample()..][..self.sample()], y),
        );
    }

    /// The gradient of x, `f(i, dx)` adding to that of sample i.
    #[inline(always)]
    fn backward(&self, dx: &mut Grad<'_>, f: impl Fn(usize, &mut [f32]) + Sync) {
        if let Some((to, add)) = dx.target() {
            for_each_chunk(
                to,
                self.sample(),
                #[inline(always)]
                |i, to| {
                    if !add {
                        to.fill(0.);
                    }
                    f(i, to);
                },
            );
        }
    }
}

impl Kernel<Cpu> for Average {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let w = &self.0;
        let share = 1. / (w.kernel * w.kernel) as f32;
        w.forward(
            x[0],
            y,
            #[inline(always)]
            |x, y| {
                y.fill(0.);
                w.for_each_pixel(
                    #[inline(always)]
                    |o, i| add_scaled(&mut y[o..][..w.channels], &x[i..], share),
                );
            },
        );
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, _at: At<'_, '_>, dy: Buffer, dx: &mut [Grad<'_>]) -> Result<()> {
        let w = &self.0;
        let share = 1. / (w.kernel * w.kernel) as f32;
        w.backward(
            &mut dx[0],
            #[inline(always)]
            |i, dx| {
                let dy = &dy[i * w.out_sample()..];
                w.for_each_pixel(
                    #[inline(always)]
                    |o, i| add_scaled(&mut dx[i..][..w.channels], &dy[o..], share),
                );
            },
        );
        Ok(())
    }
}

impl Kernel<Cpu> for Maximum {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let w = &self.0;
        w.forward(
            x[0],
            y,
            #[inline(always)]
            |x, y| {
                y.fill(f32::NEG_INFINITY);
                w.for_each_pixel(
                    #[inline(always)]
                    |o, i| {
                        for (y, x) in y[o..][..w.channels].iter_mut().zip(&x[i..]) {
                            // NaN wins and stays, so that a diverged run shows
                            *y = if *x > *y || x.is_nan() { *x } else { *y };
                        }
                    },
                );
            },
        );
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, at: At<'_, '_>, dy: Buffer, dx: &mut [Grad<'_>]) -> Result<()> {
        let w = &self.0;
        w.backward(
            &mut dx[0],
            #[inline(always)]
            |i, dx| {
                let o = i * w.out_sample();
                w.maximum_backward(&at.x[0][i * w.sample()..], &at.y[o..], &dy[o..], dx);
            },
        );
        Ok(())
    }
}

impl Windows {
    /// Gives each window's gradient to the first pixel that is its maximum.
    #[inline(always)]
    fn maximum_backward(&self, x: &[f32], y: &[f32], dy: &[f32], dx: &mut [f32]) {
        let c = self.channels;
        let mut rest = dy[..self.out_sample()].to_vec(); // what is not yet given
        self.for_each_pixel(
            #[inline(always)]
            |o, i| {
                let x = &x[i..][..c];
                let y = &y[o..][..c];
                let to = rest[o..][..c].iter_mut().zip(&mut dx[i..][..c]);
                for ((x, y), (rest, dx)) in x.iter().zip(y).zip(to) {
                    // NaN is a maximum
                    let is_maximum = x.partial_cmp(y) != Some(Ordering::Less);
                    let all = *rest; // read before the choices, which then need no branch
                    *dx += if is_maximum { all } else { 0. };
                    *rest = if is_maximum { 0. } else { all };
                }
            },
        );
    }
}

/// Pixels that are summed before they are added to the others: long sums in f32 are inexact.
const BLOCK: usize = 256;

impl Kernel<Cpu> for GlobalAverage {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let c = self.channels;
        for_each_chunk(y, c, |i, y| {
            y.fill(0.);
            let of_sample = &x[0][i * self.pixels * c..][..self.pixels * c];
            add_rows(of_sample, BLOCK, y, add);
            y.iter_mut().for_each(|y| *y /= self.pixels as f32);
        });
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, _at: At<'_, '_>, dy: Buffer, dx: &mut [Grad<'_>]) -> Result<()> {
        if let Some((to, add)) = dx[0].target() {
            let c = self.channels;
            let share = 1. / self.pixels as f32;
            for_each_chunk(to, self.pixels * c, |i, to| {
                for pixel in to.chunks_exact_mut(c.max(1)) {
                    put(pixel, dy[i * c..][..c].iter().map(|v| v * share), add);
                }
            });
        }
        Ok(())
    }
}
