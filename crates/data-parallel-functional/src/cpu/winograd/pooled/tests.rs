//! Against the definition in f64, for shapes that leave a remainder everywhere, on every instruction set.

use super::*;
use crate::cpu::case::{Case, LENET, Results, Tensors};

impl Case {
    fn by_winograd(&self, t: &Tensors) -> Results<f32> {
        let pooled = Pooled::new(&self.op()).expect("it fits");
        // every result is written, whatever was there
        let nan = |len: usize| vec![f32::NAN; len];
        let (mut y, mut positive) = (nan(t.dy.len()), nan(t.dy.len()));
        let bias = self.bias.then_some(&t.bias[..]);
        pooled.convolve(&t.x, &t.weight, bias, &mut y, &mut positive);
        let backward = Backward {
            pooled: &pooled,
            x: &t.x,
            weight: &t.weight,
            positive: &positive,
            dy: &t.dy,
        };
        let mut dx = nan(t.x.len());
        let [(mut dw, mut db), (mut dw_alone, mut db_alone)] =
            [(); 2].map(|()| (nan(t.weight.len()), nan(t.bias.len())));
        backward.run(Some(&mut dx), &mut dw, &mut db);
        backward.run(None, &mut dw_alone, &mut db_alone);
        [y, dx, dw, db, dw_alone, db_alone]
    }

    fn check_winograd(&self) {
        let t = self.tensors();
        self.assert_close(&self.by_winograd(&t), &self.expected(&t));
    }
}

/// Images that end anywhere in a tile, a window or a vector.
fn cases() -> Vec<Case> {
    // images of `size` rows and columns, and `channels` before and behind the convolution
    let case = |batch, size: (usize, usize), channels: (usize, usize), bias| Case {
        batch,
        height: size.0,
        width: size.1,
        channels: channels.0,
        out_channels: channels.1,
        bias,
        ..LENET
    };
    vec![
        LENET,
        case(0, (8, 8), (8, 8), true),
        case(1, (6, 6), (8, 1), true),
        case(2, (7, 9), (17, 33), false),
        case(9, (8, 11), (20, 50), false),
        case(1, (17, 6), (64, 64), true),
        case(5, (10, 19), (9, 16), true),
        case(33, (12, 12), (16, 3), true),
    ]
}

#[test]
fn results_are_the_definition() {
    cases().iter().for_each(Case::check_winograd);
}

/// A sample's y and dx do not depend on the others in its batch, to the bit: k replicas compute what
/// one computes.
#[test]
fn no_bit_depends_on_the_rest_of_the_batch() {
    let case = Case { batch: 40, ..LENET };
    let t = case.tensors();
    let [all_y, all_dx, ..] = case.by_winograd(&t);
    let (x, y) = (t.x.len() / 40, t.dy.len() / 40);
    let part = Tensors {
        x: t.x[3 * x..20 * x].to_vec(),
        dy: t.dy[3 * y..20 * y].to_vec(),
        weight: t.weight.clone(),
        bias: t.bias.clone(),
    };
    let [some_y, some_dx, ..] = Case { batch: 17, ..LENET }.by_winograd(&part);
    assert!(some_y == all_y[3 * y..20 * y]);
    assert!(some_dx == all_dx[3 * x..20 * x]);
}

#[test]
fn nan_stays_where_it_is_seen() {
    for side in [13, 11] {
        let case = LENET.but(|case| (case.height, case.width) = (side, side));
        let mut t = case.tensors();
        // the last row and column are seen by no window
        for i in 0..side {
            t.x[(i * side + side - 1) * 20] = f32::INFINITY;
            t.x[((side - 1) * side + i) * 20] = f32::NAN;
        }
        let [y, dx, dw, ..] = case.by_winograd(&t);
        assert!([y, dx, dw].iter().flatten().all(|v| v.is_finite()));
        t.x[0] = f32::NAN;
        let ([y, ..], sample) = (case.by_winograd(&t), t.dy.len() / 3);
        assert!(y[..50].iter().all(|v| v.is_nan()));
        assert!(y[sample - 50..].iter().all(|v| v.is_finite()));
    }
}

/// Where the weights meet nothing but zeros and there is no bias, as on the black background of the
/// book's images before the first step, z is 0, and ReLU has no gradient there: for the bias, the
/// rounding of the others in a tile would make a difference of a percent.
#[test]
fn zeros_stay_zeros() {
    for bias in [None, Some(0.), Some(1e-9), Some(-1e-9)] {
        let case = LENET.but(|case| case.bias = bias.is_some());
        let mut t = case.tensors();
        t.bias.fill(bias.unwrap_or(0.));
        for (i, x) in t.x.iter_mut().enumerate() {
            let (row, column) = (i / (13 * 20) % 13, i / 20 % 13);
            // a window that covers any other pixel has one at its first tap: z is odd or 0
            if row > 3 || column > 5 {
                *x = 0.;
            }
        }
        let results = case.by_winograd(&t);
        case.assert_close(&results, &case.expected(&t));
        let dark = bias.unwrap_or(0.).max(0.);
        assert!(results[0][400..800].iter().all(|&y| y == dark));
        // 0 · NaN is not 0
        t.weight[0] = f32::NAN;
        let [y, ..] = case.by_winograd(&t);
        assert!(y.chunks_exact(50).all(|y| y[0].is_nan()));
    }
}

#[test]
fn others_do_the_rest() {
    assert!(Pooled::new(&LENET.op()).is_some());
    let changes: [fn(&mut Case); 8] = [
        |c| c.relu = false,
        |c| c.pool = 3,
        |c| c.padding = 1,
        |c| c.stride = 2,
        |c| c.channels = 7,
        |c| c.out_channels = 65,
        |c| c.kernel_width = 3,
        |c| c.height = 5,
    ];
    for other in changes.map(|change| LENET.but(change)) {
        assert!(Pooled::new(&other.op()).is_none(), "{other:?}");
    }
}
