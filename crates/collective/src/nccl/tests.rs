//! Tests of NCCL in one process: NCCL refuses two processes on one GPU.

use super::*;

/// Two channels, several lengths, a part of a tensor, and an orderly end.
#[test]
#[ignore = "needs a GPU and NCCL"]
fn on_a_gpu_nccl_sums_for_a_process_that_is_alone() {
    load().unwrap();
    let gpu = Device::new_cuda_with_stream(0).unwrap();
    let first = Gpus::new(mpi::processes(Some(Duration::from_secs(60))).unwrap());
    let second = first.duplicate().unwrap();
    for mut world in [Box::new(first) as Box<dyn World>, second] {
        for n in [1, 1000, 1_000_000] {
            let values = (0..n).map(|i| i as f32).collect::<Vec<_>>();
            let data = Tensor::from_vec(values.clone(), n, &gpu).unwrap();
            let sum = world.all_reduce_tensor(&data).unwrap().unwrap();
            assert_eq!(sum.to_vec1::<f32>().unwrap(), values);
        }
        let data = Tensor::ones((4, 6), DType::F32, &gpu).unwrap();
        let part = data.narrow(1, 2, 3).unwrap().t().unwrap();
        let sum = world.all_reduce_tensor(&part).unwrap().unwrap();
        assert_eq!(sum.to_vec2::<f32>().unwrap(), [[1.0; 4]; 3]);
    }
}

#[test]
#[ignore = "needs a GPU and NCCL"]
fn on_a_gpu_a_sum_after_an_abort_is_an_error() {
    load().unwrap();
    let gpu = Device::new_cuda_with_stream(0).unwrap();
    let mut world = Gpus::new(mpi::processes(Some(Duration::from_secs(60))).unwrap());
    let ones = Tensor::ones(10, DType::F32, &gpu).unwrap();
    world.all_reduce_tensor(&ones).unwrap().unwrap();
    world.processes.channels.before_the_end();
    let error = world.all_reduce_tensor(&ones).unwrap().unwrap_err();
    assert!(error.to_string().contains("the communicator is gone"));
    gpu.synchronize().unwrap();
}
