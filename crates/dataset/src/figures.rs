//! The ten garments and the ten digits of the synthetic sets, each a few polygons with random proportions.
//! Neighbouring classes overlap (a long-sleeved shirt looks like a coat or a pullover), as they do in reality.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::draw::Canvas;

/// Draws one garment of the class `label`, in shades around 1.
pub(crate) fn garment(canvas: &mut Canvas, label: u8, rng: &mut ChaCha8Rng) {
    match label {
        0 => t_shirt(canvas, rng),
        1 => trouser(canvas, rng),
        2 => pullover(canvas, rng),
        3 => dress(canvas, rng),
        4 => coat(canvas, rng),
        5 => sandal(canvas, rng),
        6 => shirt(canvas, rng),
        7 => sneaker(canvas, rng),
        8 => bag(canvas, rng),
        _ => ankle_boot(canvas, rng),
    }
}

/// A number between `low` and `high`.
fn between(rng: &mut ChaCha8Rng, low: f32, high: f32) -> f32 {
    rng.random_range(low..high)
}

/// A torso with two sleeves of length `sleeve` and a neck hole: what five of the classes have in common.
fn upper(canvas: &mut Canvas, rng: &mut ChaCha8Rng, sleeve: f32, hem: f32, bottom: f32) {
    let mut r = |low, high| between(rng, low, high);
    let shoulder = r(0.42, 0.56);
    let spread = r(0.0, 0.2) + 0.45 * (1.4 - sleeve).max(0.0);
    let width = r(0.24, 0.36);
    for side in [-1.0, 1.0] {
        let from = [side * (shoulder - 0.08), -0.68];
        let to = [
            from[0] + side * sleeve * spread.sin(),
            from[1] + sleeve * spread.cos(),
        ];
        canvas.line(from, to, width, r(0.85, 1.0));
    }
    let waist = hem - r(0.0, 0.1);
    canvas.both_sides(
        [[0.2, -0.9], [shoulder, -0.74], [waist, 0.0], [hem, bottom]],
        1.0,
    );
    let (neck, low) = (r(0.12, 0.26), r(-0.85, -0.7));
    canvas.both_sides(
        [[neck, -0.95], [neck * 0.7, 0.7 * low - 0.27], [0.0, low]],
        0.0,
    );
}

fn t_shirt(canvas: &mut Canvas, rng: &mut ChaCha8Rng) {
    let mut r = |low, high| between(rng, low, high);
    let (sleeve, hem, bottom) = (r(0.3, 0.8), r(0.42, 0.6), r(0.65, 0.92));
    upper(canvas, rng, sleeve, hem, bottom);
}

fn trouser(canvas: &mut Canvas, rng: &mut ChaCha8Rng) {
    let mut r = |low, high| between(rng, low, high);
    let (waist, hip, crotch) = (r(0.26, 0.38), r(0.32, 0.48), r(-0.5, -0.1));
    let (cuff, gap) = (r(0.14, 0.28), r(0.02, 0.16));
    let leg = [[gap + cuff, 0.95], [gap, 0.95]];
    canvas.both_sides(
        [[waist, -0.95], [hip, -0.5], leg[0], leg[1], [0.0, crotch]],
        1.0,
    );
}

fn pullover(canvas: &mut Canvas, rng: &mut ChaCha8Rng) {
    let mut r = |low, high| between(rng, low, high);
    let (sleeve, hem, bottom) = (r(0.9, 1.5), r(0.42, 0.6), r(0.6, 0.9));
    let rib = r(0.7, 1.1);
    upper(canvas, rng, sleeve, hem, bottom);
    canvas.line([-hem, bottom - 0.08], [hem, bottom - 0.08], 0.1, rib);
}

fn dress(canvas: &mut Canvas, rng: &mut ChaCha8Rng) {
    let sleeves = rng.random_bool(0.35);
    let mut r = |low, high| between(rng, low, high);
    let (bust, waist, hem, neck) = (r(0.22, 0.4), r(0.16, 0.32), r(0.3, 0.65), r(0.05, 0.16));
    let sleeve = r(0.2, 1.1);
    if sleeves {
        upper(canvas, rng, sleeve, waist.max(0.28), 0.2);
    }
    canvas.both_sides(
        [
            [bust * 0.6, -0.95],
            [bust, -0.55],
            [waist, -0.1],
            [hem, 0.95],
        ],
        1.0,
    );
    canvas.both_sides([[neck, -0.98], [0.0, -0.98 + 2.0 * neck]], 0.0);
}

fn coat(canvas: &mut Canvas, rng: &mut ChaCha8Rng) {
    let mut r = |low, high| between(rng, low, high);
    let (sleeve, hem, bottom) = (r(0.95, 1.5), r(0.42, 0.6), r(0.7, 0.95));
    let (shade, lapel, slant) = (r(0.6, 1.1), r(-0.7, -0.1), r(-0.05, 0.05));
    upper(canvas, rng, sleeve, hem, bottom);
    canvas.line([0.0, -0.9], [slant, bottom], 0.07, shade);
    canvas.both_sides([[0.18, -0.9], [0.0, lapel]], shade);
}

fn sandal(canvas: &mut Canvas, rng: &mut ChaCha8Rng) {
    let straps = rng.random_range(2..5);
    let mut r = |low, high| between(rng, low, high);
    let (heel, sole) = (r(-0.1, 0.5), r(0.5, 0.62));
    let top = [
        [-0.95, sole],
        [0.3, sole - 0.3 * heel],
        [0.95, 0.3 - 0.8 * heel],
    ];
    let under = [
        [0.95, 0.62],
        [0.8, 0.62],
        [0.4, sole + 0.1],
        [-0.95, sole + 0.1],
    ];
    canvas.fill(&[top.as_slice(), &under].concat(), 1.0);
    for _ in 0..straps {
        let (from, to) = ([r(-0.8, 0.8), sole], [r(-0.8, 0.8), r(-0.4, 0.3)]);
        canvas.line(from, to, r(0.08, 0.2), r(0.6, 1.0));
    }
}

fn shirt(canvas: &mut Canvas, rng: &mut ChaCha8Rng) {
    let long = rng.random_bool(0.6);
    let mut r = |low, high| between(rng, low, high);
    let sleeve = if long { r(0.8, 1.5) } else { r(0.35, 0.8) };
    let (hem, bottom, shade) = (r(0.42, 0.6), r(0.65, 0.95), r(0.8, 1.1));
    upper(canvas, rng, sleeve, hem, bottom);
    canvas.line([0.0, -0.75], [0.0, bottom], 0.06, shade);
    canvas.both_sides([[0.22, -0.92], [0.12, -0.7], [0.0, -0.8]], shade);
}

fn sneaker(canvas: &mut Canvas, rng: &mut ChaCha8Rng) {
    let laces = rng.random_range(0..4);
    let mut r = |low, high| between(rng, low, high);
    let (heel, tongue, toe) = (r(-0.2, 0.15), r(-0.25, 0.1), r(0.2, 0.4));
    let back = [[-0.97, 0.58], [0.95, 0.58], [0.95, heel], [0.6, heel + 0.1]];
    let front = [[0.25, tongue], [-0.3, 0.5 * (tongue + toe)], [-0.9, toe]];
    canvas.fill(&[back.as_slice(), &front].concat(), r(0.75, 1.0));
    canvas.line([-0.97, 0.58], [0.97, 0.58], r(0.08, 0.2), r(0.5, 1.2));
    for lace in 0..laces {
        let x = 0.2 - 0.2 * lace as f32;
        canvas.line([x, tongue + 0.1], [x - 0.15, 0.45], 0.06, 0.5);
    }
}

fn bag(canvas: &mut Canvas, rng: &mut ChaCha8Rng) {
    let handle = rng.random_bool(0.85);
    let mut r = |low, high| between(rng, low, high);
    let (top, bottom, upper, lower) = (r(-0.4, 0.1), r(0.55, 0.9), r(0.55, 0.92), r(0.6, 0.95));
    let (width, rise) = (r(0.3, 0.6), r(0.2, 0.75));
    if handle {
        let (inner, high) = (width * 0.7, top - rise);
        canvas.both_sides([[inner, high], [width, top + 0.05]], 0.9);
        canvas.both_sides(
            [[inner - 0.12, high + 0.12], [width - 0.14, top + 0.1]],
            0.0,
        );
    }
    canvas.both_sides([[upper, top], [lower, bottom]], 1.0);
    canvas.line([-upper, top + 0.2], [upper, top + 0.2], 0.07, r(0.5, 1.0));
}

fn ankle_boot(canvas: &mut Canvas, rng: &mut ChaCha8Rng) {
    let mut r = |low, high| between(rng, low, high);
    let (top, shaft, toe, heel) = (r(-0.9, -0.1), r(-0.15, 0.25), r(0.1, 0.4), r(0.55, 0.9));
    let back = [[0.4, 0.55], [0.5, heel], [0.93, heel], [0.9, top]];
    let front = [
        [shaft, top + 0.05],
        [shaft - 0.05, 0.0],
        [-0.6, toe],
        [-0.93, toe + 0.15],
    ];
    canvas.fill(
        &[back.as_slice(), &front, &[[-0.95, 0.6], [0.2, 0.58]]].concat(),
        1.0,
    );
    canvas.line([-0.95, 0.6], [0.35, 0.6], 0.08, r(0.5, 1.1));
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
pub(crate) fn digit(canvas: &mut Canvas, label: u8, rng: &mut ChaCha8Rng) {
    let width = between(rng, 0.12, 0.32);
    for (i, ends) in SEGMENTS.iter().enumerate() {
        if DIGITS[usize::from(label)] >> i & 1 == 1 {
            let [from, to] = ends.map(|end| end.map(|at| at + between(rng, -0.18, 0.18)));
            let faint = rng.random_bool(0.1);
            let (low, high) = if faint { (0.0, 0.5) } else { (0.8, 1.1) };
            canvas.line(from, to, width, between(rng, low, high));
        }
    }
}
