//! Filled polygons on a 28×28 canvas, anti-aliased: all the drawing that the synthetic images need.

use std::ops::Range;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::split::{PIXELS, SIDE};

/// Rows that a pixel's coverage is averaged over; within a row it is exact.
const SUBROWS: usize = 2;

/// A canvas that is drawn on in coordinates from (−1, −1), top left, to (1, 1), bottom right.
pub(crate) struct Canvas {
    /// Brightness of every pixel; 0 is the background.
    pub(crate) pixels: [f32; PIXELS],
    /// Takes (x, y, 1) to pixels: scale, rotation, shear and shift in one.
    map: [[f32; 3]; 2],
}

impl Canvas {
    /// An empty canvas; (x, y) is drawn at `map` · (x, y, 1), where (−1, −1) … (1, 1) is the whole canvas.
    pub(crate) fn new(map: [[f32; 3]; 2]) -> Self {
        Canvas {
            pixels: [0.0; PIXELS],
            map,
        }
    }

    /// Place of a point, in pixels.
    fn place(&self, &[x, y]: &[f32; 2]) -> [f32; 2] {
        let half = SIDE as f32 / 2.0;
        self.map.map(|[a, b, c]| (a * x + b * y + c + 1.0) * half)
    }

    /// Fills a polygon of at most 16 points; a `shade` of 0 cuts a hole.
    pub(crate) fn fill(&mut self, points: &[[f32; 2]], shade: f32) {
        let placed: Vec<_> = points.iter().map(|point| self.place(point)).collect();
        let top = placed.iter().fold(f32::MAX, |top, p| top.min(p[1]));
        let bottom = placed.iter().fold(f32::MIN, |bottom, p| bottom.max(p[1]));
        for row in top.max(0.0) as usize..(bottom.ceil().max(0.0) as usize).min(SIDE) {
            let mut coverage = [0.0; SIDE];
            for sub in 0..SUBROWS {
                let y = row as f32 + (sub as f32 + 0.5) / SUBROWS as f32;
                cover(&placed, y, &mut coverage);
            }
            for (pixel, cover) in self.pixels[row * SIDE..][..SIDE].iter_mut().zip(coverage) {
                *pixel += cover * (shade - *pixel);
            }
        }
    }

    /// Fills a symmetric shape; `right` is its right outline from top to bottom, at most 8 points.
    pub(crate) fn both_sides(&mut self, right: &[[f32; 2]], shade: f32) {
        let left = right.iter().rev().map(|&[x, y]| [-x, y]);
        let outline: Vec<_> = right.iter().copied().chain(left).collect();
        self.fill(&outline, shade);
    }

    /// Draws a straight line of the given width.
    pub(crate) fn line(&mut self, from: [f32; 2], to: [f32; 2], width: f32, shade: f32) {
        let dx = to[0] - from[0];
        let dy = to[1] - from[1];
        let scale = width / 2.0 / (dx * dx + dy * dy).sqrt().max(1e-6);
        let nx = -dy * scale;
        let ny = dx * scale;
        let beside = |[x, y]: [f32; 2]| [[x + nx, y + ny], [x - nx, y - ny]];
        let [a, d] = beside(from);
        let [b, c] = beside(to);
        self.fill(&[a, b, c, d], shade);
    }
}

/// A random number from each of these ranges.
pub(crate) fn numbers<const N: usize>(rng: &mut ChaCha8Rng, from: [Range<f32>; N]) -> [f32; N] {
    from.map(|range| rng.random_range(range))
}

/// Adds one subrow's coverage: the polygon's inside is where an odd number of its edges lie to the left.
fn cover(points: &[[f32; 2]], y: f32, coverage: &mut [f32; SIDE]) {
    let mut crossings = [0.0; 16];
    let mut n = 0;
    let mut from = points[points.len() - 1];
    for &to in points {
        if (from[1] <= y) != (to[1] <= y) {
            crossings[n] = from[0] + (y - from[1]) / (to[1] - from[1]) * (to[0] - from[0]);
            n += 1;
        }
        from = to;
    }
    crossings[..n].sort_unstable_by(f32::total_cmp);
    for span in crossings[..n].chunks_exact(2) {
        let left = span[0].max(0.0);
        let right = span[1].min(SIDE as f32);
        let end = right.ceil().max(0.0) as usize;
        let pixels = coverage.iter_mut().enumerate();
        for (x, pixel) in pixels.take(end).skip(left as usize) {
            let inside = right.min(x as f32 + 1.0) - left.max(x as f32);
            *pixel += inside.max(0.0) / SUBROWS as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: [[f32; 3]; 2] = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]];

    #[test]
    fn a_polygon_covers_its_area() {
        let mut canvas = Canvas::new(PLAIN);
        // A triangle over half of the canvas: 14 × 28 pixels.
        canvas.fill(&[[-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]], 1.0);
        let area: f32 = canvas.pixels.iter().sum();
        assert!((area - 392.0).abs() < 1.0, "{area}");
        // A hole of 7 × 7 pixels.
        let hole = [[-1.0, -1.0], [-0.5, -1.0], [-0.5, -0.5], [-1.0, -0.5]];
        canvas.fill(&hole, 0.0);
        let area: f32 = canvas.pixels.iter().sum();
        assert!((area - 343.0).abs() < 1.0, "{area}");
    }

    #[test]
    fn what_lies_outside_is_cut_off() {
        let mut canvas = Canvas::new([[3.0, 0.0, 0.5], [0.0, 3.0, 5.0]]);
        canvas.both_sides(&[[0.5, -2.0], [0.5, 0.0]], 0.5);
        assert!(canvas.pixels.iter().all(|&p| (0.0..=0.5001).contains(&p)));
        let mut far = Canvas::new([[1.0, 0.0, -9.0], [0.0, 1.0, -9.0]]);
        far.line([-1.0, 0.0], [1.0, 0.0], 0.2, 1.0);
        assert!(far.pixels.iter().all(|&p| p == 0.0));
    }
}
