//! The three passes against their definition in f64, on every instruction set.

use super::*;
use crate::cpu::case::{Case, LENET};

/// A case with images of `size` rows and columns, and `channels` before and behind the convolution.
fn case(batch: usize, size: (usize, usize), channels: (usize, usize)) -> Case {
    Case {
        batch,
        height: size.0,
        width: size.1,
        channels: channels.0,
        out_channels: channels.1,
        kernel_height: 3,
        kernel_width: 3,
        padding: 1,
        pool: 1,
        relu: false,
        ..LENET
    }
}

impl Case {
    /// With a bias and added to gradients that are there, or neither.
    fn check_passes(&self, accumulate: bool) {
        let case = self.but(|case| case.bias = accumulate);
        let (g, t) = (case.geometry(), case.tensors());
        let before = if accumulate { 0.5 } else { f32::NAN };
        let (mut dx, mut dw) = (vec![before; t.x.len()], vec![before; t.weight.len()]);
        let mut y = vec![f32::NAN; t.dy.len()];
        let bias = accumulate.then_some(&t.bias[..]);
        forward(&g, &t.x, &t.weight, bias, false, &mut y);
        let mut positive = vec![f32::NAN; y.len()];
        forward(&g, &t.x, &t.weight, bias, true, &mut positive);
        let mut pairs = positive.iter().zip(&y);
        assert!(pairs.all(|(cut, y)| *cut == y.max(0.)), "{case:?}: ReLU");
        backward_x(&g, &t.weight, &t.dy, &mut dx, accumulate);
        backward_weight(&g, &t.x, &t.dy, &mut dw, accumulate);
        let mut expected = case.expected(&t);
        for gradient in expected[1..].iter_mut().flatten() {
            *gradient += if accumulate { 0.5 } else { 0. };
        }
        [3, 5].into_iter().for_each(|db| expected[db].clear()); // it is not Winograd's
        let results = [y, dx, dw.clone(), vec![], dw, vec![]];
        case.assert_close(&results, &expected);
    }
}

#[test]
fn all_passes_are_convolutions() {
    let narrow = [8, 13, 16, 24, 33, 40, 63, 65, 100];
    let narrow = narrow.into_iter().enumerate().flat_map(|(i, channels)| {
        let sizes = (1 + i % 3, (3 + i, 9 - i % 7));
        let case = case(sizes.0, sizes.1, (channels, narrow[(i * 4 + 3) % 9]));
        [0, 1, 2].map(|padding| case.but(|case| case.padding = padding))
    });
    let wide = [
        case(0, (5, 5), (64, 64)),
        case(0, (5, 5), (256, 64)),
        case(1, (1, 1), (64, 64)),
        case(3, (5, 3), (64, 128)),
        case(1, (9, 8), (128, 64)),
        case(3, (4, 7), (64, 192)),
        case(1, (6, 2), (256, 64)),
        case(2, (7, 4), (192, 64)),
        case(20, (8, 9), (64, 64)),
        case(300, (5, 4), (16, 24)),
    ];
    let strided = [
        ((8, 8), (64, 64)),
        ((7, 7), (64, 192)),
        ((1, 6), (16, 24)),
        ((28, 9), (65, 40)),
        ((5, 20), (192, 64)),
        ((17, 16), (8, 13)),
        ((61, 60), (24, 16)), // two partial sums of the weight's gradient
    ];
    let strided = strided.into_iter().enumerate();
    let strided = strided
        .map(|(i, (size, channels))| case(1 + i, size, channels).but(|case| case.stride = 2));
    for case in wide.into_iter().chain(narrow).chain(strided) {
        case.check_passes(false);
        case.check_passes(true);
    }
}

#[test]
fn many_channels_in_more_than_one_group_of_tiles() {
    // 1024 tiles × panels are a group, 17 blocks of weights are not kept
    case(140, (2, 1), (512, 64)).check_passes(false);
    case(65, (1, 2), (64, 1088)).check_passes(true);
    case(80, (1, 3), (512, 64))
        .but(|case| case.stride = 2)
        .check_passes(true);
    case(40, (2, 1), (64, 1088))
        .but(|case| case.stride = 2)
        .check_passes(false);
}

#[test]
fn im2col_does_the_rest() {
    let fit = case(1, (4, 4), (8, 100));
    assert!(fits(&fit.geometry()));
    let strided = case(1, (7, 8), (16, 100)).but(|c| c.stride = 2);
    assert!(fits(&strided.geometry()));
    let changes: [fn(&mut Case); 3] = [
        |c| c.padding = 0,
        |c| c.channels = 8,
        |c| (c.height, c.width) = (11, 12),
    ];
    for other in changes.map(|change| strided.but(change)) {
        assert!(!fits(&other.geometry()), "{other:?}");
    }
    let changes: [fn(&mut Case); 5] = [
        |c| c.stride = 2,
        |c| c.stride = 3,
        |c| c.padding = 3,
        |c| (c.kernel_height, c.kernel_width) = (1, 1),
        |c| (c.channels, c.out_channels) = (7, 64),
    ];
    for other in changes.map(|change| fit.but(change)) {
        assert!(!fits(&other.geometry()), "{other:?}");
    }
}
