//! Against the definition in f64, for shapes that leave a remainder everywhere.

use super::passes::{Backward, Forward};
use super::{Direct, Geometry};
use crate::threads::with_budget;
use pulp::{Scalar, Simd, WithSimd};

/// The sizes of one case.
#[derive(Clone, Copy, Debug)]
struct Case {
    batch: usize,
    size: (usize, usize),
    channels: (usize, usize),
    kernel: (usize, usize),
    stride: usize,
    pool: usize,
    relu: bool,
    bias: bool,
}

struct Tensors {
    x: Vec<f32>,
    weight: Vec<f32>,
    bias: Vec<f32>,
    dy: Vec<f32>,
}

/// y, then the gradients.
struct Results<T> {
    y: Vec<T>,
    dx: Vec<T>,
    dw: Vec<T>,
    db: Vec<T>,
    /// Where nobody wants dx.
    dw_alone: Vec<T>,
    db_alone: Vec<T>,
}

/// Multiples of 1/8 in [-1, 1), so that products are exact and sums nearly so: whether z is above 0
/// does not depend on their order.
fn random(seed: &mut u64, n: usize) -> Vec<f32> {
    let mut next = || {
        *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
        (*seed >> 60) as f32 / 8. - 1.
    };
    (0..n).map(|_| next()).collect()
}

impl Case {
    fn geometry(&self) -> Geometry {
        Geometry {
            batch: self.batch,
            height: self.size.0,
            width: self.size.1,
            channels: self.channels.0,
            out_height: (self.size.0 - self.kernel.0) / self.stride + 1,
            out_width: (self.size.1 - self.kernel.1) / self.stride + 1,
            out_channels: self.channels.1,
            kernel: self.kernel,
            stride: self.stride,
            padding: 0,
        }
    }

    fn direct(&self) -> Direct {
        Direct::new(self.geometry(), self.relu, self.pool).expect("it fits")
    }

    fn tensors(&self) -> Tensors {
        let (g, mut seed) = (self.geometry(), 7);
        Tensors {
            x: random(&mut seed, g.batch * g.sample()),
            weight: random(&mut seed, g.taps() * g.out_channels),
            bias: random(&mut seed, if self.bias { g.out_channels } else { 0 }),
            dy: random(&mut seed, self.direct().dims().iter().product()),
        }
    }

    /// The definition. Adds to gradients of 1.
    fn expected(&self, t: &Tensors) -> Results<f64> {
        let g = self.geometry();
        let (lines, columns) = (g.out_height / self.pool, g.out_width / self.pool);
        let share = 1. / (self.pool * self.pool) as f64;
        let mut r = Results {
            y: vec![0.; t.dy.len()],
            dx: vec![0.; t.x.len()],
            dw: vec![0.; t.weight.len()],
            db: vec![0.; t.bias.len()],
            dw_alone: vec![],
            db_alone: vec![],
        };
        let pixels = lines * self.pool * columns * self.pool;
        for i in 0..g.batch * pixels * g.out_channels {
            let (pixel, o) = (i / g.out_channels, i % g.out_channels);
            let (b, pixel) = (pixel / pixels, pixel % pixels);
            let (oy, ox) = (pixel / (columns * self.pool), pixel % (columns * self.pool));
            let window = (b * lines + oy / self.pool) * columns + ox / self.pool;
            let out = window * g.out_channels + o;
            let mut z = t.bias.get(o).map_or(0., |b| f64::from(*b));
            let each = |f: &mut dyn FnMut(usize, usize)| {
                for tap in 0..g.taps() {
                    let (c, k) = (tap % g.channels, tap / g.channels);
                    let (ky, kx) = (k / g.kernel.1, k % g.kernel.1);
                    let line = b * g.height + oy * g.stride + ky;
                    let x = (line * g.width + ox * g.stride + kx) * g.channels + c;
                    f(
                        x,
                        ((o * g.channels + c) * g.kernel.0 + ky) * g.kernel.1 + kx,
                    );
                }
            };
            each(&mut |x, w| z += f64::from(t.x[x]) * f64::from(t.weight[w]));
            if !self.relu || z > 0. {
                let d = share * f64::from(t.dy[out]);
                r.y[out] += share * z;
                each(&mut |x, w| {
                    r.dx[x] += d * f64::from(t.weight[w]);
                    r.dw[w] += d * f64::from(t.x[x]);
                });
                if self.bias {
                    r.db[o] += d;
                }
            }
        }
        r
    }

    /// What `S` computes.
    fn computed<S: Simd>(&self, simd: S, t: &Tensors) -> Results<f32> {
        let d = self.direct();
        let (x, weight, dy) = (&t.x[..], &t.weight[..], &t.dy[..]);
        let bias = self.bias.then_some(&t.bias[..]);
        let mut kept = vec![f32::NAN; d.kept_len()];
        // every result is written, whatever was there
        let mut y = vec![f32::NAN; d.dims().iter().product::<usize>()];
        let mut dx = vec![f32::NAN; x.len()];
        Forward {
            direct: &d,
            x,
            weight,
            bias,
            y: &mut y,
            kept: &mut kept,
        }
        .with_simd(simd);
        let backward = |dx| {
            let sums = Backward {
                direct: &d,
                x,
                weight,
                bias,
                kept: &kept,
                dy,
                dx,
            }
            .with_simd(simd);
            let (mut dw, mut db) = (vec![f32::NAN; weight.len()], vec![f32::NAN; t.bias.len()]);
            sums.unpack(&d, &mut dw, &mut db);
            (dw, db)
        };
        let (dw, db) = backward(Some(&mut dx));
        let (dw_alone, db_alone) = backward(None);
        Results {
            y,
            dx,
            dw,
            db,
            dw_alone,
            db_alone,
        }
    }

    fn check<S: Simd>(&self, simd: S) {
        let t = self.tensors();
        let (ours, expected) = (self.computed(simd, &t), self.expected(&t));
        let close = |name: &str, ours: &[f32], expected: &[f64]| {
            assert_eq!(ours.len(), expected.len());
            for (i, (a, b)) in ours.iter().zip(expected).enumerate() {
                let error = (f64::from(*a) - b).abs();
                assert!(
                    error <= 1e-4 * b.abs().max(1.),
                    "{self:?}: {name}[{i}] {a} not {b}"
                );
            }
        };
        close("y", &ours.y, &expected.y);
        close("dx", &ours.dx, &expected.dx);
        close("dw", &ours.dw, &expected.dw);
        close("db", &ours.db, &expected.db);
        close("dw without dx", &ours.dw_alone, &expected.dw);
        close("db without dx", &ours.db_alone, &expected.db);
    }
}

/// Sizes drawn from what the tiles, the vectors and the bands may leave over.
fn cases() -> impl Iterator<Item = Case> {
    let mut seed = 1u64;
    let mut draw = move |from: &[usize]| {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        from[(seed >> 33) as usize % from.len()]
    };
    (0..120).map(move |_| {
        let (kernel, pool) = (
            (draw(&[1, 2, 3, 5]), draw(&[1, 2, 3, 4, 5])),
            draw(&[1, 2, 3]),
        );
        let stride = draw(&[1, 1, 2]);
        let size = |kernel, room| kernel + (pool - 1 + room) * stride;
        Case {
            batch: draw(&[0, 1, 2, 5, 9]),
            size: (
                size(kernel.0, draw(&[0, 1, 4, 9])),
                size(kernel.1, draw(&[0, 2, 5, 11])),
            ),
            channels: (
                draw(&[1, 1, 2, 3, 7, 20, 33]),
                draw(&[1, 2, 3, 8, 16, 18, 20, 50, 70]),
            ),
            kernel,
            stride,
            pool,
            relu: draw(&[0, 1]) == 1,
            bias: draw(&[0, 1]) == 1,
        }
    })
}

/// Images of one channel, as in the book's first layer: pooled window by window.
fn images() -> impl Iterator<Item = Case> {
    let outputs = [1, 7, 16, 20, 33, 50];
    outputs.into_iter().enumerate().map(|(i, out)| Case {
        batch: 2,
        size: (8 + i, 13 - i),
        channels: (1, out),
        kernel: if i % 2 == 0 { (3, 3) } else { (5, 5) },
        ..LENET
    })
}

/// The book's second layer.
const LENET: Case = Case {
    batch: 3,
    size: (13, 13),
    channels: (20, 50),
    kernel: (5, 5),
    stride: 1,
    pool: 2,
    relu: true,
    bias: true,
};

struct Every(Vec<Case>);

impl WithSimd for Every {
    type Output = ();

    fn with_simd<S: Simd>(self, simd: S) {
        self.0.iter().for_each(|case| case.check(simd));
    }
}

#[test]
fn the_definition_with_the_best_instructions() {
    pulp::Arch::new().dispatch(Every(cases().chain(images()).chain([LENET]).collect()));
}

#[test]
fn the_definition_without_vectors() {
    Every(cases().step_by(4).chain(images()).collect()).with_simd(Scalar);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_definition_with_avx2() {
    if let Some(simd) = pulp::x86::V3::try_new() {
        Every(cases().chain(images()).chain([LENET]).collect()).with_simd(simd);
    }
}

/// y, dx, dw and db by the face.
fn by_the_face(case: &Case, t: &Tensors) -> [Vec<f32>; 4] {
    let d = case.direct();
    let bias = case.bias.then_some(&t.bias[..]);
    let (mut y, mut kept) = (
        vec![0.; d.dims().iter().product::<usize>()],
        vec![0.; d.kept_len()],
    );
    d.forward(&t.x, &t.weight, bias, &mut y, &mut kept);
    let mut dx = vec![0.; t.x.len()];
    let (mut dw, mut db) = (vec![f32::NAN; t.weight.len()], vec![f32::NAN; t.bias.len()]);
    let (some, w, b) = (Some(&mut dx[..]), &mut dw, &mut db);
    d.backward(&t.x, &t.weight, bias, &kept, &t.dy, some, w, b);
    [y, dx, dw, db]
}

#[test]
fn the_bits_do_not_depend_on_the_budget() {
    for batch in [1, 9, 20] {
        let case = Case { batch, ..LENET };
        let t = case.tensors();
        let of = |budget| with_budget(budget, || by_the_face(&case, &t));
        let one = of(1);
        for budget in 2..=4 {
            assert_eq!(of(budget), one);
        }
    }
}

#[test]
fn inference_keeps_nothing_and_nobody_has_to_want_dx_or_db() {
    let (d, t) = (LENET.direct(), LENET.tensors());
    let [y, _, dw, _] = by_the_face(&LENET, &t);
    let (mut y_alone, mut kept) = (vec![0.; y.len()], vec![0.; d.kept_len()]);
    d.forward(&t.x, &t.weight, Some(&t.bias), &mut y_alone, &mut []);
    assert_eq!(y_alone, y);
    d.forward(&t.x, &t.weight, Some(&t.bias), &mut y_alone, &mut kept);
    let (mut alone, bias) = (vec![0.; dw.len()], Some(&t.bias[..]));
    d.backward(
        &t.x,
        &t.weight,
        bias,
        &kept,
        &t.dy,
        None,
        &mut alone,
        &mut [],
    );
    assert_eq!(alone, dw);
}

#[test]
fn nan_stays_where_it_is_seen() {
    let mut t = LENET.tensors();
    // the last row and column are seen by no window
    for i in 0..13 {
        t.x[(i * 13 + 12) * 20] = f32::INFINITY;
        t.x[(12 * 13 + i) * 20] = f32::NAN;
    }
    let [y, dx, dw, _] = by_the_face(&LENET, &t);
    assert!([y, dx, dw].iter().flatten().all(|v| v.is_finite()));
    t.x[0] = f32::NAN;
    let [y, ..] = by_the_face(&LENET, &t);
    assert!(y[..50].iter().all(|v| v.is_nan()));
    assert!(y[50..].iter().all(|v| v.is_finite()));
}

#[test]
fn im2col_does_the_rest() {
    let g = LENET.geometry();
    assert!(Direct::new(Geometry { padding: 1, ..g }, true, 2).is_none());
    let large = Geometry {
        out_channels: 200,
        ..g
    };
    assert!(Direct::new(large, true, 2).is_none());
    assert!(Direct::new(g, true, 10).is_none());
}
