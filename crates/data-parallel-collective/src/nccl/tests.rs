//! NCCL among as many members as there are GPUs: one communicator refuses two members on one GPU.

use super::*;
use crate::algorithm::Algorithm;
use crate::group::{GroupOptions, Member, group};
use candle_core::DType;
use std::time::Instant;

const LIMIT: Duration = Duration::from_secs(60);

fn gpus() -> Vec<Device> {
    let gpus = (0..4).map_while(|i| Device::new_cuda_with_stream(i).ok());
    gpus.map(devices::without_events).collect()
}

/// Runs `f` for a member on each GPU, on a thread of its own.
fn on_gpus<T: Send>(f: impl Fn(Member, &Device) -> T + Sync) -> Vec<T> {
    let (gpus, options) = (gpus(), GroupOptions::default());
    assert!(!gpus.is_empty(), "there is no GPU");
    let options = GroupOptions {
        algorithm: Algorithm::Nccl,
        timeout: Some(LIMIT),
        ..options
    };
    let members = group(gpus.len(), options);
    std::thread::scope(|s| {
        let f = &f;
        let run = |(member, gpu)| s.spawn(move || f(member, gpu));
        let threads: Vec<_> = members.into_iter().zip(&gpus).map(run).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn ones(n: usize, gpu: &Device) -> Tensor {
    Tensor::ones(n, DType::F32, gpu).unwrap()
}

/// Several lengths, none at all, a part of a tensor, and other calls between them.
#[test]
#[ignore = "needs an NVIDIA GPU and NCCL"]
fn on_a_gpu_nccl_sums_over_all_gpus() {
    let ids = gpu_ids(&gpus()).unwrap();
    assert!((1..ids.len()).all(|i| !ids[..i].contains(&ids[i])));
    on_gpus(|mut member, gpu| {
        let (rank, k) = (member.rank() as f32, member.size() as f32);
        let ranks: f32 = (0..member.size()).map(|rank| rank as f32).sum();
        for n in [1, 1000, 1_000_000] {
            let values = (0..n).map(|i| i as f32 + rank).collect::<Vec<_>>();
            let data = Tensor::from_vec(values, n, gpu).unwrap();
            member.all_reduce_tensor(&data).unwrap();
            let expected = (0..n).map(|i| i as f32 * k + ranks).collect::<Vec<_>>();
            assert_eq!(data.to_vec1::<f32>().unwrap(), expected);
            assert_eq!(member.all_reduce(vec![1.0]).unwrap(), [k]);
        }
        let data = Tensor::ones((4, 6), DType::F32, gpu).unwrap();
        let none = data.narrow(0, 0, 0).unwrap();
        member.all_reduce_tensor(&none).unwrap();
        let part = data.narrow(0, 1, 2).unwrap();
        member.all_reduce_tensor(&part).unwrap();
        let rows = [[1.; 6], [k; 6], [k; 6], [1.; 6]];
        assert_eq!(data.to_vec2::<f32>().unwrap(), rows);
    });
}

/// The last member leaves, is on the CPU, or has another length, when the others sum for the second time. They fail
/// with an error that names it, the first sum is whole, and no GPU waits for ever.
#[test]
#[ignore = "needs an NVIDIA GPU and NCCL"]
fn on_a_gpu_a_member_that_fails_ends_nccls_sums() {
    let faults: [fn(&mut Member, &Device); 3] = [
        |_, _| (),
        |member, _| drop(member.all_reduce_tensor(&ones(10, &Device::Cpu))),
        |member, gpu| drop(member.all_reduce_tensor(&ones(11, gpu))),
    ];
    let start = Instant::now();
    for fault in faults {
        on_gpus(|mut member, gpu| {
            let k = member.size() as f32;
            let first = ones(1000, gpu);
            member.all_reduce_tensor(&first).unwrap();
            if member.rank() + 1 == member.size() {
                fault(&mut member, gpu);
                drop(member);
            } else {
                let error = member.all_reduce_tensor(&ones(10, gpu)).unwrap_err();
                let last = format!("replica {}", member.size() - 1);
                assert!(error.to_string().contains(&last), "{error}");
                drop(member); // aborts what is enqueued
            }
            assert_eq!(first.to_vec1::<f32>().unwrap(), [k; 1000]);
            gpu.synchronize().unwrap();
        });
    }
    assert!(
        start.elapsed() < LIMIT,
        "a GPU waited for a member that failed"
    );
}

/// A member that fails after the others have compared their lengths with its own.
#[test]
#[ignore = "needs an NVIDIA GPU and NCCL"]
fn on_a_gpu_a_sum_counts_only_if_all_have_enqueued_it() {
    on_gpus(|mut member, gpu| {
        member.all_reduce_tensor(&ones(10, gpu)).unwrap();
        if member.rank() + 1 == member.size() {
            member.nccl.as_ref().unwrap().comm.abort();
        }
        let start = Instant::now();
        let error = member.all_reduce_tensor(&ones(10, gpu)).unwrap_err();
        assert!(
            error.to_string().contains("the communicator is gone"),
            "{error}"
        );
        drop(member);
        gpu.synchronize().unwrap();
        assert!(start.elapsed() < 4 * ENDING);
    });
}
