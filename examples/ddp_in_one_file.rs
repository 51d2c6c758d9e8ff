//! Data-parallel training in one file: LeNet on k devices, with candle and threads alone. Read it from top to bottom.
//!
//! Each device has a copy of the parameters and a part of each minibatch, and all take the same step. Here a device is
//! a thread on the CPU, and each gets at least one example. `cargo run --example ddp_in_one_file` shows that 2 and 3
//! devices learn the same as one. The library `data-parallel` does this too, also on GPUs. Its other lines are for
//! speed, for long runs, and for mistakes that give no error here.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use anyhow::{Context, Result, bail};
use candle_core::{Device, Tensor, Var};
use candle_nn::ops::log_softmax;

/// The network, as on one device: LeNet, from images (n, 1, 28, 28) to the scores of ten classes, (n, 10).
fn lenet(x: &Tensor, params: &[Var]) -> Result<Tensor> {
    let [w1, b1, w2, b2, w3, b3, w4, b4] = params else {
        bail!("LeNet has 8 parameters, {} were given", params.len());
    };
    let h = conv(x, w1, b1)?.relu()?.avg_pool2d(2)?; // (n, 20, 26, 26), then (n, 20, 13, 13)
    let h = conv(&h, w2, b2)?.relu()?; // (n, 50, 9, 9)
    // Windows of 2 leave out the last row and column of 9. While these are there, candle's gradient is wrong
    let h = h.narrow(2, 0, 8)?.narrow(3, 0, 8)?.avg_pool2d(2)?; // (n, 50, 4, 4)
    let h = h.flatten_from(1)?; // (n, 800)
    let h = h.matmul(w3)?.broadcast_add(b3)?.relu()?; // (n, 128)
    Ok(h.matmul(w4)?.broadcast_add(b4)?)
}

fn conv(x: &Tensor, w: &Tensor, b: &Tensor) -> Result<Tensor> {
    let h = x.conv2d(w, 0, 1, 1, 1)?; // padding 0; stride, dilation and groups 1
    Ok(h.broadcast_add(&b.reshape((1, (), 1, 1))?)?) // one number for each channel
}

/// Cross-entropy: the sum over the examples. The sums of shards can be added, their means cannot.
fn loss(scores: &Tensor, y: &Tensor) -> Result<Tensor> {
    let log_p = log_softmax(scores, 1)?.gather(&y.unsqueeze(1)?, 1)?; // of the right class
    Ok(log_p.sum_all()?.neg()?)
}

/// A device's place among the others: its number, and a channel to and from each device, itself included.
#[derive(Default)]
struct Member {
    rank: usize,
    to: Vec<Sender<Tensor>>,
    from: Vec<Receiver<Tensor>>,
}

impl Member {
    /// This device's part of a minibatch. If k does not divide n, the first shards have one example more.
    fn shard(&self, batch: &Tensor) -> Result<Tensor> {
        let (n, k) = (batch.dim(0)?, self.to.len());
        let [start, end] = [self.rank, self.rank + 1].map(|i| i * (n / k) + i.min(n % k));
        Ok(batch.narrow(0, start, end - start)?)
    }

    /// The sum of the tensors of all devices. Every device adds them in the order of the ranks, because rounding
    /// depends on the order: so all have the same bits. If another device fails, this is an error.
    fn all_reduce(&self, tensor: &Tensor) -> Result<Tensor> {
        for to in &self.to {
            to.send(tensor.detach())?; // without the graph that computed it
        }
        let mut sum = self.from[0].recv()?; // waits
        for from in &self.from[1..] {
            sum = (sum + from.recv()?)?;
        }
        Ok(sum)
    }
}

/// k members, with a channel from each to each.
fn members(k: usize) -> Vec<Member> {
    let mut members: Vec<Member> = (0..k).map(|_| Member::default()).collect();
    for i in 0..k {
        members[i].rank = i;
        for j in 0..k {
            let (to, from) = channel();
            members[i].to.push(to);
            members[j].from.push(from);
        }
    }
    members
}

type Batch = (Tensor, Tensor); // images (n, 1, 28, 28) and labels (n,)
type Trained = (Vec<Var>, Vec<f32>); // parameters, and the mean loss of each minibatch before its step

/// The program of a device. Every thread runs this function, and only `me` differs.
fn replica(me: Member, params: &[Tensor], batches: &[Batch], lr: f64) -> Result<Trained> {
    let copies = params.iter().map(|w| Var::from_tensor(&w.copy()?)); // memory of its own
    let (params, mut losses) = (copies.collect::<candle_core::Result<Vec<_>>>()?, vec![]);
    for (x, y) in batches {
        let n = x.dim(0)? as f64; // of the whole minibatch
        let l = loss(&lenet(&me.shard(x)?, &params)?, &me.shard(y)?)?;
        let grads = l.backward()?; // of this shard
        for w in &params {
            let grad = grads.get(w).context("a parameter has no gradient")?;
            let sum = me.all_reduce(grad)?; // of the whole minibatch, and the same on all devices
            w.set(&(w.as_detached_tensor() - (sum * (lr / n))?)?)?; // SGD
        }
        losses.push((me.all_reduce(&l)? / n)?.to_scalar()?);
    }
    Ok((params, losses))
}

/// Trains on k devices, with a thread for each. Returns what each has at the end.
pub fn train(params: &[Tensor], batches: &[Batch], k: usize, lr: f64) -> Result<Vec<Trained>> {
    thread::scope(|scope| {
        let start = |me| scope.spawn(move || replica(me, params, batches, lr));
        let threads: Vec<_> = members(k).into_iter().map(start).collect();
        let ends = threads.into_iter().map(|thread| thread.join());
        ends.map(|end| end.expect("no panic")).collect()
    })
}

/// Random numbers between -max and max, the same in each run.
fn random(seed: &mut u32, max: f32, shape: &[usize]) -> Result<Tensor> {
    let numbers = (0..shape.iter().product()).map(|_| {
        *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        max * ((*seed >> 8) as f32 / (1 << 23) as f32 - 1.0)
    });
    Ok(Tensor::from_vec(numbers.collect(), shape, &Device::Cpu)?)
}

/// Trains from the same parameters, on the same 20 minibatches of 32 images: on 1, 2 and 3 devices.
fn main() -> Result<()> {
    let (seed, mut params, mut batches) = (&mut 0, vec![], vec![]);
    for (max, w, b) in [(1.0, [20, 1, 3, 3], 20), (0.15, [50, 20, 5, 5], 50)] {
        params.extend([random(seed, max, &w)?, random(seed, 0.1, &[b])?]);
    }
    for (max, w, b) in [(0.1, [800, 128], 128), (0.2, [128, 10], 10)] {
        params.extend([random(seed, max, &w)?, random(seed, 0.1, &[b])?]);
    }
    let images = random(seed, 1.0, &[10, 1, 28, 28])?; // one for each class, to which examples add noise
    let y = Tensor::from_iter((0..32u32).map(|i| i % 10), &Device::Cpu)?;
    for _ in 0..20 {
        let noise = random(seed, 0.3, &[32, 1, 28, 28])?;
        batches.push(((images.index_select(&y, 0)? + noise)?, y.clone()));
    }

    let losses = |k| -> Result<_> { Ok(train(&params, &batches, k, 0.03)?.swap_remove(0).1) };
    let (one, two, three) = (losses(1)?, losses(2)?, losses(3)?);
    let mut largest = 0f32;
    println!("the loss of each step on 1, 2 and 3 devices:");
    for (step, ((a, b), c)) in one.iter().zip(two).zip(three).enumerate() {
        println!("{step:2}  {a:.6}  {b:.6}  {c:.6}");
        largest = largest.max((a - b).abs()).max((a - c).abs());
    }
    println!("largest difference: {largest:.1e}");
    Ok(())
}
