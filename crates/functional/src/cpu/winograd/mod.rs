//! Convolution by Winograd's algorithm: here the 3 × 3 convolution with stride 1 by F(4×4, 3×3), 36
//! products in place of 144 for 16 outputs, in panels of at most 64 channels, and no other kernel or
//! stride; in [`pooled`] the 5 × 5 convolution with ReLU and pooling.
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
pub(crate) use pooled::Pooled;
use tiling::{Panels, Tiling};
use transform::Images;

/// The fewest channels of either side for which it pays: half a vector.
const FEWEST: usize = 8;

/// Whether a convolution is to be computed here.
pub(crate) fn fits(g: &Geometry) -> bool {
    let shape = (g.kernel, g.stride, g.padding <= 2) == ((3, 3), 1, true);
    shape && g.channels.min(g.out_channels) >= FEWEST
}

/// The tiles of y, and those of x.
fn tilings(g: &Geometry) -> [Tiling; 2] {
    [(g.out_height, g.out_width), (g.height, g.width)].map(|(height, width)| Tiling {
        batch: g.batch,
        height,
        width,
    })
}

fn inputs<'a>(g: &Geometry, x: &'a [f32]) -> Images<'a> {
    Images {
        data: x,
        height: g.height,
        width: g.width,
        channels: Panels(g.channels),
        tiling: tilings(g)[0],
        padding: g.padding,
        gradients: false,
    }
}

fn gradients<'a>(g: &Geometry, dy: &'a [f32]) -> Images<'a> {
    Images {
        data: dy,
        height: g.out_height,
        width: g.out_width,
        channels: Panels(g.out_channels),
        tiling: tilings(g)[0],
        padding: 0,
        gradients: true,
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
        outputs: Panels(g.out_channels),
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
    Convolution {
        images: Images {
            tiling: tilings(g)[1],
            padding: 2 - g.padding,
            gradients: false,
            ..gradients(g, dy)
        },
        weight,
        flipped: true,
        outputs: Panels(g.channels),
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
