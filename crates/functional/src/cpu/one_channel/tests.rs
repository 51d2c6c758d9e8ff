//! Against the definition in f64, for shapes that leave a remainder everywhere.

use super::{Forward, OneChannel, WeightGradient};
use crate::cpu::case::{Case, LENET, Tensors, instructions};
use crate::cpu::gradient::{At, Grad, Pass};
use crate::kernel::Kernel;
use crate::ops::convolution::Convolution;
use pulp::{Simd, WithSimd};

/// LeNet's first layer, on smaller images.
const FIRST: Case = Case {
    batch: 20,
    size: (12, 13),
    channels: (1, 20),
    kernel: (3, 3),
    ..LENET
};

/// Batches, sizes and channels that leave something over.
fn cases() -> impl Iterator<Item = Case> {
    let outputs = [1, 7, 16, 20, 33, 50];
    let odd = outputs.into_iter().enumerate().map(|(i, out)| Case {
        batch: [2, 0, 9, 1, 5, 17][i],
        size: (8 + i, 13 - i),
        channels: (1, out),
        kernel: if i % 2 == 0 { (3, 3) } else { (5, 5) },
        bias: i % 3 > 0,
        ..FIRST
    });
    odd.chain([FIRST])
}

fn op(case: &Case) -> Convolution {
    Convolution {
        geometry: case.geometry(),
        relu: case.relu,
        pool: case.pool,
    }
}

impl Case {
    fn layer(&self) -> OneChannel {
        OneChannel::new(&op(self)).expect("it fits")
    }

    fn inputs<'t>(&self, t: &'t Tensors) -> Vec<&'t [f32]> {
        let mut x = vec![&t.x[..], &t.weight];
        x.extend(self.bias.then_some(&t.bias[..]));
        x
    }

    /// y, dx, dw and db of the kernel.
    fn by_the_kernel(&self, t: &Tensors) -> [Vec<f32>; 4] {
        let (layer, x) = (self.layer(), self.inputs(t));
        let pass = Pass {
            stream: (),
            keep: true,
            norms: None,
        };
        let mut y = vec![f32::NAN; t.dy.len()];
        layer.forward(&pass, &x, &mut y).expect("it is computed");
        let mut dx: Vec<Grad<'_>> = x.iter().map(|x| Grad::Empty((), x.len())).collect();
        let at = At {
            x: &x,
            y: &y,
            saved: &[],
        };
        let dy = crate::cpu::buffer::Buffer::copy_of(&t.dy);
        layer
            .backward(&pass, at, dy, &mut dx)
            .expect("it is computed");
        let mut dx = dx.into_iter().map(|dx| match dx {
            Grad::Sum(sum) => sum.to_vec(),
            _ => panic!("each input has a gradient"),
        });
        let mut next = || dx.next().unwrap_or_default();
        let (dx, dw, db) = (next(), next(), next());
        [y, dx, dw, db]
    }

    /// What `S` computes, and dx by the kernel.
    fn check_one_channel<S: Simd>(&self, simd: S) {
        let (t, layer) = (self.tensors(), self.layer());
        let bias = self.bias.then_some(&t.bias[..]);
        let (x, weight) = (&t.x[..], &t.weight[..]);
        let mut y = vec![f32::NAN; t.dy.len()];
        let forward = Forward {
            layer: &layer,
            x,
            weight,
            bias,
            y: &mut y,
        };
        forward.with_simd(simd);
        let backward = WeightGradient {
            layer: &layer,
            x,
            weight,
            bias,
            dy: &t.dy,
        };
        let sums = backward.with_simd(simd);
        let (taps, o) = (layer.g.taps(), layer.g.out_channels);
        let dw_alone = (0..weight.len()).map(|i| sums.taps()[i % taps * sums.wide + i / taps]);
        let dw_alone = dw_alone.collect();
        let db_alone = match self.bias {
            true => sums.bias()[..o].to_vec(),
            false => vec![],
        };
        let [_, dx, dw, db] = self.by_the_kernel(&t);
        self.assert_close(&[y, dx, dw, db, dw_alone, db_alone], &self.expected(&t));
    }
}

struct Every;

impl WithSimd for Every {
    type Output = ();

    fn with_simd<S: Simd>(self, simd: S) {
        cases().for_each(|case| case.check_one_channel(simd));
    }
}

#[test]
fn the_definition_on_all_instructions() {
    for arch in instructions() {
        arch.dispatch(Every);
    }
}

#[test]
fn nan_stays_where_it_is_seen() {
    let mut t = FIRST.tensors();
    // the last column is seen by no window
    for row in 0..12 {
        t.x[row * 13 + 12] = f32::NAN;
    }
    let [y, dx, dw, _] = FIRST.by_the_kernel(&t);
    assert!([y, dx, dw].iter().flatten().all(|v| v.is_finite()));
    t.x[0] = f32::NAN;
    let [y, ..] = FIRST.by_the_kernel(&t);
    assert!(y[..20].iter().all(|v| v.is_nan()));
    assert!(y[20..].iter().all(|v| v.is_finite()));
}

#[test]
fn im2col_does_the_rest() {
    assert!(OneChannel::new(&op(&FIRST)).is_some());
    let changes: [fn(&mut Case); 3] = [|c| c.padding = 1, |c| c.relu = false, |c| c.pool = 3];
    for other in changes.map(|change| FIRST.but(change)) {
        assert!(OneChannel::new(&op(&other)).is_none(), "{other:?}");
    }
}
