//! The thread budget changes no bit of a result.

use crate::support::{bits, labels, random, run};
use candle_core::{DType, Device, Result, Tensor, Var};
use functional::threads::with_budget;
use functional::{Value, cross_entropy};

fn all_bits(inputs: &[Tensor], f: impl Fn(&[Tensor]) -> Result<Value>) -> Vec<Vec<u32>> {
    run(inputs, f).unwrap().iter().map(bits).collect()
}

fn assert_same_bits(what: &str, inputs: &[Tensor], f: impl Fn(&[Tensor]) -> Result<Value>) {
    let expected = with_budget(1, || all_bits(inputs, &f));
    for budget in 2..=4 {
        let same = with_budget(budget, || all_bits(inputs, &f)) == expected;
        assert!(same, "{what}: other bits with {budget} threads");
    }
}

/// By each algorithm: im2col, Winograd's, and with ReLU and pooling, of one channel and of Winograd's.
#[test]
fn convolutions() {
    for (shape, weight, stride, padding, pool) in [
        ((13, 28, 28, 1), (20, 1, 3, 3), 1, 0, 0),
        ((13, 13, 13, 20), (50, 20, 5, 5), 1, 0, 0),
        ((5, 14, 15, 16), (32, 16, 3, 3), 2, 1, 0),
        ((13, 14, 15, 64), (192, 64, 3, 3), 2, 1, 0),
        ((5, 13, 14, 4), (32, 4, 3, 3), 2, 1, 0),
        ((9, 14, 14, 16), (24, 16, 1, 1), 1, 0, 0),
        ((9, 21, 21, 64), (64, 64, 3, 3), 1, 1, 0),
        ((40, 7, 7, 64), (192, 64, 3, 3), 1, 1, 0),
        ((40, 15, 14, 16), (24, 16, 3, 3), 1, 0, 0),
        ((9, 7, 7, 100), (40, 100, 3, 3), 1, 2, 0),
        ((1, 28, 28, 1), (20, 1, 3, 3), 1, 0, 2),
        ((20, 28, 28, 1), (20, 1, 3, 3), 1, 0, 2),
        ((1, 13, 13, 20), (50, 20, 5, 5), 1, 0, 2),
        ((70, 13, 13, 20), (50, 20, 5, 5), 1, 0, 2),
    ] {
        let inputs = [random(shape, 1), random(weight, 2), random(weight.0, 3)];
        let what = format!("{shape:?}, {weight:?}, pool {pool}");
        assert_same_bits(&what, &inputs, |t| {
            let y = Value::new(&t[0])?.conv2d(&t[1], Some(&t[2]), stride, padding)?;
            match pool {
                0 => Ok(y),
                _ => y.relu()?.avg_pool2d(pool, pool),
            }
        });
    }
}

#[test]
fn transformers() {
    let shapes = [vec![50, 48], vec![48], vec![48], vec![144, 48]];
    let inputs: Vec<Tensor> = shapes.iter().map(|shape| random(&shape[..], 1)).collect();
    let tokens = labels(9 * 70, 50, 2).reshape((9, 70)).unwrap();
    assert_same_bits("a transformer", &inputs, |t| {
        let x = Value::new(&tokens)?.embedding(&t[0])?;
        let x = x.layer_norm(&t[1], &t[2])?.linear(&t[3], None)?;
        x.causal_attention(3)?.gelu()?.dropout(0.1, 3)
    });
}

type Operation = fn(&Value) -> Result<Value>;

#[test]
fn operations_of_one_value() {
    let images = random((7, 9, 11, 20), 1);
    let y = labels(7, 9 * 11 * 20, 2);
    let operations: [(&str, Operation); 8] = [
        ("avg_pool2d", |x| x.avg_pool2d(2, 2)),
        ("max_pool2d", |x| x.max_pool2d(3, 2)),
        ("global_avg_pool2d", Value::global_avg_pool2d),
        ("flatten", Value::flatten),
        ("nhwc", Value::nhwc),
        ("relu", Value::relu),
        ("sum", Value::sum),
        ("mean", Value::mean),
    ];
    for (name, f) in operations {
        let many = [images.repeat(9).unwrap()];
        assert_same_bits(name, &many, |t| f(&Value::new(&t[0])?));
    }
    let loss = |t: &[Tensor]| cross_entropy(&Value::new(&t[0])?.flatten()?, &y);
    assert_same_bits("cross_entropy", &[images], loss);
}

#[test]
fn linear() {
    let inputs = [random((256, 800), 1), random((128, 800), 2), random(128, 3)];
    let linear = |t: &[Tensor]| Value::new(&t[0])?.linear(&t[1], Some(&t[2]));
    assert_same_bits("linear", &inputs, linear);
}

#[test]
fn batch_norm2d() {
    let inputs = [random((9, 14, 14, 33), 1), random(33, 2), random(33, 3)];
    for train in [true, false] {
        assert_same_bits(&format!("train {train}"), &inputs, |t| {
            let mean = Var::zeros(33, DType::F32, &Device::Cpu)?;
            let var = Var::ones(33, DType::F32, &Device::Cpu)?;
            Value::new(&t[0])?.batch_norm2d([&t[1], &t[2]], [&mean, &var], None, train)
        });
    }
}
