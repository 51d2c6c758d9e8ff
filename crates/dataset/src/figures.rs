//! The ten garments and the ten digits of the synthetic sets, each a few polygons with random proportions.
//! Neighbouring classes overlap (a long-sleeved shirt looks like a coat or a pullover), as they do in reality.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::draw::{Canvas, numbers};

/// Functions that draw the garments of each class, in shades around 1.
pub(crate) const GARMENTS: [fn(&mut Canvas, &mut ChaCha8Rng); 10] = [
    t_shirt, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, ankle_boot,
];

/// A torso with two sleeves of length `sleeve` and a neck hole: what five of the classes have in common.
fn upper(canvas: &mut Canvas, rng: &mut ChaCha8Rng, sleeve: f32, hem: f32, bottom: f32) {
    let [shoulder, spread, width] = numbers(rng, [0.42..0.56, 0.0..0.2, 0.24..0.36]);
    let spread = spread + 0.45 * (1.4 - sleeve).max(0.0);
    for side in [-1.0, 1.0] {
        let [x, y] = [side * (shoulder - 0.08), -0.68];
        let (sin, cos) = libm::sincosf(spread);
        let hand = [x + side * sleeve * sin, y + sleeve * cos];
        canvas.line([x, y], hand, width, rng.random_range(0.85..1.0));
    }
    let [narrower, neck, low] = numbers(rng, [0.0..0.1, 0.12..0.26, -0.85..-0.7]);
    let collar = [0.2, -0.9];
    let arm = [shoulder, -0.74];
    let waist = hem - narrower;
    canvas.both_sides(&[collar, arm, [waist, 0.0], [hem, bottom]], 1.0);
    let hole = [[neck, -0.95], [neck * 0.7, 0.7 * low - 0.27], [0.0, low]];
    canvas.both_sides(&hole, 0.0);
}

fn t_shirt(canvas: &mut Canvas, rng: &mut ChaCha8Rng) {
    let [sleeve, hem, bottom] = numbers(rng, [0.3..0.8, 0.42..0.6, 0.65..0.92]);
    upper(canvas, rng, sleeve, hem, bottom);
}

fn trouser(canvas: &mut Canvas, rng: &mut ChaCha8Rng) {
    let [waist, hip, crotch] = numbers(rng, [0.26..0.38, 0.32..0.48, -0.5..-0.1]);
    let [cuff, gap] = numbers(rng, [0.14..0.28, 0.02..0.16]);
    let top = [waist, -0.95];
    let outer = [gap + cuff, 0.95];
    let inner = [gap, 0.95];
    canvas.both_sides(&[top, [hip, -0.5], outer, inner, [0.0, crotch]], 1.0);
}

fn pullover(canvas: &mut Canvas, rng: &mut ChaCha8Rng) {
    let [sleeve, hem, bottom] = numbers(rng, [0.9..1.5, 0.42..0.6, 0.6..0.9]);
    let rib = rng.random_range(0.7..1.1);
    upper(canvas, rng, sleeve, hem, bottom);
    canvas.line([-hem, bottom - 0.08], [hem, bottom - 0.08], 0.1, rib);
}

fn dress(canvas: &mut Canvas, rng: &mut ChaCha8Rng) {
    let sleeves = rng.random_bool(0.35);
    let [bust, waist, hem] = numbers(rng, [0.22..0.4, 0.16..0.32, 0.3..0.65]);
    let [neck, sleeve] = numbers(rng, [0.05..0.16, 0.2..1.1]);
    if sleeves {
        upper(canvas, rng, sleeve, waist.max(0.28), 0.2);
    }
    let shoulder = [bust * 0.6, -0.95];
    let chest = [bust, -0.55];
    canvas.both_sides(&[shoulder, chest, [waist, -0.1], [hem, 0.95]], 1.0);
    canvas.both_sides(&[[neck, -0.98], [0.0, -0.98 + 2.0 * neck]], 0.0);
}

fn coat(canvas: &mut Canvas, rng: &mut ChaCha8Rng) {
    let [sleeve, hem, bottom] = numbers(rng, [0.95..1.5, 0.42..0.6, 0.7..0.95]);
    let [shade, lapel, slant] = numbers(rng, [0.6..1.1, -0.7..-0.1, -0.05..0.05]);
    upper(canvas, rng, sleeve, hem, bottom);
    canvas.line([0.0, -0.9], [slant, bottom], 0.07, shade);
    canvas.both_sides(&[[0.18, -0.9], [0.0, lapel]], shade);
}

fn sandal(canvas: &mut Canvas, rng: &mut ChaCha8Rng) {
    let straps = rng.random_range(2..5);
    let [heel, sole] = numbers(rng, [-0.1..0.5, 0.5..0.62]);
    let arch = [0.3, sole - 0.3 * heel];
    let tip = [0.95, 0.3 - 0.8 * heel];
    let under = [[0.95, 0.62], [0.8, 0.62], [0.4, sole + 0.1]];
    let top = [[-0.95, sole], arch, tip];
    let back = [-0.95, sole + 0.1];
    canvas.fill(&[top.as_slice(), &under, &[back]].concat(), 1.0);
    for _ in 0..straps {
        let [from, to, high] = numbers(rng, [-0.8..0.8, -0.8..0.8, -0.4..0.3]);
        let [width, shade] = numbers(rng, [0.08..0.2, 0.6..1.0]);
        canvas.line([from, sole], [to, high], width, shade);
    }
}

fn shirt(canvas: &mut Canvas, rng: &mut ChaCha8Rng) {
    let long = rng.random_bool(0.6);
    let sleeve = if long { 0.8..1.5 } else { 0.35..0.8 };
    let [sleeve, hem, bottom, shade] = numbers(rng, [sleeve, 0.42..0.6, 0.65..0.95, 0.8..1.1]);
    upper(canvas, rng, sleeve, hem, bottom);
    canvas.line([0.0, -0.75], [0.0, bottom], 0.06, shade);
    canvas.both_sides(&[[0.22, -0.92], [0.12, -0.7], [0.0, -0.8]], shade);
}

fn sneaker(canvas: &mut Canvas, rng: &mut ChaCha8Rng) {
    let laces = rng.random_range(0..4);
    let [heel, tongue, toe] = numbers(rng, [-0.2..0.15, -0.25..0.1, 0.2..0.4]);
    let [upper, width, sole] = numbers(rng, [0.75..1.0, 0.08..0.2, 0.5..1.2]);
    let back = [[-0.97, 0.58], [0.95, 0.58], [0.95, heel], [0.6, heel + 0.1]];
    let front = [[0.25, tongue], [-0.3, 0.5 * (tongue + toe)], [-0.9, toe]];
    canvas.fill(&[back.as_slice(), &front].concat(), upper);
    canvas.line([-0.97, 0.58], [0.97, 0.58], width, sole);
    for lace in 0..laces {
        let x = 0.2 - 0.2 * lace as f32;
        canvas.line([x, tongue + 0.1], [x - 0.15, 0.45], 0.06, 0.5);
    }
}

fn bag(canvas: &mut Canvas, rng: &mut ChaCha8Rng) {
    let handle = rng.random_bool(0.85);
    let [top, bottom] = numbers(rng, [-0.4..0.1, 0.55..0.9]);
    let [upper, lower] = numbers(rng, [0.55..0.92, 0.6..0.95]);
    let [width, rise] = numbers(rng, [0.3..0.6, 0.2..0.75]);
    if handle {
        let inner = width * 0.7;
        let high = top - rise;
        canvas.both_sides(&[[inner, high], [width, top + 0.05]], 0.9);
        let hole = [[inner - 0.12, high + 0.12], [width - 0.14, top + 0.1]];
        canvas.both_sides(&hole, 0.0);
    }
    canvas.both_sides(&[[upper, top], [lower, bottom]], 1.0);
    let flap = top + 0.2;
    let shade = rng.random_range(0.5..1.0);
    canvas.line([-upper, flap], [upper, flap], 0.07, shade);
}

fn ankle_boot(canvas: &mut Canvas, rng: &mut ChaCha8Rng) {
    let [top, shaft, toe] = numbers(rng, [-0.9..-0.1, -0.15..0.25, 0.1..0.4]);
    let [heel, sole] = numbers(rng, [0.55..0.9, 0.5..1.1]);
    let back = [[0.4, 0.55], [0.5, heel], [0.93, heel], [0.9, top]];
    let front = [[shaft, top + 0.05], [shaft - 0.05, 0.0], [-0.6, toe]];
    let tip = [[-0.93, toe + 0.15], [-0.95, 0.6], [0.2, 0.58]];
    canvas.fill(&[back.as_slice(), &front, &tip].concat(), 1.0);
    canvas.line([-0.95, 0.6], [0.35, 0.6], 0.08, sole);
}

/// The ends of a digit's seven segments: top, top right, bottom right, bottom, bottom left, top left, middle.
const SEGMENTS: [[[f32; 2]; 2]; 7] = [
    [[-0.45, -0.8], [0.45, -0.8]],
    [[0.45, -0.8], [0.45, 0.0]],
    [[0.45, 0.0], [0.45, 0.8]],
    [[0.45, 0.8], [-0.45, 0.8]],
    [[-0.45, 0.8], [-0.45, 0.0]],
    [[-0.45, 0.0], [-0.45, -0.8]],
    [[-0.45, 0.0], [0.45, 0.0]],
];

/// Which segments each digit lights, the lowest bit for the first.
const DIGITS: [u8; 10] = [0x3f, 0x06, 0x5b, 0x4f, 0x66, 0x6d, 0x7d, 0x07, 0x7f, 0x6f];

/// Draws the digit `label` in seven segments with unsteady ends; now and then one of them is hardly to be seen.
pub(crate) fn digit(canvas: &mut Canvas, label: usize, rng: &mut ChaCha8Rng) {
    let width = rng.random_range(0.12..0.32);
    for (i, ends) in SEGMENTS.iter().enumerate() {
        if DIGITS[label] >> i & 1 == 1 {
            let [from, to] = ends.map(|end| end.map(|at| at + rng.random_range(-0.18..0.18f32)));
            let faint = rng.random_bool(0.1);
            let shade = rng.random_range(if faint { 0.0..0.5 } else { 0.8..1.1 });
            canvas.line(from, to, width, shade);
        }
    }
}
