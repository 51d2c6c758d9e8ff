//! Random numbers from one seed, drawn on the host, so that a run is the same on every device.

use candle_core::{Device, Result, Shape, Tensor};
use rand::{Rng as _, SeedableRng};
use rand_distr::{Distribution, StandardNormal};

/// The generator of everything that is random in a network; `dataset` has streams of its own.
pub type Rng = rand_chacha::ChaCha8Rng;

/// The generator of initial parameters for a seed.
///
/// ```
/// let draw = |seed| d2l::normal(&mut d2l::rng(seed), 1.0, 3)?.to_vec1::<f32>();
/// assert_eq!(draw(0)?, draw(0)?);
/// assert_ne!(draw(0)?, draw(1)?);
/// # candle_core::Result::Ok(())
/// ```
pub fn rng(seed: u64) -> Rng {
    Rng::seed_from_u64(seed)
}

/// A tensor of `shape` on the CPU, drawn from N(0, `std`²).
///
/// ```
/// let w = d2l::normal(&mut d2l::rng(0), 0.01, (20, 1, 3, 3))?;
/// assert_eq!(w.dims(), [20, 1, 3, 3]);
/// # candle_core::Result::Ok(())
/// ```
pub fn normal(rng: &mut Rng, std: f64, shape: impl Into<Shape>) -> Result<Tensor> {
    draw(shape, || {
        let z: f64 = StandardNormal.sample(rng);
        (z * std) as f32
    })
}

/// A tensor of `shape` on the CPU, drawn evenly from `low` to `high`.
///
/// ```
/// let x = d2l::uniform(&mut d2l::rng(0), 0.0, 1.0, (4, 1, 28, 28))?;
/// assert!(x.flatten_all()?.max(0)?.to_scalar::<f32>()? < 1.0);
/// # candle_core::Result::Ok(())
/// ```
pub fn uniform(rng: &mut Rng, low: f64, high: f64, shape: impl Into<Shape>) -> Result<Tensor> {
    draw(shape, || (low + (high - low) * rng.random::<f64>()) as f32)
}

fn draw(shape: impl Into<Shape>, mut number: impl FnMut() -> f32) -> Result<Tensor> {
    let shape = shape.into();
    let numbers: Vec<f32> = (0..shape.elem_count()).map(|_| number()).collect();
    Tensor::from_vec(numbers, shape, &Device::Cpu)
}
