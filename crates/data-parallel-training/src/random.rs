//! Random numbers from one seed, drawn on the host, so that a run is the same on every device.

use candle_core::{Device, Result, Shape, Tensor};
use rand::{Rng as _, SeedableRng};
use rand_distr::{Distribution, StandardNormal};

/// The generator of all random numbers.
pub type Rng = rand_chacha::ChaCha8Rng;

/// The generator of initial parameters for a seed.
///
/// ```
/// let draw = |seed| data_parallel_training::normal(&mut data_parallel_training::rng(seed), 1.0, 3)?.to_vec1::<f32>();
/// assert_eq!(draw(0)?, draw(0)?);
/// assert_ne!(draw(0)?, draw(1)?);
/// # candle_core::Result::Ok(())
/// ```
pub fn rng(seed: u64) -> Rng {
    Rng::seed_from_u64(seed)
}

/// The generator for the `n`-th piece of work of one `purpose`, such as the order of epoch `n`. The streams of one seed
/// never overlap.
pub fn generator(seed: u64, purpose: &[u8; 4], n: u32) -> Rng {
    let mut rng = rng(seed);
    rng.set_stream(u64::from(u32::from_be_bytes(*purpose)) << 32 | u64::from(n));
    rng
}

/// The generator for the augmentation of one example in one epoch: [`Examples`](crate::Examples) draw from it what they
/// change. The same numbers come again where a run is resumed, and in whatever process.
///
/// ```
/// use data_parallel_training::{example_rng, uniform};
/// let draw = |epoch, example| uniform(&mut example_rng(0, epoch, example), 0.0, 1.0, 2)?.to_vec1::<f32>();
/// assert_eq!(draw(1, 7)?, draw(1, 7)?);
/// assert_ne!(draw(1, 7)?, draw(2, 7)?);
/// assert_ne!(draw(1, 7)?, draw(1, 8)?);
/// # candle_core::Result::Ok(())
/// ```
pub fn example_rng(seed: u64, epoch: usize, example: u32) -> Rng {
    let of_epoch = generator(seed, b"exam", epoch as u32).random();
    let mut rng = rng(of_epoch);
    rng.set_stream(u64::from(example));
    rng
}

/// A tensor of `shape` on the CPU, drawn from N(0, `std`²).
///
/// ```
/// let w = data_parallel_training::normal(&mut data_parallel_training::rng(0), 0.01, (20, 1, 3, 3))?;
/// assert_eq!(w.dims(), [20, 1, 3, 3]);
/// # candle_core::Result::Ok(())
/// ```
pub fn normal(rng: &mut Rng, std: f64, shape: impl Into<Shape>) -> Result<Tensor> {
    let shape = shape.into();
    Tensor::from_vec(normals(rng, std, shape.elem_count()), shape, &Device::Cpu)
}

/// A tensor of `shape` on the CPU, drawn evenly from `low` to `high`.
///
/// ```
/// let x = data_parallel_training::uniform(&mut data_parallel_training::rng(0), 0.0, 1.0, (4, 1, 28, 28))?;
/// assert!(x.flatten_all()?.max(0)?.to_scalar::<f32>()? < 1.0);
/// # candle_core::Result::Ok(())
/// ```
pub fn uniform(rng: &mut Rng, low: f64, high: f64, shape: impl Into<Shape>) -> Result<Tensor> {
    let shape = shape.into();
    let numbers = evenly(rng, low, high, shape.elem_count());
    Tensor::from_vec(numbers, shape, &Device::Cpu)
}

// The loops are no generic functions: those would be compiled in the crate of a user, often without optimization.

fn normals(rng: &mut Rng, std: f64, count: usize) -> Vec<f32> {
    let mut number = || -> f64 { StandardNormal.sample(rng) };
    (0..count).map(|_| (number() * std) as f32).collect()
}

fn evenly(rng: &mut Rng, low: f64, high: f64, count: usize) -> Vec<f32> {
    let mut number = || low + (high - low) * rng.random::<f64>();
    (0..count).map(|_| number() as f32).collect()
}
