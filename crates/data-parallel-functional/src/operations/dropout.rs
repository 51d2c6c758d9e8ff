//! Dropout: which elements it keeps. That follows from a seed and the element's place alone, on every device.

use crate::cpu::buffer::Buffer;
use crate::cpu::gradient::{At, CHUNK, Grad, Pass};
use crate::cpu::threads::for_each_chunk;
use crate::graph::alone::are_together;
use crate::graph::value::Value;
use crate::kernel::{Cpu, Kernel, SelfContained};
use candle_core::{Device, Result, Tensor, bail};

impl Value {
    /// Zeros with probability `p`, and the other elements divided by 1 − p. Which elements are zero follows from `seed`
    /// and their places, on every device. In PyTorch: `F.dropout`.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let x = Value::new(&Tensor::ones(1000, candle_core::DType::F32, &Device::Cpu)?)?;
    /// let y = x.dropout(0.2, 7)?.eval()?.to_vec1::<f32>()?;
    /// assert!(y.iter().all(|y| *y == 0. || *y == 1.25) && y.iter().sum::<f32>() > 900.);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where it is not f32, or `p` is not from 0 up to 1, 1 not included.
    pub fn dropout(&self, p: f64, seed: u64) -> Result<Self> {
        let op = Dropout::new(p, seed)?;
        if !are_together(true) {
            return Ok(self.clone());
        }
        self.self_contained("dropout", op, &[], self.dims())
    }
}

/// Zero with probability p, and 1 / (1 − p) times the element else.
#[derive(Debug, Clone, Copy)]
struct Dropout {
    /// Of the seed.
    hash: u64,
    /// Numbers below it are dropped; 2³² is all of them.
    below: u32,
    scale: f32,
}

impl Dropout {
    fn new(p: f64, seed: u64) -> Result<Self> {
        if !(0.0..1.0).contains(&p) {
            bail!("dropout: p is {p}; expected 0 or more, and less than 1")
        }
        // SplitMix64: similar seeds have other halves
        let mut hash = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Ok(Self {
            hash: hash ^ (hash >> 31),
            below: (p * 2f64.powi(32)) as u32,
            scale: (1. / (1. - p)) as f32,
        })
    }

    /// The number by which element `i` is multiplied.
    #[inline(always)]
    fn factor(&self, i: u64) -> f32 {
        // Wellons' hash of 32 bits, twice, each with a half of the seed's
        let [low, high] = [self.hash as u32, (self.hash >> 32) as u32];
        let mut h = i as u32 ^ ((i >> 32) as u32).wrapping_mul(0x9e37_79b9);
        for half in [low, high] {
            h ^= half;
            h = (h ^ (h >> 16)).wrapping_mul(0x7feb_352d);
            h = (h ^ (h >> 15)).wrapping_mul(0x846c_a68b);
            h ^= h >> 16;
        }
        if h < self.below { 0. } else { self.scale }
    }
}

impl SelfContained for Dropout {
    fn with_candle(&self, x: &[Tensor]) -> Result<Tensor> {
        let factors = (0..x[0].elem_count() as u64).map(|i| self.factor(i));
        let factors = Tensor::from_iter(factors, &Device::Cpu)?.reshape(x[0].dims())?;
        &x[0] * devices::to_device(&factors, x[0].device())?
    }
}

impl Kernel<Cpu> for Dropout {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        y.copy_from_slice(x[0]);
        self.apply(y);
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, _: At<'_, '_>, mut dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        self.apply(&mut dy);
        dx[0].give(dy);
        Ok(())
    }
}

impl Dropout {
    fn apply(&self, values: &mut [f32]) {
        for_each_chunk(
            values,
            CHUNK,
            #[inline(always)]
            |i, values| {
                let first = (i * CHUNK) as u64;
                for (k, v) in values.iter_mut().enumerate() {
                    let factor = self.factor(first + k as u64);
                    // also NaN is dropped
                    *v = if factor == 0. { 0. } else { *v * factor };
                }
            },
        );
    }
}
