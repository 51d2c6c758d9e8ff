//! Work is cut into tasks and partial sums by its shape. Here are shapes that are cut in each way, which random
//! networks are too small for.

use crate::both::{Both, assert_both};
use crate::support::{labels, pass, random, tensors, upstream, variables};
use candle_core::{Result, Tensor};
use functional::threads::with_budget;

/// Sums of thousands of products.
const TOLERANCE: f64 = 3e-5;

pub fn check(inputs: &[Tensor], network: impl Fn(&[Tensor]) -> Result<Both>) {
    // memory that is used again holds NaN after this: what an operation forgets to write would be found
    let nan = inputs.iter().map(|x| x * f64::NAN);
    let nan = variables(&nan.collect::<Result<Vec<_>>>().unwrap()).unwrap();
    let y = network(&tensors(&nan)).unwrap().ours();
    pass(&nan, &y, upstream(y.dims())).unwrap();
    with_budget(2, || assert_both(inputs, TOLERANCE, &network));
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
