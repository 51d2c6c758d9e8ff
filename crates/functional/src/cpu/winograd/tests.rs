//! The three passes against their definition in f64, on every instruction set, for every budget.

use super::*;
use crate::cpu::budget::with_budget;
use pulp::Arch;
use std::cell::Cell;

thread_local! {
    /// The instructions to use on this thread.
    pub(super) static ARCH: Cell<Option<Arch>> = const { Cell::new(None) };
}

fn geometry(batch: usize, height: usize, width: usize, channels: (usize, usize)) -> Geometry {
    Geometry {
        batch,
        height,
        width,
        channels: channels.0,
        out_height: height,
        out_width: width,
        out_channels: channels.1,
        kernel: (3, 3),
        stride: 1,
        padding: 1,
    }
}

/// Numbers between -1 and 1.
fn noise(len: usize, mut seed: u32) -> Vec<f32> {
    let next = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as f32 / (1 << 23) as f32 - 1.
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Something to convolve.
struct Example {
    g: Geometry,
    x: Vec<f32>,
    weight: Vec<f32>,
    bias: Vec<f32>,
    dy: Vec<f32>,
}

impl Example {
    fn new(g: Geometry) -> Self {
        let pixels = g.batch * g.height * g.width;
        Self {
            g,
            x: noise(pixels * g.channels, 1),
            weight: noise(g.out_channels * g.channels * 9, 2),
            bias: noise(g.out_channels, 3),
            dy: noise(pixels * g.out_channels, 4),
        }
    }

    /// y, dx and dw.
    fn results(&self, accumulate: bool) -> [Vec<f32>; 3] {
        let mut y = vec![f32::NAN; self.dy.len()];
        let before = if accumulate { 0.5 } else { f32::NAN };
        let (mut dx, mut dw) = (vec![before; self.x.len()], vec![before; self.weight.len()]);
        let bias = accumulate.then_some(&self.bias[..]);
        forward(&self.g, &self.x, &self.weight, bias, &mut y);
        backward_x(&self.g, &self.weight, &self.dy, &mut dx, accumulate);
        backward_weight(&self.g, &self.x, &self.dy, &mut dw, accumulate);
        [y, dx, dw]
    }

    /// The same by definition.
    fn expected(&self, accumulate: bool) -> [Vec<f64>; 3] {
        let g = &self.g;
        let before = if accumulate { 0.5 } else { 0. };
        let (mut dx, mut dw) = (vec![before; self.x.len()], vec![before; self.weight.len()]);
        let mut y = vec![0f64; self.dy.len()];
        for (i, y) in y.iter_mut().enumerate().filter(|_| accumulate) {
            *y = self.bias[i % g.out_channels].into();
        }
        let mut visit = |n: usize, oy: usize, ox: usize, tap: usize| {
            let (iy, ix) = (
                (oy + tap / 3).wrapping_sub(1),
                (ox + tap % 3).wrapping_sub(1),
            );
            if iy >= g.height || ix >= g.width {
                return;
            }
            let from = ((n * g.height + iy) * g.width + ix) * g.channels;
            let to = ((n * g.height + oy) * g.width + ox) * g.out_channels;
            for o in 0..g.out_channels {
                let dy = f64::from(self.dy[to + o]);
                for i in 0..g.channels {
                    let w = (o * g.channels + i) * 9 + tap;
                    let (x, weight) = (f64::from(self.x[from + i]), f64::from(self.weight[w]));
                    y[to + o] += x * weight;
                    dx[from + i] += dy * weight;
                    dw[w] += dy * x;
                }
            }
        };
        for pixel in 0..g.batch * g.height * g.width {
            let (n, oy) = (pixel / g.width / g.height, pixel / g.width % g.height);
            (0..9).for_each(|tap| visit(n, oy, pixel % g.width, tap));
        }
        [y, dx, dw]
    }
}

/// The largest error over the largest value.
fn error(actual: &[f32], expected: &[f64]) -> f64 {
    let errors = actual.iter().zip(expected).map(|(&a, &e)| f64::from(a) - e);
    // not `max`, which would pass over NaN
    let most = |v: &mut dyn Iterator<Item = f64>| {
        v.map(f64::abs)
            .fold(0., |most, v| if v <= most { most } else { v })
    };
    most(&mut { errors }) / most(&mut expected.iter().copied())
}

fn check(example: &Example, accumulate: bool) {
    let (actual, expected) = (example.results(accumulate), example.expected(accumulate));
    for (name, (actual, expected)) in ["y", "dx", "dw"]
        .into_iter()
        .zip(actual.iter().zip(&expected))
    {
        let error = error(actual, expected);
        let Geometry {
            batch,
            height,
            width,
            channels,
            out_channels,
            ..
        } = example.g;
        println!("{batch} × {height} × {width}, {channels} → {out_channels}: {name} {error:.1e}");
        assert!(error < 1e-5, "{name}: {error:e}");
    }
}

#[test]
fn all_passes_are_convolutions() {
    for (batch, height, width, channels) in [
        (1, 1, 1, (64, 64)),
        (3, 5, 3, (64, 128)),
        (1, 9, 8, (128, 64)),
        (3, 4, 7, (64, 192)),
        (1, 6, 2, (256, 64)),
        (20, 8, 9, (64, 64)),
    ] {
        let example = Example::new(geometry(batch, height, width, channels));
        check(&example, false);
        check(&example, true);
    }
}

#[test]
fn many_channels_in_more_than_one_group_of_tiles() {
    // 1024 tiles × panels are a group, 17 blocks of weights are not kept
    check(&Example::new(geometry(140, 2, 1, (512, 64))), false);
    check(&Example::new(geometry(65, 1, 2, (64, 1088))), true);
}

#[test]
fn no_bit_depends_on_the_number_of_threads() {
    for (batch, size, channels) in [(9, 21, (64, 64)), (16, 14, (64, 128)), (40, 7, (64, 192))] {
        let example = Example::new(geometry(batch, size, size, channels));
        let bits = |n: usize| {
            let results = with_budget(n, || example.results(true));
            results.map(|v| v.into_iter().map(f32::to_bits).collect::<Vec<_>>())
        };
        let one = bits(1);
        for n in 2..=4 {
            assert!(bits(n) == one, "{n} threads");
        }
    }
}

/// Calls `check` with each of the instruction sets that this machine has.
pub(super) fn on_all_instructions(check: impl Fn()) {
    #[allow(unused_mut)]
    let mut all = vec![Arch::new(), Arch::Scalar];
    #[cfg(target_arch = "x86_64")]
    all.extend(pulp::x86::V3::try_new().map(Arch::V3));
    for arch in all {
        println!("{arch:?}");
        ARCH.set(Some(arch));
        check();
        ARCH.set(None);
    }
}

#[test]
fn all_instructions_give_the_same_result() {
    on_all_instructions(|| {
        check(&Example::new(geometry(2, 6, 5, (64, 128))), true);
        check(&Example::new(geometry(2, 7, 4, (192, 64))), false);
    });
}

#[test]
fn no_example_gives_no_output_and_no_gradient() {
    for channels in [(64, 64), (256, 64)] {
        let example = Example::new(geometry(0, 5, 5, channels));
        let [y, dx, dw] = example.results(false);
        assert!(y.is_empty() && dx.is_empty() && dw.iter().all(|&v| v == 0.));
        assert!(example.results(true)[2].iter().all(|&v| v == 0.5));
    }
}

#[test]
fn it_fits_multiples_of_64_channels() {
    let fit = geometry(1, 4, 4, (64, 128));
    assert!(fits(&fit));
    assert!(!fits(&Geometry { stride: 2, ..fit }));
    assert!(!fits(&Geometry { padding: 0, ..fit }));
    assert!(!fits(&Geometry {
        kernel: (1, 1),
        ..fit
    }));
    assert!(!fits(&Geometry {
        out_channels: 96,
        ..fit
    }));
}
