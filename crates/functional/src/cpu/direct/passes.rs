//! The two passes, block by block of samples and band by band.

use super::Direct;
use super::pack::{Sums, Weights};
use super::pool::{Pool, Unpool};
use super::product::Product;
use crate::cpu::scratch::own;
use crate::cpu::sums::sum_of_chunks;
use crate::cpu::threads::for_each_chunk;
use crate::cpu::vector::Aligned;
use pulp::{Simd, WithSimd};
use std::sync::{Mutex, MutexGuard};

/// Samples that one task of the forward pass takes.
const BLOCK: usize = 8;
/// Partial sums of the weight's gradient, added in order: the most threads that backward can use.
const GROUPS: usize = 8;

pub(super) struct Forward<'a> {
    pub(super) direct: &'a Direct,
    pub(super) x: &'a [f32],
    pub(super) weight: &'a [f32],
    pub(super) bias: Option<&'a [f32]>,
    pub(super) y: &'a mut [f32],
    pub(super) kept: &'a mut [f32],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    fn with_simd<S: Simd>(self, simd: S) {
        let d = self.direct;
        let weights = Weights::new::<S>(d, self.weight, self.bias, true);
        let kept = Blocks::new(self.kept, BLOCK * d.z_sample());
        for_each_chunk(self.y, BLOCK * d.y_sample(), |i, y| {
            let mut kept = kept.get(i);
            d.with_buffers(|z, _| {
                for (j, y) in y.chunks_exact_mut(d.y_sample()).enumerate() {
                    let x = d.sample(self.x, i * BLOCK + j);
                    let kept = kept.as_mut().map(|k| &mut k[j * d.z_sample()..]);
                    d.forward_sample(simd, x, &weights, y, kept.unwrap_or_default(), z);
                }
            });
        });
    }
}

pub(super) struct Backward<'a> {
    pub(super) direct: &'a Direct,
    pub(super) x: &'a [f32],
    pub(super) weight: &'a [f32],
    pub(super) bias: Option<&'a [f32]>,
    pub(super) kept: &'a [f32],
    pub(super) dy: &'a [f32],
    pub(super) dx: Option<&'a mut [f32]>,
}

impl WithSimd for Backward<'_> {
    type Output = Sums;

    fn with_simd<S: Simd>(self, simd: S) -> Sums {
        let d = self.direct;
        let weights = Weights::new::<S>(d, self.weight, self.bias, d.recomputes());
        let samples = d.g.batch.div_ceil(GROUPS).max(1);
        let dx = Blocks::new(self.dx.unwrap_or_default(), samples * d.g.sample());
        let size = Sums::len(d, weights.wide);
        let mut groups = Aligned::zeros(d.g.batch.div_ceil(samples) * size);
        for_each_chunk(&mut groups, size, |i, sums| {
            let mut dx = dx.get(i);
            d.with_buffers(|z, dz| {
                let end = ((i + 1) * samples).min(d.g.batch);
                for (j, sample) in (i * samples..end).enumerate() {
                    let x = d.sample(self.x, sample);
                    let dy = &self.dy[sample * d.y_sample()..];
                    let kept = self.kept.get(sample * d.z_sample()..).unwrap_or_default();
                    let dx = dx
                        .as_mut()
                        .map(|dx| &mut dx[j * d.g.sample()..][..d.g.sample()]);
                    d.backward_sample(simd, x, &weights, kept, dy, dx, sums, (z, dz));
                }
            });
        });
        Sums {
            all: sum_of_chunks(&groups, size),
            wide: weights.wide,
        }
    }
}

/// A second output beside the one that `for_each_chunk` cuts; it may be empty.
struct Blocks<'a>(Vec<Mutex<&'a mut [f32]>>);

impl<'a> Blocks<'a> {
    fn new(all: &'a mut [f32], block: usize) -> Self {
        Self(all.chunks_mut(block).map(Mutex::new).collect())
    }

    /// Block `i`, which one task at a time asks for.
    fn get(&self, i: usize) -> Option<MutexGuard<'_, &'a mut [f32]>> {
        let block = self.0.get(i)?;
        Some(block.lock().expect("each block has one task"))
    }
}

impl Direct {
    /// Calls `f` with buffers for a band of z and of dz.
    fn with_buffers(&self, f: impl FnOnce(&mut [f32], &mut [f32])) {
        let band = self.pixels.len() * self.z_pixel();
        own([band, band], |[z, dz]| f(&mut z[..band], &mut dz[..band]));
    }

    fn sample<'a>(&self, x: &'a [f32], sample: usize) -> &'a [f32] {
        &x[sample * self.g.sample()..][..self.g.sample()]
    }

    fn forward_sample<S: Simd>(
        &self,
        simd: S,
        x: &[f32],
        weights: &Weights,
        y: &mut [f32],
        kept: &mut [f32],
        z: &mut [f32],
    ) {
        for band in self.bands() {
            let z = match kept.get_mut(band.z.clone()) {
                Some(kept) => kept,
                None => &mut z[..band.z.len()],
            };
            self.convolve(simd, &x[band.x..], weights, z);
            simd.vectorize(Pool {
                d: self,
                z,
                y: &mut y[band.y],
            });
        }
    }

    #[expect(clippy::too_many_arguments, reason = "as many tensors take part")]
    fn backward_sample<S: Simd>(
        &self,
        simd: S,
        x: &[f32],
        weights: &Weights,
        kept: &[f32],
        dy: &[f32],
        mut dx: Option<&mut [f32]>,
        sums: &mut [f32],
        (z, dz): (&mut [f32], &mut [f32]),
    ) {
        if let Some(dx) = &mut dx {
            dx.fill(0.);
        }
        let (taps, db) = Sums::split(self, weights.wide, sums);
        for band in self.bands() {
            let x = &x[band.x..];
            let dz = &mut dz[..band.z.len()];
            let z = if self.recomputes() {
                let z = &mut z[..band.z.len()];
                self.convolve(simd, x, weights, z);
                z
            } else {
                kept.get(band.z).unwrap_or_default()
            };
            simd.vectorize(Unpool {
                d: self,
                dy: &dy[band.y],
                z,
                dz,
                db,
            });
            self.add_dw(simd, x, dz, taps);
            if let Some(dx) = &mut dx {
                self.add_dx(simd, dz, weights, &mut dx[band.x..]);
            }
        }
    }
}

/// The three products of a band.
impl Direct {
    fn convolve<S: Simd>(&self, simd: S, x: &[f32], weights: &Weights, z: &mut [f32]) {
        let pixels = &self.pixels[..z.len() / self.z_pixel()];
        Product {
            a: x,
            rows: pixels,
            b: &weights.taps,
            columns: weights.wide,
            segments: self.g.kernel.0,
            length: self.run(),
            a_steps: (self.row(), 1),
            b_steps: (self.run() * weights.wide, weights.wide),
            start: Some(&weights.bias),
            out_step: self.z_pixel(),
        }
        .run(simd, z);
    }

    /// Pixel by pixel, x's taps times dz's channels.
    fn add_dw<S: Simd>(&self, simd: S, x: &[f32], dz: &[f32], dw: &mut [f32]) {
        let wide = dw.len() / self.g.taps();
        Product {
            a: x,
            rows: &self.taps,
            b: dz,
            columns: wide,
            segments: dz.len() / (self.columns() * self.z_pixel()),
            length: self.columns(),
            a_steps: (self.g.stride * self.row(), self.g.stride * self.g.channels),
            b_steps: (self.columns() * self.z_pixel(), self.z_pixel()),
            start: None,
            out_step: wide,
        }
        .run(simd, dw);
    }

    /// Channel by channel, a column of dz's pixels times a kernel's row. The runs of a column's
    /// pixels do not overlap.
    fn add_dx<S: Simd>(&self, simd: S, dz: &[f32], weights: &Weights, dx: &mut [f32]) {
        let line = self.columns() * self.z_pixel();
        let lines: Vec<_> = (0..dz.len() / line).map(|i| i * line).collect();
        for ky in 0..self.g.kernel.0 {
            for column in 0..self.columns() {
                Product {
                    a: &dz[column * self.z_pixel()..],
                    rows: &lines,
                    b: &weights.rows[ky * weights.step..],
                    columns: self.run(),
                    segments: 1,
                    length: self.g.out_channels,
                    a_steps: (0, 1),
                    b_steps: (0, self.g.kernel.0 * weights.step),
                    start: None,
                    out_step: self.g.stride * self.row(),
                }
                .run(simd, &mut dx[ky * self.row() + self.pixels[column]..]);
            }
        }
    }
}
