// 8. Gradient accumulation: several minibatches, then one step
//
// A large minibatch may need more memory than a device has. Then a device adds
// up the gradients of `n` small minibatches before it takes one step. The step
// must be equal to the step of one minibatch with all these examples. The book
// has no such step. `concise --accumulate` does the same.
//
// The network is y = w · x + b. Its loss is the sum of the squared errors of a
// minibatch. The minibatches may have different sizes. So the step divides the
// sum of all gradients by the number of all examples. `sums` has three
// elements: the gradient of w, the gradient of b, and the number of examples.
// They are 0 before the first minibatch, and 0 again after the step.
//
// Each device calls `minibatch` for each of its minibatches. `backward` adds
// the gradients of a minibatch to the first two elements of `sums`. `allreduce`
// replaces each element by its sum over all devices. It takes long, so call it
// only once for `n` minibatches.

pub struct Replica {
    pub w: f64,
    pub b: f64,
    pub sums: [f64; 3],
    /// Number of minibatches since the last step.
    pub minibatches: usize,
}

pub fn minibatch(
    replica: &mut Replica,
    examples: &[(f64, f64)],
    n: usize,
    lr: f64,
    allreduce: impl Fn(&mut [f64; 3]),
) {
    // gap: todo!("add up this minibatch, and take the step if it is the last of `n`")
    backward(replica, examples);
    replica.sums[2] += examples.len() as f64;
    replica.minibatches += 1;
    if replica.minibatches % n == 0 {
        allreduce(&mut replica.sums);
        let [dw, db, all] = replica.sums;
        replica.w -= lr * dw / all;
        replica.b -= lr * db / all;
        replica.sums = [0.0; 3];
    }
    // end of gap
}

/// Adds the gradients of the sum of (w · x + b - y)² over the examples (x, y).
pub fn backward(replica: &mut Replica, examples: &[(f64, f64)]) {
    for (x, y) in examples {
        let error = replica.w * x + replica.b - y;
        replica.sums[0] += 2.0 * error * x;
        replica.sums[1] += 2.0 * error;
    }
}
