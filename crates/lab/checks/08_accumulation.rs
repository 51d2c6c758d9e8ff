// Four steps beside another device: when `allreduce` is called, and w, b and `sums` after each step.

use std::cell::RefCell;

use anyhow::{Result, ensure};

use super::exercise::{Replica, minibatch};

const LR: f64 = 0.05;
/// Minibatches of 1, 2 and 1 examples (x, y).
const MINIBATCHES: [&[(f64, f64)]; 3] = [&[(1., 3.)], &[(2., -1.), (0.5, 2.)], &[(-1., 0.)]];
/// The `sums` of the other device: its gradients of w and b, and its 5 examples.
const OTHER: [f64; 3] = [-7.0, 4.0, 5.0];

pub fn check() -> Result<()> {
    let mut replica = Replica {
        w: 0.5,
        b: -0.25,
        sums: [0.0; 3],
        minibatches: 0,
    };
    // each step also shows what the step before has left
    [3, 3, 2, 1].iter().try_for_each(|n| step(&mut replica, *n))
}

/// Takes a step with the first `n` minibatches.
fn step(replica: &mut Replica, n: usize) -> Result<()> {
    let (w, b) = (replica.w, replica.b);
    let calls = RefCell::new(Vec::new());
    for (i, examples) in (1..=n).zip(MINIBATCHES) {
        minibatch(replica, examples, n, LR, |sums| {
            calls.borrow_mut().push(i);
            *sums = add(*sums, OTHER);
        });
    }
    let calls = calls.into_inner();
    let why = match calls.len() {
        0 if w != 0.5 => " Does `minibatches` begin at 0 again after a step?".to_owned(),
        0 | 1 => String::new(),
        times => format!(" So the gradients of minibatch 1 are summed {times} times."),
    };
    ensure!(
        calls == [n],
        "Call `allreduce` once in each step, with the last of its {n} minibatches.{why}\n  \
         yours: calls with the minibatches {calls:?}\n  right: a call with [{n}]"
    );

    // w and b after a step with these sums and those of the other device
    let stepped = |[dw, db, len]: [f64; 3]| [w - LR * dw / len, b - LR * db / len];
    let after = |all: &[[f64; 3]]| stepped(all.iter().copied().fold(OTHER, add));
    let each = Vec::from_iter(MINIBATCHES[..n].iter().map(|examples| sums(w, b, examples)));
    let means = Vec::from_iter(each.iter().map(|[dw, db, len]| [dw / len, db / len, 1.0]));
    let (yours, right) = ([replica.w, replica.b], after(&each));
    let is = |other: [f64; 2]| (0..2).all(|i| (yours[i] - other[i]).abs() < 1e-9);
    let uncounted = Vec::from_iter(each.iter().map(|[dw, db, _]| [*dw, *db, 0.0]));
    let why = if is(after(&means)) {
        "This is the mean of the means. Divide once, by all examples."
    } else if is(after(&uncounted)) {
        "`sums[2]` does not count the examples of this device."
    } else if is(after(&each[n - 1..])) {
        "Only the gradients of the last minibatch are in it."
    } else {
        "It should be the step of one minibatch with the examples of all devices."
    };
    ensure!(
        is(right),
        "After a step of {n} minibatches, w and b are wrong. {why}\n  yours: {yours:.4?}\n  right: {right:.4?}"
    );
    let left = replica.sums;
    ensure!(
        left == [0.0; 3],
        "After a step, `sums` is {left:.4?}, but should be zeros. So the next step would count these again."
    );
    Ok(())
}

/// The right `sums` of some examples.
fn sums(w: f64, b: f64, examples: &[(f64, f64)]) -> [f64; 3] {
    let error = |(x, y): &(f64, f64)| 2.0 * (w * x + b - y);
    let each = examples.iter().map(|xy| [error(xy) * xy.0, error(xy), 1.0]);
    each.fold([0.0; 3], add)
}

fn add(a: [f64; 3], b: [f64; 3]) -> [f64; 3] {
    [a[0] + b[0], a[1] + b[1], a[2] + b[2]]
}
