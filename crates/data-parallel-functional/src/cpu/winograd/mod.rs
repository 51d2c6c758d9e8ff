//! Convolution by Winograd's algorithm: here the 3 × 3 convolution, in panels of at most 64 channels. With stride 1 it
//! takes 36 products in place of 144 for 16 outputs, with stride 2 it takes 81. In [`pooled`] is the 5 × 5 convolution
//! with ReLU and pooling. Other kernels and strides are not for it.
//!
//! Inputs and weights are transformed to points, multiplied there, a matrix product for each point, and the products
//! transformed back. Images are cut into tiles of 4 × 4 outputs, numbered through the batch, and the tiles into
//! chunks. How all is cut depends on shapes only. Where many channels would give fewer than 16 tasks, panels are half
//! as wide. Their products are a fifth slower, so with 16 tasks the panels stay whole.
//!
//! Where there are few channels there are many tiles: a task takes a chunk through all three steps
//! while it is in the cache. Where there are many channels there are few tiles: first the tiles are
//! transformed, by chunk and input panel, and then multiplied, by chunk and output panel.

mod axis;
mod convolution;
mod gradient;
mod kernel;
mod lanes;
mod pooled;
mod tiling;
mod transform;
mod weights;

use crate::descriptors::convolution::Geometry;
use convolution::Convolution;
use gradient::Gradient;
pub(crate) use pooled::Pooled;
use tiling::{Panels, Stride, Tiling};
use transform::{Images, Role};

/// The fewest channels of either side for which it pays, with stride 1: half a vector.
const FEWEST: usize = 8;

/// The same with stride 2, where it saves fewer products.
const FEWEST_STRIDED: usize = 16;

/// True if a convolution is to be computed here.
pub(crate) fn fits(g: &Geometry) -> bool {
    let fewest = match g.stride {
        1 if g.padding <= 2 => FEWEST,
        2 if g.padding == 1 && is_full(g) => FEWEST_STRIDED,
        _ => return false,
    };
    g.square_kernel() == Some(3) && g.channels.min(g.out_channels) >= fewest
}

/// True if the tiles of stride 2, of 81 products each, save a quarter of the 9 products of an output.
fn is_full(g: &Geometry) -> bool {
    4 * 81 * tiling(g).tiles() <= 3 * 9 * g.lines() * g.out_width
}

fn stride(g: &Geometry) -> Stride {
    match (g.stride, g.padding) {
        (1, _) => Stride::One,
        (2, 1) => Stride::Two,
        other => unreachable!("stride and padding {other:?}"),
    }
}

/// The tiles of y.
fn tiling(g: &Geometry) -> Tiling {
    Tiling {
        batch: g.batch,
        height: g.out_height,
        width: g.out_width,
    }
}

fn inputs<'a>(g: &Geometry, x: &'a [f32]) -> Images<'a> {
    Images {
        data: x,
        height: g.height,
        width: g.width,
        channels: Panels::new(g.channels),
        tiling: tiling(g),
        padding: g.padding,
        stride: stride(g),
        role: Role::Inputs,
    }
}

fn gradients<'a>(g: &Geometry, dy: &'a [f32]) -> Images<'a> {
    Images {
        data: dy,
        height: g.out_height,
        width: g.out_width,
        channels: Panels::new(g.out_channels),
        tiling: tiling(g),
        padding: 0,
        stride: stride(g),
        role: Role::ForWeight,
    }
}

/// y (B, H, W, O) = the convolution of x (B, H, W, I) with weight (O, I, 3, 3), + bias, and its positive part
/// where `relu`.
pub(crate) fn forward(
    g: &Geometry,
    x: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    relu: bool,
    y: &mut [f32],
) {
    Convolution {
        images: inputs(g, x),
        weight,
        flipped: false,
        outputs: Panels::new(g.out_channels),
        height: g.out_height,
        width: g.out_width,
        bias,
        relu,
        accumulate: false,
    }
    .run(y);
}

/// dx (B, H, W, I) = the gradient of x, or += where `accumulate`.
pub(crate) fn backward_x(
    g: &Geometry,
    weight: &[f32],
    dy: &[f32],
    dx: &mut [f32],
    accumulate: bool,
) {
    // with stride 2 a tile of 8 × 8 pixels of dx belongs to each tile of y
    let (tiling, padding) = match stride(g) {
        Stride::One => (
            Tiling {
                batch: g.batch,
                height: g.height,
                width: g.width,
            },
            2 - g.padding,
        ),
        Stride::Two => (tiling(g), 0),
    };
    Convolution {
        images: Images {
            tiling,
            padding,
            role: Role::ForInputs,
            ..gradients(g, dy)
        },
        weight,
        flipped: true,
        outputs: Panels::new(g.channels),
        height: g.height,
        width: g.width,
        bias: None,
        relu: false,
        accumulate,
    }
    .run(dx);
}

/// dw (O, I, 3, 3) = the gradient of the weight, or += where `accumulate`.
pub(crate) fn backward_weight(
    g: &Geometry,
    x: &[f32],
    dy: &[f32],
    dw: &mut [f32],
    accumulate: bool,
) {
    Gradient {
        x: inputs(g, x),
        dy: gradients(g, dy),
    }
    .run(dw, accumulate);
}
