//! The all-reduce alone, and AdamW on it, without a trainer.

use data_parallel::collective::{self, GroupOptions, Member};
use data_parallel::functional::{BucketMemory, Gradients, OptimizerState, Update};
use data_parallel::prelude::*;

/// What `f` returns on each of `k` threads, with a member of one group.
fn on_threads<T: Send>(k: usize, f: impl Fn(Member) -> Result<T> + Sync) -> Result<Vec<T>> {
    std::thread::scope(|scope| {
        let members = collective::group(k, GroupOptions::default()).into_iter();
        let threads: Vec<_> = members.map(|m| scope.spawn(|| f(m))).collect();
        let ended = threads.into_iter().map(|t| t.join().expect("no panic"));
        ended.collect()
    })
}

#[test]
fn three_threads_sum() -> Result<()> {
    let sums = on_threads(3, |mut member| {
        let own = vec![member.rank() as f32, 1.0];
        Ok(member.all_reduce(own)?)
    })?;
    assert_eq!(sums, vec![vec![3.0, 3.0]; 3]);
    Ok(())
}

/// y = 2x, on two threads with half of the examples each.
#[test]
fn adamw_on_two_threads() -> Result<()> {
    let weights = on_threads(2, |mut member| {
        let w = Var::zeros((1, 1), DType::F32, &Device::Cpu)?;
        let x = Tensor::new(&[[member.rank() as f32 + 1.0]], &Device::Cpu)?;
        let y = (&x * 2.0)?;
        let mut state = OptimizerState::default();
        let mut gradients = Gradients::new([("w", &w)], usize::MAX)?;
        let how = Update {
            lr: 0.1,
            rates: &[1.0],
            max_norm: None,
            examples: 2.0,
        };
        for _ in 0..200 {
            let y_hat = Value::new(&x)?.linear(&w, None)?;
            gradients.zero();
            gradients.backward(&squared_error(&y_hat, &y)?.sum()?)?;
            let mut buckets = Vec::new();
            gradients.give(&mut |bucket| Ok(buckets.push(bucket)))?;
            for bucket in &mut buckets {
                if let BucketMemory::Floats(sums) = &mut bucket.values {
                    *sums = member.all_reduce(std::mem::take(sums))?;
                }
            }
            state.step(&AdamW::default(), &[("w", &w)], &buckets, how)?;
            for bucket in buckets {
                gradients.put_back(bucket)?;
            }
        }
        Ok(w.flatten_all()?.to_vec1::<f32>()?[0])
    })?;
    assert_eq!(weights[0], weights[1]);
    assert!((weights[0] - 2.0).abs() < 0.05, "{weights:?}");
    Ok(())
}
