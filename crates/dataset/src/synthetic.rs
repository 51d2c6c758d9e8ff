//! Images that stand in for Fashion-MNIST, or for MNIST, where there is no network: ten classes of garments (or
//! seven-segment digits) drawn from polygons with random shape, position, texture and noise. They have the real
//! sets' shape and size, and are meant to be learned, not to be hard: the book's LeNet, after ten epochs of SGD with
//! a learning rate of 0.2, is right on 89 to 92 % of the garments. It says nothing about the real images.

use std::sync::Mutex;
use std::thread;

use rand::seq::SliceRandom;
use rand::{Rng, RngCore};
use rand_chacha::ChaCha8Rng;

use crate::draw::{Canvas, numbers};
use crate::figures::{GARMENTS, digit};
use crate::options::Name;
use crate::split::{PIXELS, SIDE, Split};
use training::generator;

/// Images are made in blocks of one of each class, each block from a stream of its own: the labels are balanced,
/// and the bytes depend neither on the number of threads nor on how many images are wanted.
const BLOCK: usize = 10;

/// Separates the random numbers of the training part from those of the test part.
pub(crate) const TRAIN: &[u8; 4] = b"synt";
pub(crate) const TEST: &[u8; 4] = b"synv";

/// The first `n` synthetic images of a part.
pub(crate) fn make(name: Name, seed: u64, part: &[u8; 4], n: usize, threads: usize) -> Split {
    let blocks = n.div_ceil(BLOCK);
    let mut images = vec![0; blocks * BLOCK * PIXELS];
    let mut labels = vec![0; blocks * BLOCK];
    let images_of_blocks = images.chunks_mut(BLOCK * PIXELS);
    let blocks = images_of_blocks.zip(labels.chunks_mut(BLOCK)).zip(0u32..);
    let blocks = Mutex::new(blocks);
    let next = || devices::lock(&blocks).next();
    let work = || {
        while let Some(((images, labels), block)) = next() {
            make_block(name, &mut generator(seed, part, block), images, labels);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // this thread makes what others do not, also where the system starts no others
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    images.truncate(n * PIXELS);
    labels.truncate(n);
    Split::new(images, labels).expect("as many images as labels, and labels below 10")
}

/// One image of each class, in random order.
fn make_block(name: Name, rng: &mut ChaCha8Rng, images: &mut [u8], labels: &mut [u8]) {
    labels.copy_from_slice(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    labels.shuffle(rng);
    for (image, label) in images.chunks_exact_mut(PIXELS).zip(labels) {
        let label = usize::from(*label);
        let mut canvas = Canvas::new(placement(rng));
        match name {
            Name::FashionMnist => GARMENTS[label](&mut canvas, rng),
            Name::Mnist => digit(&mut canvas, label, rng),
        }
        shade(&canvas, rng, image);
    }
}

/// A small random scale, rotation, shear and shift.
fn placement(rng: &mut ChaCha8Rng) -> [[f32; 3]; 2] {
    let mut around = |middle: f32, by: f32| rng.random_range(middle - by..middle + by);
    let sx = around(1.0, 0.12);
    let sy = around(1.0, 0.08);
    let angle = around(0.0, 0.12);
    let shear = around(0.0, 0.12);
    let (sin, cos) = angle.sin_cos();
    [
        [sx * cos, sy * (shear * cos - sin), around(0.0, 0.1)],
        [sx * sin, sy * (shear * sin + cos), around(0.0, 0.08)],
    ]
}

/// Cloth: stripes and noise where something was drawn, and a little noise elsewhere.
fn shade(canvas: &Canvas, rng: &mut ChaCha8Rng, image: &mut [u8]) {
    let bright = rng.random_range(0.45..1.1f32);
    let stripes = if rng.random_bool(0.4) {
        rng.random_range(0.1..0.5f32)
    } else {
        0.0
    };
    let [fx, fy] = numbers(rng, [-0.22..0.22, -0.22..0.22]);
    let noise = rng.random_range(0.1..0.9f32);
    let mut random = [0; 4 * PIXELS];
    rng.fill_bytes(&mut random);
    for (i, (four, ink)) in random.chunks_exact(4).zip(canvas.pixels).enumerate() {
        // Four random bytes make a bell-shaped number in (−1, 1).
        let bell = four.iter().map(|&b| i32::from(b)).sum::<i32>() as f32 / 510.0 - 1.0;
        // Stripes are a triangular wave, 20 periods from where it would be negative.
        let t = 20.0 + fx * (i % SIDE) as f32 + fy * (i / SIDE) as f32;
        let wave = 4.0 * (t - (t as i32) as f32 - 0.5).abs() - 1.0;
        let cloth = 1.0 + stripes * wave + noise * bell;
        image[i] = (255.0 * (ink * bright * cloth + 0.03 * bell)) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_makes_the_bytes() {
        for name in [Name::FashionMnist, Name::Mnist] {
            assert_eq!(make(name, 3, TRAIN, 400, 1), make(name, 3, TRAIN, 400, 3));
            let few = make(name, 3, TRAIN, 40, 1);
            assert_ne!(few, make(name, 4, TRAIN, 40, 1));
            assert_ne!(few, make(name, 3, TEST, 40, 1));
        }
    }

    #[test]
    fn a_limit_takes_the_first_images_of_the_full_set() {
        let mut all = make(Name::FashionMnist, 0, TRAIN, 1000, 2);
        all.truncate(123);
        assert_eq!(make(Name::FashionMnist, 0, TRAIN, 123, 2), all);
    }

    #[test]
    fn labels_are_balanced_and_in_random_order() {
        let split = make(Name::Mnist, 1, TRAIN, 500, 2);
        let mut counts = [0; 10];
        let labels: Vec<u8> = (0..500).map(|i| split.label(i)).collect();
        let mut count = |&label: &u8| counts[usize::from(label)] += 1;
        labels.iter().for_each(&mut count);
        assert_eq!(counts, [50; 10]);
        assert_ne!(labels[..10], labels[10..20]);
    }

    #[test]
    fn the_images_are_as_bright_as_the_real_ones() {
        let split = make(Name::FashionMnist, 0, TEST, 1000, 2);
        let bytes = (0..1000).flat_map(|i| split.image(i));
        let values: Vec<f64> = bytes.map(|&b| f64::from(b) / 255.0).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64;
        assert!((mean - 0.29).abs() < 0.05, "{mean}");
        assert!((variance.sqrt() - 0.35).abs() < 0.05, "{}", variance.sqrt());
    }
}
