//! Work is cut into tasks and partial sums by its shape. Here are shapes that are cut in each way, which random
//! networks are too small for: the results are the reference's, and the same bits on any number of threads.

use crate::both::{Both, assert_both};
use crate::support::{bits, labels, pass, random, tensors, upstream, variables};
use candle_core::{Result, Tensor};
use functional::threads::with_budget;

/// Sums of thousands of products.
const TOLERANCE: f64 = 3e-5;

fn check(inputs: &[Tensor], network: impl Fn(&[Tensor]) -> Result<Both>) {
    // memory that is used again holds NaN after this: what an operation forgets to write would be found
    let nan = inputs.iter().map(|x| x * f64::NAN);
    let nan = variables(&nan.collect::<Result<Vec<_>>>().unwrap()).unwrap();
    let y = network(&tensors(&nan)).unwrap().ours();
    pass(&nan, &y, upstream(y.dims())).unwrap();
    with_budget(2, || assert_both(inputs, TOLERANCE, &network));
    let all_bits = |threads: usize| {
        with_budget(threads, || {
            let vars = variables(inputs).unwrap();
            let y = network(&tensors(&vars)).unwrap().ours();
            let results = pass(&vars, &y, upstream(y.dims())).unwrap();
            results.iter().map(bits).collect::<Vec<_>>()
        })
    };
    let alone = all_bits(1);
    for threads in [2, 3, 5] {
        assert!(all_bits(threads) == alone, "{threads} threads");
    }
}

/// In rows, columns and partial sums, with weights of both orders; and a weight that is used twice, whose gradient is
/// added to what is there.
#[test]
fn linear_layers() {
    for (rows, inputs, outputs) in [
        (1, 5000, 3),
        (3, 1, 700),
        (16, 784, 128),
        (70, 3000, 33),
        (129, 257, 300),
        (300, 40, 17),
        (2049, 65, 66),
    ] {
        let x = random((rows, inputs), 1);
        let bias = random(outputs, 3);
        let by_outputs = [x.clone(), random((outputs, inputs), 2), bias.clone()];
        check(&by_outputs, |t| {
            Both::new(&t[0])?.linear(&t[1], Some(&t[2]))
        });
        check(&[x, random((inputs, outputs), 2), bias], |t| {
            let x = Both::new(&t[0])?;
            x.matmul(&t[1], Some(&t[2]))?.plus(&x.matmul(&t[1], None)?)
        });
    }
}

/// By im2col: a gradient of the weight in parts of the outputs, in partial sums of several tiles, and of one tile.
#[test]
fn convolutions_by_im2col() {
    for (x, weight, stride, padding) in [
        ((3, 9, 7, 40), (300, 40, 1, 1), 2, 0),
        ((2, 4, 4, 260), (513, 260, 1, 1), 2, 0),
        ((24, 17, 16, 5), (6, 5, 3, 3), 1, 1),
        ((1, 40, 41, 3), (140, 3, 5, 5), 3, 2),
        ((7, 2, 3, 17), (129, 17, 2, 2), 1, 0),
    ] {
        let inputs = [random(x, 1), random(weight, 2), random(weight.0, 3)];
        check(&inputs, |t| {
            Both::new(&t[0])?.conv2d(&t[1], Some(&t[2]), stride, padding)
        });
    }
}

/// By Winograd's algorithm: channels that are no multiple of 16 in several panels, halves of panels, and few tiles in
/// small chunks.
#[test]
fn convolutions_by_winograd() {
    for (x, weight, stride) in [
        ((2, 7, 7, 130), (257, 130, 3, 3), 1),
        ((9, 8, 8, 50), (120, 50, 3, 3), 1),
        ((40, 13, 9, 17), (24, 17, 3, 3), 1),
        ((18, 8, 8, 65), (200, 65, 3, 3), 2),
        ((260, 4, 4, 9), (8, 9, 3, 3), 1),
        ((7, 13, 13, 130), (140, 130, 3, 3), 1),
    ] {
        let inputs = [random(x, 1), random(weight, 2)];
        check(&inputs, |t| {
            Both::new(&t[0])?.conv2d(&t[1], None, stride, 1)
        });
    }
}

/// Each task has some of the rows, of which few or all are read.
#[test]
fn embeddings() {
    for (vocabulary, width, count) in [(1, 5, 40), (5, 3, 2), (33, 70, 500), (1000, 16, 700)] {
        let tokens = labels(count, vocabulary, 4);
        check(&[random((vocabulary, width), 1)], |t| {
            let rows = Both::new(&t[0])?;
            rows.embedding(&t[0], &tokens)?
                .plus(&rows.embedding(&t[0], &tokens)?)
        });
    }
}
