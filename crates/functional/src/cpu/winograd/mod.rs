//! Convolution by Winograd's algorithm: here the 3 × 3 convolution with stride 1 and padding 1 by
//! F(4×4, 3×3), 36 products in place of 144 for 16 outputs, in panels of 64 channels, and no other
//! kernel or stride; in [`pooled`] the 5 × 5 convolution with ReLU and pooling.
//!
//! Inputs and weights are transformed to 36 points, multiplied there, 36 matrix products, and the
//! products transformed back. Images are cut into tiles of 4 × 4 outputs, numbered through the
//! batch, and the tiles into chunks. How all is cut depends on shapes only.
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
#[cfg(test)]
mod tests;
mod tiling;
mod transform;
mod weights;

use crate::ops::convolution::Geometry;
use convolution::Convolution;
use gradient::Gradient;
use lanes::PANEL;
pub(crate) use pooled::Pooled;
use transform::Images;

/// Whether a convolution can be computed here.
pub(crate) fn fits(g: &Geometry) -> bool {
    let shape = (g.kernel, g.stride, g.padding);
    let panels = [g.channels, g.out_channels].map(|c| c.is_multiple_of(PANEL));
    shape == ((3, 3), 1, 1) && panels == [true; 2]
}

/// y (B, H, W, O) = the convolution of x (B, H, W, I) with weight (O, I, 3, 3), + bias.
pub(crate) fn forward(
    g: &Geometry,
    x: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    y: &mut [f32],
) {
    Convolution {
        images: Images::new(g, x, g.channels),
        weight,
        flipped: false,
        outputs: g.out_channels,
        bias,
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
    Convolution {
        images: Images::new(g, dy, g.out_channels),
        weight,
        flipped: true,
        outputs: g.channels,
        bias: None,
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
        x: Images::new(g, x, g.channels),
        dy: Images {
            gradients: true,
            ..Images::new(g, dy, g.out_channels)
        },
    }
    .run(dw, accumulate);
}
