//! Against the definition in f64, for shapes that leave a remainder everywhere.

use super::OneChannel;
use crate::cpu::case::{Case, LENET, Tensors};
use crate::cpu::gradient::{At, Grad, Pass};
use crate::kernel::Kernel;

/// LeNet's first layer, on smaller images.
const FIRST: Case = Case {
    batch: 20,
    height: 12,
    width: 13,
    channels: 1,
    out_channels: 20,
    kernel_height: 3,
    kernel_width: 3,
    ..LENET
};

/// Batches, sizes and channels that leave something over.
fn cases() -> impl Iterator<Item = Case> {
    let outputs = [1, 7, 16, 20, 33, 50];
    let odd = outputs.into_iter().enumerate().map(|(i, out_channels)| {
        let kernel = if i % 2 == 0 { 3 } else { 5 };
        Case {
            batch: [2, 0, 9, 1, 5, 17][i],
            height: 8 + i,
            width: 13 - i,
            out_channels,
            kernel_height: kernel,
            kernel_width: kernel,
            bias: i % 3 > 0,
            ..FIRST
        }
    });
    odd.chain([FIRST])
}

impl Case {
    /// y, dx, dw and db of the kernel; no dx unless it is wanted.
    fn by_the_kernel(&self, t: &Tensors, with_dx: bool) -> [Vec<f32>; 4] {
        let layer = OneChannel::new(&self.op()).expect("it fits");
        let mut x = vec![&t.x[..], &t.weight];
        x.extend(self.bias.then_some(&t.bias[..]));
        let pass = Pass {
            stream: (),
            keep: true,
            norms: None,
        };
        let mut y = vec![f32::NAN; t.dy.len()];
        layer.forward(&pass, &x, &mut y).expect("it is computed");
        let mut dx: Vec<Grad<'_>> = x.iter().map(|x| Grad::Empty((), x.len())).collect();
        if !with_dx {
            dx[0] = Grad::Unwanted;
        }
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
            _ => vec![],
        });
        let mut next = || dx.next().unwrap_or_default();
        let (dx, dw, db) = (next(), next(), next());
        [y, dx, dw, db]
    }
}

#[test]
fn results_are_the_definition() {
    for case in cases() {
        let t = case.tensors();
        let [y, dx, dw, db] = case.by_the_kernel(&t, true);
        let [_, _, dw_alone, db_alone] = case.by_the_kernel(&t, false);
        let results = [y, dx, dw, db, dw_alone, db_alone];
        case.assert_close(&results, &case.expected(&t));
    }
}

#[test]
fn nan_stays_where_it_is_seen() {
    let mut t = FIRST.tensors();
    // the last column is seen by no window
    for row in 0..12 {
        t.x[row * 13 + 12] = f32::NAN;
    }
    let [y, dx, dw, _] = FIRST.by_the_kernel(&t, true);
    assert!([y, dx, dw].iter().flatten().all(|v| v.is_finite()));
    t.x[0] = f32::NAN;
    let [y, ..] = FIRST.by_the_kernel(&t, true);
    assert!(y[..20].iter().all(|v| v.is_nan()));
    assert!(y[20..].iter().all(|v| v.is_finite()));
}

#[test]
fn im2col_does_the_rest() {
    assert!(OneChannel::new(&FIRST.op()).is_some());
    let changes: [fn(&mut Case); 3] = [|c| c.padding = 1, |c| c.relu = false, |c| c.pool = 3];
    for other in changes.map(|change| FIRST.but(change)) {
        assert!(OneChannel::new(&other.op()).is_none(), "{other:?}");
    }
}
