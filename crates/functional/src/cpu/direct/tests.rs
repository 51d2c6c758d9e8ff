//! Against the definition in f64, for shapes that leave a remainder everywhere.

use super::passes::{Backward, Forward};
use super::{Direct, Geometry};
use crate::cpu::budget::with_budget;
use crate::cpu::case::{Case, LENET, Results, Tensors};
use pulp::{Scalar, Simd, WithSimd};

/// Elements of y.
fn outputs(d: &Direct) -> usize {
    d.g.batch * d.pooled.0 * d.pooled.1 * d.g.out_channels
}

impl Case {
    fn direct(&self) -> Direct {
        Direct::new(self.geometry(), self.relu, self.pool).expect("it fits")
    }

    /// What `S` computes.
    fn computed<S: Simd>(&self, simd: S, t: &Tensors) -> Results<f32> {
        let d = self.direct();
        let (x, weight, dy) = (&t.x[..], &t.weight[..], &t.dy[..]);
        let bias = self.bias.then_some(&t.bias[..]);
        let mut kept = vec![f32::NAN; d.kept_len()];
        // every result is written, whatever was there
        let mut y = vec![f32::NAN; outputs(&d)];
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
        self.computed(simd, &t)
            .assert_close(&self.expected(&t), 1e-5, self);
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
    let (mut y, mut kept) = (vec![0.; outputs(&d)], vec![0.; d.kept_len()]);
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
fn inference_keeps_nothing_and_dx_and_db_are_optional() {
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
