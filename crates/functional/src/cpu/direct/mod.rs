//! Convolution, ReLU and average pooling in one step on the CPU, for small weights: without im2col and,
//! where that is cheaper, without ever storing the convolution's output. It knows no padding.
//!
//! In NHWC a row of the kernel covers a contiguous *run* of x. So a convolution is a matrix product, and
//! the rows of its left matrix are runs of x itself ([`product`]).
//!
//! *z* is the convolution's output as the kernels keep it: only the pixels that a pooling window covers,
//! with their channels padded to whole vectors, and only a *band* of lines at a time, which stays in the
//! cache.

mod pack;
mod passes;
mod pool;
mod product;
#[cfg(test)]
mod tests;

use crate::cpu::buffer::Buffer;
use crate::cpu::gradient::{At, Cpu, Grad, Pass};
use crate::cpu::vector::VECTOR;
use crate::kernel::Kernel;
use crate::ops::convolution::Geometry;
use candle_core::Result;
use passes::{Backward, Forward};
use pulp::Arch;
use std::ops::Range;

/// The most floats of a weight: it is packed again in each call, and read whole for a few pixels.
const LARGEST: usize = 1 << 16;
/// Floats of a band of z.
const BAND: usize = 1 << 12;
/// With this many taps or fewer, computing z again takes less time than reading it from memory.
const RECOMPUTED: usize = 32;

/// [`crate::conv2d`], then ReLU if `relu`, then average pooling of `pool` × `pool` windows in steps
/// of `pool`.
pub(crate) struct Direct {
    g: Geometry,
    relu: bool,
    pool: usize,
    /// Lines and columns of y.
    pooled: (usize, usize),
    /// Lines of y in a band.
    band: usize,
    /// Where in x each pixel of a band begins, relative to the band's first.
    pixels: Vec<usize>,
    /// Where in x each tap lies, relative to its pixel.
    taps: Vec<usize>,
    /// Where in z each pixel of a pooling window begins, relative to the window's first.
    window: Vec<usize>,
}

/// Sizes.
impl Direct {
    /// None where im2col should do it: with padding, with a large weight, or without output.
    pub(crate) fn new(g: Geometry, relu: bool, pool: usize) -> Option<Self> {
        let pooled = (g.out_height.checked_div(pool)?, g.out_width / pool);
        let weights = g.taps() * g.out_channels;
        if g.padding > 0 || weights > LARGEST || pooled.0 * pooled.1 == 0 {
            return None;
        }
        let columns = pooled.1 * pool;
        let z_pixel = g.out_channels.next_multiple_of(VECTOR);
        let band = (BAND / (columns * z_pixel * pool)).clamp(1, pooled.0);
        let (row, run) = (g.width * g.channels, g.kernel.1 * g.channels);
        let pixel = |i| (i / columns * row + i % columns * g.channels) * g.stride;
        Some(Self {
            window: (0..pool * pool)
                .map(|i| (i / pool * columns + i % pool) * z_pixel)
                .collect(),
            pixels: (0..band * pool * columns).map(pixel).collect(),
            taps: (0..g.taps()).map(|t| t / run * row + t % run).collect(),
            g,
            relu,
            pool,
            pooled,
            band,
        })
    }

    /// Floats that `forward` keeps for `backward`: z, or nothing.
    pub(crate) fn kept_len(&self) -> usize {
        if self.keeps() {
            self.g.batch * self.z_sample()
        } else {
            0
        }
    }

    /// Whether backward needs z again and computes it.
    fn recomputes(&self) -> bool {
        self.relu && self.g.taps() <= RECOMPUTED
    }

    fn keeps(&self) -> bool {
        self.relu && self.g.taps() > RECOMPUTED
    }

    fn y_sample(&self) -> usize {
        self.pooled.0 * self.y_line()
    }

    /// Floats of a line of y.
    fn y_line(&self) -> usize {
        self.pooled.1 * self.g.out_channels
    }

    fn z_sample(&self) -> usize {
        self.pooled.0 * self.pool * self.columns() * self.z_pixel()
    }

    /// Columns of z.
    fn columns(&self) -> usize {
        self.pooled.1 * self.pool
    }

    fn z_pixel(&self) -> usize {
        self.g.out_channels.next_multiple_of(VECTOR)
    }

    /// Floats of a kernel's row.
    fn run(&self) -> usize {
        self.g.kernel.1 * self.g.channels
    }

    /// Floats of a line of x.
    fn row(&self) -> usize {
        self.g.width * self.g.channels
    }

    /// The bands of a sample.
    fn bands(&self) -> impl Iterator<Item = Band> {
        let line = self.y_line();
        let pixels = self.pool * self.columns();
        (0..self.pooled.0).step_by(self.band).map(move |first| {
            let end = (first + self.band).min(self.pooled.0);
            Band {
                x: first * self.pool * self.g.stride * self.row(),
                y: first * line..end * line,
                z: first * pixels * self.z_pixel()..end * pixels * self.z_pixel(),
            }
        })
    }
}

/// Where a band lies in its sample: where its x begins, and its parts of y and z.
struct Band {
    x: usize,
    y: Range<usize>,
    z: Range<usize>,
}

/// The face.
impl Direct {
    /// `kept` may be empty: then nothing is kept.
    pub(crate) fn forward(
        &self,
        x: &[f32],
        weight: &[f32],
        bias: Option<&[f32]>,
        y: &mut [f32],
        kept: &mut [f32],
    ) {
        self.check(x, weight, bias);
        assert_eq!(y.len(), self.g.batch * self.y_sample(), "floats of y");
        assert!(kept.is_empty() || kept.len() == self.kept_len(), "kept");
        Arch::new().dispatch(Forward {
            direct: self,
            x,
            weight,
            bias,
            y,
            kept,
        });
    }

    /// Overwrites all gradients. `dx` is None where it is not wanted, `db` empty where there is no bias.
    #[expect(clippy::too_many_arguments, reason = "as many tensors take part")]
    pub(crate) fn backward(
        &self,
        x: &[f32],
        weight: &[f32],
        bias: Option<&[f32]>,
        kept: &[f32],
        dy: &[f32],
        dx: Option<&mut [f32]>,
        dw: &mut [f32],
        db: &mut [f32],
    ) {
        self.check(x, weight, bias);
        assert_eq!(dy.len(), self.g.batch * self.y_sample(), "floats of dy");
        assert_eq!(kept.len(), self.kept_len(), "floats kept");
        assert!(dx.as_ref().is_none_or(|dx| dx.len() == x.len()), "dx");
        assert_eq!(dw.len(), weight.len(), "floats of dw");
        assert!(db.is_empty() || db.len() == self.g.out_channels, "db");
        let sums = Arch::new().dispatch(Backward {
            direct: self,
            x,
            weight,
            bias,
            kept,
            dy,
            dx,
        });
        sums.unpack(self, dw, db);
    }

    fn check(&self, x: &[f32], weight: &[f32], bias: Option<&[f32]>) {
        let (taps, channels) = (self.g.taps(), self.g.out_channels);
        assert_eq!(x.len(), self.g.batch * self.g.sample(), "floats of x");
        assert_eq!(weight.len(), taps * channels, "floats of weight");
        assert!(bias.is_none_or(|bias| bias.len() == channels), "bias");
    }
}

impl Kernel<Cpu> for Direct {
    fn forward(&self, pass: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let mut kept = Buffer::new(if pass.keep { self.kept_len() } else { 0 });
        self.forward(x[0], x[1], x.get(2).copied(), y, &mut kept);
        Ok(vec![kept])
    }

    fn backward(&self, _: &Pass, at: At<'_, '_>, dy: Buffer, grads: &mut [Grad<'_>]) -> Result<()> {
        let (x, weight, bias) = (at.x[0], at.x[1], at.x.get(2).copied());
        let mut dx = grads[0].wanted().then(|| Buffer::new(x.len()));
        let mut dw = Buffer::new(weight.len());
        let mut db = Buffer::new(bias.map_or(0, <[f32]>::len));
        let kept = &at.kept[0];
        self.backward(
            x,
            weight,
            bias,
            kept,
            &dy,
            dx.as_deref_mut(),
            &mut dw,
            &mut db,
        );
        for (grad, part) in grads.iter_mut().zip([dx, Some(dw), Some(db)]) {
            part.into_iter().for_each(|part| grad.give(part));
        }
        Ok(())
    }
}
