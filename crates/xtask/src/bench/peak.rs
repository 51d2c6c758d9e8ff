//! The most that the processor can do: fused multiply-adds that wait for nothing and touch no
//! memory.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use pulp::{Arch, Simd, WithSimd};

/// Enough chains of multiply-adds to hide the time that each takes.
const CHAINS: usize = 12;
const ROUNDS: usize = 100_000;

/// GFLOP/s that were reached.
#[derive(Clone, Copy, Debug)]
pub struct Peak {
    /// By one thread.
    pub one: f64,
    /// By all threads together.
    pub all: f64,
}

impl Peak {
    /// Measures one thread, then `threads`.
    pub fn measure(threads: usize) -> Self {
        let of = |threads| (0..5).map(|_| gflops(threads)).fold(0.0, f64::max);
        Self {
            one: of(1),
            all: of(threads),
        }
    }

    /// The peak of so many threads.
    pub fn of(&self, threads: usize) -> f64 {
        if threads == 1 { self.one } else { self.all }
    }
}

/// What `threads` threads do in about a tenth of a second.
fn gflops(threads: usize) -> f64 {
    let work = || {
        let (start, mut flops) = (Instant::now(), 0.0);
        while start.elapsed() < Duration::from_millis(100) {
            flops += Arch::new().dispatch(MultiplyAdds);
        }
        flops / start.elapsed().as_secs_f64() / 1e9
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let each = running.into_iter().map(|t| t.join().unwrap_or(0.0));
        each.sum()
    })
}

struct MultiplyAdds;

impl WithSimd for MultiplyAdds {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f64 {
        let (a, b) = (black_box(0.999f32), black_box(0.001f32));
        let (a, b) = (simd.splat_f32s(a), simd.splat_f32s(b));
        let mut sums = [b; CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = simd.mul_add_f32s(a, *sum, b);
            }
        }
        let sum = sums.into_iter().fold(b, |x, y| simd.add_f32s(x, y));
        black_box(simd.reduce_sum_f32s(sum));
        (2 * CHAINS * ROUNDS * S::F32_LANES) as f64
    }
}
