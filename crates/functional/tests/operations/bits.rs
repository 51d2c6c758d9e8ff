//! The thread budget changes no bit of a result.

use crate::support::{labels, random, run};
use candle_core::{DType, Device, Result, Tensor, Var};
use functional::Value;
use functional::threads::with_budget;

fn bits(inputs: &[Tensor], f: impl Fn(&[Tensor]) -> Result<Value>) -> Vec<Vec<u32>> {
    let results = run(inputs, f).unwrap();
    results.iter().map(crate::support::bits).collect()
}

fn assert_same_bits(inputs: &[Tensor], f: impl Fn(&[Tensor]) -> Result<Value>) {
    let expected = with_budget(1, || bits(inputs, &f));
    for budget in 2..=4 {
        let actual = with_budget(budget, || bits(inputs, &f));
        assert!(
            actual == expected,
            "a budget of {budget} threads changed the bits"
        );
    }
}

#[test]
fn conv2d() {
    for (shape, weight, stride, padding) in [
        ((13, 28, 28, 1), (20, 1, 3, 3), 1, 0),
        ((13, 13, 13, 20), (50, 20, 5, 5), 1, 0),
        ((5, 14, 15, 16), (32, 16, 3, 3), 2, 1),
        ((9, 14, 14, 16), (24, 16, 1, 1), 1, 0),
    ] {
        let inputs = [random(shape, 1), random(weight, 2), random(weight.0, 3)];
        assert_same_bits(&inputs, |t| {
            Value::new(&t[0])?.conv2d(&t[1], Some(&t[2]), stride, padding)
        });
    }
}

#[test]
fn pooling_and_orders() {
    let x = [random((7, 9, 11, 20), 1)];
    assert_same_bits(&x, |t| Value::new(&t[0])?.avg_pool2d(2, 2));
    assert_same_bits(&x, |t| Value::new(&t[0])?.max_pool2d(3, 2));
    assert_same_bits(&x, |t| Value::new(&t[0])?.global_avg_pool2d());
    assert_same_bits(&x, |t| Value::new(&t[0])?.flatten());
    assert_same_bits(&x, |t| Value::new(&t[0])?.nhwc());
}

#[test]
fn linear() {
    let inputs = [random((256, 800), 1), random((128, 800), 2), random(128, 3)];
    assert_same_bits(&inputs, |t| Value::new(&t[0])?.linear(&t[1], Some(&t[2])));
}

#[test]
fn batch_norm2d() {
    let inputs = [random((9, 14, 14, 33), 1), random(33, 2), random(33, 3)];
    for train in [true, false] {
        assert_same_bits(&inputs, |t| {
            let mean = Var::zeros(33, DType::F32, &Device::Cpu)?;
            let var = Var::ones(33, DType::F32, &Device::Cpu)?;
            Value::new(&t[0])?.batch_norm2d(&t[1], &t[2], &mean, &var, train)
        });
    }
}

#[test]
fn relu_and_losses() {
    assert_same_bits(&[random(100_000, 1)], |t| Value::new(&t[0])?.relu());
    let y = labels(300, 10, 2);
    let y_hat = [random((300, 10), 1)];
    assert_same_bits(&y_hat, |t| {
        functional::cross_entropy(&Value::new(&t[0])?, &y)
    });
    let many = [random((3000, 40), 1)];
    assert_same_bits(&many, |t| Value::new(&t[0])?.sum());
    assert_same_bits(&many, |t| Value::new(&t[0])?.mean());
}

/// Operations called from several threads at once do not meet.
#[test]
fn on_threads_of_their_own() {
    let inputs = [random((13, 13, 13, 20), 1), random((50, 20, 5, 5), 2)];
    let step = || bits(&inputs, |t| Value::new(&t[0])?.conv2d(&t[1], None, 1, 0));
    let expected = step();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..5)
            .map(|n| scope.spawn(move || with_budget(n, step)))
            .collect();
        for thread in threads {
            assert!(thread.join().unwrap() == expected);
        }
    });
}
