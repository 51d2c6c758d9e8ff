//! Random numbers from one seed, the same on every machine.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// The generator for the `n`-th piece of work of one `purpose`: streams of one seed never overlap.
pub(crate) fn generator(seed: u64, purpose: &[u8; 4], n: u32) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(u64::from(u32::from_be_bytes(*purpose)) << 32 | u64::from(n));
    rng
}
