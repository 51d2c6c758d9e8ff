//! Convolution of each channel by itself, with any kernel, stride and padding. It knows no algorithm with fewer products.
//!
//! A task takes some rows of outputs. It first copies the rows that these see, with the padding, into strips of 16 channels
//! (`strips`): read once in the order of memory, which was faster than strip after strip. Then it computes a strip at a time,
//! from the cache, up to eight sums in registers at a time (`products`). The gradient of the input is a convolution with the
//! flipped kernel (`axis`, `outputs`). That of the weight has sums over the pixels of dy (`weight`).

mod axis;
mod outputs;
mod products;
mod strips;
mod weight;

use crate::cpu::buffer::Buffer;
use crate::cpu::vector::VECTOR as STRIP;
use crate::descriptors::convolution::Geometry;
use axis::{Axes, Axis};
use outputs::{Kernel, compute};

/// Writes y from x (B, H, W, C), `weight` (C, 1, KH, KW) and `bias` (C,), or adds to it.
pub(crate) fn forward(
    g: &Geometry,
    x: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    y: &mut [f32],
    add: bool,
) {
    let kernel = Kernel {
        factors: packed(g, weight, |tap| tap),
        bias: in_strips(bias.unwrap_or_default(), g.channels),
    };
    compute(&axes(g), x, &kernel, y, add);
}

/// Writes the gradient of x, or adds to it.
pub(crate) fn backward_x(g: &Geometry, weight: &[f32], dy: &[f32], dx: &mut [f32], add: bool) {
    let kernel = Kernel {
        factors: packed(g, weight, |tap| g.kernel_area() - 1 - tap),
        bias: in_strips(&[], g.channels),
    };
    compute(&axes(g).flipped(), dy, &kernel, dx, add);
}

/// The gradients of the weight (C, 1, KH, KW) and of the bias (C,).
pub(crate) fn backward_weight(g: &Geometry, x: &[f32], dy: &[f32]) -> [Vec<f32>; 2] {
    let area = g.kernel_area();
    let sums = weight::sums(&axes(g), x, dy);
    let of = |channel: usize, tap: usize| {
        sums[(channel / STRIP * (area + 1) + tap) * STRIP + channel % STRIP]
    };
    let mut weight = Vec::with_capacity(g.channels * area);
    let mut bias = Vec::with_capacity(g.channels);
    for channel in 0..g.channels {
        weight.extend((0..area).map(|tap| of(channel, tap)));
        bias.push(of(channel, area));
    }
    [weight, bias]
}

fn axes(g: &Geometry) -> Axes {
    let axis = |size, outputs, taps| Axis::new(size, outputs, taps, g.stride, g.padding);
    Axes {
        batch: g.batch,
        channels: g.channels,
        rows: axis(g.height, g.out_height, g.kernel_height),
        columns: axis(g.width, g.out_width, g.kernel_width),
    }
}

/// The weight in strips: first all taps of the first one. `order` says which of the weight's taps comes at a place.
fn packed(g: &Geometry, weight: &[f32], order: impl Fn(usize) -> usize) -> Buffer {
    let area = g.kernel_area();
    let mut packed = Buffer::zeros(g.channels.next_multiple_of(STRIP) * area);
    for (channel, weight) in weight.chunks_exact(area).enumerate() {
        let strip = &mut packed[channel / STRIP * area * STRIP..];
        for tap in 0..area {
            strip[tap * STRIP + channel % STRIP] = weight[order(tap)];
        }
    }
    packed
}

/// A value for each channel, zeros where there are fewer.
fn in_strips(values: &[f32], channels: usize) -> Buffer {
    let mut all = Buffer::zeros(channels.next_multiple_of(STRIP));
    all[..values.len()].copy_from_slice(values);
    all
}
