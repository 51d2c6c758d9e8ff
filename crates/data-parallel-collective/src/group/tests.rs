//! The sum has the bits of the schedule's order. A member that leaves, hangs, fails or has another length
//! ends the call of all others, with an error that names it.

use super::*;
use candle_core::{DType, Device, Tensor};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

fn values(rank: usize, round: usize, n: usize) -> Vec<f32> {
    (0..n)
        .map(|i| ((i * 7919 + rank * 104_729 + round * 31) % 1009) as f32 * 0.37 - 150.0)
        .collect()
}

fn with(algorithm: Algorithm) -> GroupOptions {
    GroupOptions {
        algorithm,
        ..GroupOptions::default()
    }
}

const MINUTE: Duration = Duration::from_secs(60);

fn within(limit: Duration) -> GroupOptions {
    GroupOptions {
        timeout: Some(limit),
        ..GroupOptions::default()
    }
}

fn mismatch(rank: usize, found: usize, expected: usize) -> Error {
    Error::LengthMismatch {
        rank,
        found,
        expected,
    }
}

fn left(rank: usize) -> Error {
    Error::PeerLeft { rank }
}

/// Sums the vector of this member among those of all, in its own memory.
fn sum_in_place(member: &mut Member, all: &[Vec<f32>]) -> Vec<f32> {
    let mine = all[member.rank()].clone();
    let address = mine.as_ptr();
    let sum = member.all_reduce(mine).unwrap();
    assert_eq!(sum.as_ptr(), address, "it is another memory");
    sum
}

/// A reduce-scatter and an all-gather give the sum too.
fn in_two_halves(member: &mut Member, all: &[Vec<f32>], sum: &[f32]) {
    let part = member.reduce_scatter(all[member.rank()].clone()).unwrap();
    assert_eq!(part, sum[member.part(sum.len())]);
    assert_eq!(member.all_gather_parts(part).unwrap(), sum);
}

/// Runs `f` for every member on a thread of its own.
fn on_threads<I: Send, T: Send>(items: Vec<I>, f: impl Fn(I) -> T + Sync) -> Vec<T> {
    std::thread::scope(|s| {
        let run = |item| s.spawn(|| f(item));
        let threads: Vec<_> = items.into_iter().map(run).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// The sum by a schedule, one element after the other on one thread.
fn serial(schedule: &Schedule, data: &[Vec<f32>]) -> Vec<f32> {
    let mut held = data.to_vec();
    for round in &schedule.rounds {
        let before = held.clone();
        for sum in round {
            for i in schedule.chunk(sum.chunk, data[0].len()) {
                let parts = sum.from.iter().map(|rank| before[*rank][i]);
                let total = sum.total(parts, |a, b| a + b);
                sum.to.iter().for_each(|rank| held[*rank][i] = total);
            }
        }
    }
    held.swap_remove(held.len() - 1)
}

/// A value that is none, or a sum that is too large: all members hear of it, wherever it is, and not in the next call.
#[test]
fn all_members_know_whether_the_sums_are_finite() {
    for algorithm in Algorithm::ALL {
        for k in 1..=5 {
            for n in [1, 100, 5000] {
                let found = on_threads(group(k, with(algorithm)), |mut member| {
                    let rank = member.rank();
                    let mut sum = |bad: Option<(usize, usize, f32)>| {
                        let mut vector = values(rank, 0, n);
                        if let Some((of, at, value)) = bad
                            && of == rank
                        {
                            vector[at] = value;
                        }
                        member.all_reduce_finite(vector).unwrap().1
                    };
                    let mut found = Vec::new();
                    for (of, at) in [(0, 0), (k - 1, n / 2), (k / 2, n - 1)] {
                        found.push(sum(None));
                        found.push(!sum(Some((of, at, f32::NAN))));
                        found.push(!sum(Some((of, at, f32::NEG_INFINITY))));
                    }
                    let largest = vec![f32::MAX; n];
                    let (sums, is_finite) = member.all_reduce_finite(largest).unwrap();
                    found.push(is_finite == sums[0].is_finite());
                    found
                });
                assert_eq!(
                    found,
                    vec![vec![true; 10]; k],
                    "{algorithm}, k = {k}, n = {n}"
                );
            }
        }
    }
}

#[test]
fn the_sum_has_the_bits_of_the_serial_sum_in_every_round() {
    let cases = Algorithm::ALL.map(|algorithm| [1, 2, 3, 4, 5, 7, 8, 11].map(|k| (algorithm, k)));
    for (algorithm, k) in cases.into_iter().flatten() {
        let schedule = Schedule::in_shared_memory(algorithm, k);
        on_threads(group(k, with(algorithm)), |mut member| {
            for round in 0..20 {
                // none, fewer than chunks, and more than a block
                let n = [0, 1, 17, 300, 12_345][round % 5] + round / 5;
                let all: Vec<_> = (0..k).map(|rank| values(rank, round, n)).collect();
                let sum = sum_in_place(&mut member, &all);
                let expected = serial(&schedule, &all);
                assert_eq!(sum, expected, "{algorithm}, k = {k}, round {round}");
                if algorithm != Algorithm::Ring {
                    in_two_halves(&mut member, &all, &expected);
                }
            }
        });
    }
}

/// Three rounds succeed; then rank 1 runs `fault` instead of the fourth, and all others fail with this error.
fn all_fail(options: GroupOptions, expected: Error, fault: impl Fn(&mut Member) + Sync) {
    on_threads(group(4, options), |mut member| {
        for _ in 0..3 {
            member.all_reduce(vec![1.0; 8]).unwrap();
        }
        if member.rank() == 1 {
            return fault(&mut member);
        }
        for _ in 0..2 {
            let failed = member.all_reduce(vec![1.0; 8]); // also the second time
            assert_eq!(failed, Err(expected.clone()));
        }
    });
}

#[test]
fn a_member_that_returns_early_ends_the_call_of_the_others() {
    all_fail(GroupOptions::default(), left(1), |_| ());
}

#[test]
fn a_member_that_hangs_is_named_when_the_time_is_over() {
    let limit = Duration::from_millis(50);
    let over = AtomicBool::new(false);
    let missing = vec![1];
    let expected = Error::TimedOut { limit, missing };
    let words = "all-reduce: replica 1 did not arrive within 50ms";
    assert_eq!(expected.to_string(), words);
    all_fail(within(limit), expected, |member| {
        while !over.load(SeqCst) {
            // until the others have failed
            over.store(member.group.barrier.check().is_err(), SeqCst);
            std::thread::yield_now();
        }
        assert!(member.all_reduce(vec![1.0; 8]).is_err(), "it came too late");
    });
}

/// A member stops between the barriers, where it accesses the memory of the others.
#[test]
fn a_member_that_hangs_inside_is_named_and_its_late_work_does_no_harm() {
    for algorithm in Algorithm::ALL {
        // enough for the others to arrive under a sanitizer
        let limit = Duration::from_millis(500);
        let options = GroupOptions {
            algorithm,
            ..within(limit)
        };
        let returned = AtomicUsize::new(0);
        let outcome = on_threads(group(4, options), |mut member| {
            let data = vec![member.rank() as f32; 100_000];
            if member.rank() != 2 {
                let result = member.all_reduce(data);
                drop(member);
                returned.fetch_add(1, SeqCst);
                return result;
            }
            member.all_reduce_after(data, || {
                while returned.load(SeqCst) < 3 {
                    std::thread::yield_now(); // until all others have returned and dropped their members
                }
            })
        });
        let missing = vec![2];
        let expected = vec![Err(Error::TimedOut { limit, missing }); 4];
        assert_eq!(outcome, expected, "{algorithm}");
    }
}

#[test]
fn other_lengths_are_an_error_for_all() {
    all_fail(GroupOptions::default(), mismatch(1, 7, 8), |member| {
        let error = member.all_reduce(vec![1.0; 7]).unwrap_err();
        let words = "all-reduce: replica 1 has 7 elements, replica 0 has 8";
        assert_eq!(error.to_string(), words);
    });
}

#[test]
fn a_member_may_leave_after_the_last_round() {
    for _ in 0..200 {
        on_threads(group(4, GroupOptions::default()), |mut member| {
            assert_eq!(member.all_reduce(vec![1.0]).unwrap(), [4.0]);
        });
    }
}

#[test]
fn more_members_than_cores_come_through() {
    for k in [8, 33] {
        on_threads(group(k, within(MINUTE)), |mut member| {
            for round in 0..200 {
                let sum = member.all_reduce(vec![(member.rank() + round) as f32; round % 97]);
                let expected = (k * round + k * (k - 1) / 2) as f32;
                assert!(sum.unwrap().iter().all(|value| *value == expected));
            }
        });
    }
}

#[test]
fn tensors_are_summed_by_the_schedule_and_gathered_items_come_in_rank_order() {
    tensors_are_summed(&[Device::Cpu, Device::Cpu, Device::Cpu]);
}

/// On two GPUs if there are two: then two of three members share one.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn on_a_gpu_tensors_are_summed() {
    let gpu = |i| Device::new_cuda_with_stream(i).map(devices::without_events);
    let second = gpu(1).or_else(|_| gpu(0));
    tensors_are_summed(&[gpu(0).unwrap(), second.unwrap(), gpu(0).unwrap()]);
}

/// A stream that computes waits for the host, and the sums are there before it goes on. The first sum is only to have
/// memory of the communication stream, as a training loop has from its second step on.
///
/// A driver has eight queues by default, and more streams are open here. A stream that shares a queue with the blocked
/// one waits as well. So this test wants CUDA_DEVICE_MAX_CONNECTIONS=32, which the driver reads when it starts.
#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn on_a_gpu_sums_do_not_wait_for_the_stream_that_computes() {
    let gpu = |i| Device::new_cuda_with_stream(i).map(devices::without_events);
    let devices = [gpu(0).unwrap(), gpu(1).or_else(|_| gpu(0)).unwrap()];
    for algorithm in Algorithm::ALL {
        on_threads(group(2, with(algorithm)), |mut member| {
            let device = &devices[member.rank()];
            let stream = crate::CommunicationStream::beside(device).unwrap();
            let ones = Tensor::ones(1000, DType::F32, device).unwrap();
            let ones = stream.take(ones, &stream.written().unwrap()).unwrap();
            member.all_reduce_tensor(ones.tensor()).unwrap();
            let twos = ones.give_back().unwrap();
            let written = stream.written().unwrap();
            let computes = blocked::Stream::new(device); // behind what has written them
            let twos = stream.take(twos, &written).unwrap();
            member.all_reduce_tensor(twos.tensor()).unwrap();
            assert!(
                blocked::is_done_within(Duration::from_secs(20), twos.tensor().device()),
                "{algorithm}: a sum waits for a stream that is blocked; is CUDA_DEVICE_MAX_CONNECTIONS 32?"
            );
            drop(computes);
            let fours = twos.give_back().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(fours, [4.; 1000]);
        });
    }
}

/// A stream that waits for the host.
#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
mod blocked {
    use candle_core::Device;
    use candle_core::cuda_backend::cudarc::driver::result::stream::launch_host_function;
    use std::ffi::c_void;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    /// Dropped, the stream goes on.
    pub struct Stream(Arc<AtomicBool>);

    impl Stream {
        pub fn new(device: &Device) -> Self {
            let stream = device.as_cuda_device().unwrap().cuda_stream();
            let goes_on = Arc::new(AtomicBool::new(false));
            let argument = Arc::into_raw(goes_on.clone());
            // Safety: the function gets the flag that it takes, and owns its share of it.
            unsafe { launch_host_function(stream.cu_stream(), wait, argument as *mut c_void) }
                .unwrap();
            Self(goes_on)
        }
    }

    unsafe extern "C" fn wait(goes_on: *mut c_void) {
        // Safety: `Stream::new` passes the flag of an `Arc` that it gave away.
        let goes_on = unsafe { Arc::from_raw(goes_on as *const AtomicBool) };
        while !goes_on.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(1));
        }
    }

    impl Drop for Stream {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the work of the device's stream so far is done within the limit.
    pub fn is_done_within(limit: Duration, device: &Device) -> bool {
        let stream = device.as_cuda_device().unwrap().cuda_stream();
        let (done, start) = (stream.record_event(None).unwrap(), Instant::now());
        while !done.is_complete() {
            if start.elapsed() > limit {
                return false;
            }
            sleep(Duration::from_millis(1));
        }
        true
    }
}

fn tensors_are_summed(devices: &[Device]) {
    for algorithm in Algorithm::ALL {
        let schedule = Schedule::new(algorithm, 3);
        on_threads(group(3, with(algorithm)), |mut member| {
            let device = &devices[member.rank()];
            for round in 0..20 {
                let n = [5, 50, 1235][round % 3]; // fewer than chunks as well
                let all: Vec<_> = (0..3).map(|rank| values(rank, round, n)).collect();
                let mine = Tensor::from_slice(&all[member.rank()], (5, n / 5), device).unwrap();
                member.all_reduce_tensor(&mine).unwrap();
                let sum = mine.flatten_all().unwrap().to_vec1::<f32>().unwrap();
                assert_eq!(sum, serial(&schedule, &all), "{algorithm}, round {round}");
                assert_eq!(member.all_gather(member.rank()).unwrap(), [0, 1, 2]);
                // and the calls may be mixed
                assert_eq!(member.all_reduce(vec![1.]).unwrap(), [3.]);
            }
        });
    }
}

#[test]
fn a_tensor_of_another_size_and_a_member_that_left_are_named() {
    let zeros = |n: usize| Tensor::zeros(n, DType::F32, &Device::Cpu).unwrap();
    let errors = on_threads(group(3, GroupOptions::default()), |mut member| {
        let n = if member.rank() == 2 { 7 } else { 8 };
        member.all_reduce_tensor(&zeros(n)).unwrap_err()
    });
    assert_eq!(errors, vec![mismatch(2, 7, 8); 3]);
    on_threads(group(3, GroupOptions::default()), |mut member| {
        if member.rank() != 1 {
            assert_eq!(member.all_reduce_tensor(&zeros(8)).unwrap_err(), left(1));
        }
    });
}

/// If the device of a member fails, no member waits for it, and later calls fail too.
#[test]
fn what_fails_on_one_device_fails_for_all() {
    for algorithm in Algorithm::ALL {
        let errors = on_threads(group(3, with(algorithm)), |mut member| {
            let dtype = [DType::F32, DType::F64][usize::from(member.rank() == 2)];
            let data = Tensor::zeros(8, dtype, &Device::Cpu).unwrap();
            let error = member.all_reduce_tensor(&data).unwrap_err();
            assert_eq!(member.barrier().unwrap_err(), error);
            error
        });
        assert!(matches!(errors[0], Error::Device { .. }), "{algorithm}");
        assert_eq!(errors, vec![errors[0].clone(); 3], "{algorithm}");
    }
}

#[test]
#[should_panic(expected = "a group of 65537 members; 1 to 65536 are possible")]
fn a_barrier_has_so_many_places() {
    group(65_537, GroupOptions::default());
}

#[test]
fn items_of_another_kind_are_an_error_for_all() {
    let members = group(2, GroupOptions::default());
    let outcome = on_threads(members, |mut member| match member.rank() {
        0 => member.all_gather(0u8).map(drop),
        _ => member.all_gather("one").map(drop),
    });
    assert_eq!(outcome, vec![Err(Error::KindMismatch); 2]);
    let members = group(2, GroupOptions::default());
    let outcome = on_threads(members, |mut member| match member.rank() {
        0 => member.all_reduce(vec![1.0; 32]),
        _ => member.reduce_scatter(vec![1.0; 32]),
    });
    assert_eq!(outcome, vec![Err(Error::KindMismatch); 2]);
    for layout in [&[2][..], &[1, 1]] {
        let members = in_processes(layout, GroupOptions::default());
        let outcome = on_threads(members, |mut member| {
            member.all_gather_parts(vec![1.0; [16, 32][member.rank()]]) // parts begin at multiples of 16
        });
        assert!(outcome.iter().all(Result::is_ok));
        let members = in_processes(layout, GroupOptions::default());
        let outcome = on_threads(members, |mut member| member.all_gather_parts(vec![1.0; 40]));
        assert_eq!(outcome, vec![Err(Error::KindMismatch); 2]);
    }
}

/// Processes that are threads, which communicate through a group of their own.
struct Threads(Member);

impl ProcessGroup for Threads {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn all_reduce(&mut self, vectors: &mut [&mut [f32]], order: &SumOrder) -> Result<(), Error> {
        let lengths = self.0.all_gather(vectors[0].len())?;
        self.0.same_in_all_processes(lengths)?;
        assert_eq!(vectors.len(), order.vectors[self.0.rank()]);
        let (own, len) = (vectors.concat(), vectors[0].len());
        let mut all = self.0.all_gather(own)?.concat();
        order.sum(&mut all, len);
        vectors[0].copy_from_slice(&all[..len]);
        Ok(())
    }

    fn all_gather(&mut self, data: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.0.all_gather(data.to_vec())
    }

    fn duplicate(&self) -> Result<Box<dyn ProcessGroup>, Error> {
        panic!("a group has asked for another channel")
    }
}

/// The members of processes; `layout` has the number of members of each.
fn in_processes(layout: &[usize], options: GroupOptions) -> Vec<Member> {
    let seats = group(layout.len(), GroupOptions::default())
        .into_iter()
        .zip(layout.to_vec());
    let groups = on_threads(seats.collect(), |(seat, k)| {
        group_in(Box::new(Threads(seat)), k, options).unwrap()
    });
    groups.into_iter().flatten().collect()
}

#[test]
fn processes_that_add_in_different_orders_make_no_group() {
    let seats = group(2, GroupOptions::default()).into_iter();
    let seats = seats.zip([Algorithm::Star, Algorithm::Owner]);
    let errors = on_threads(seats.collect(), |(seat, algorithm)| {
        group_in(Box::new(Threads(seat)), 2, with(algorithm)).err()
    });
    assert_eq!(errors, vec![Some(Error::KindMismatch); 2]);
}

const LAYOUTS: [&[usize]; 7] = [
    &[2, 2],
    &[1, 1, 1],
    &[4],
    &[3, 3, 3],
    &[3, 1],
    &[1, 2, 1],
    &[2, 5],
];

#[test]
fn processes_sum_to_the_bits_of_one_process() {
    for algorithm in [Algorithm::Auto, Algorithm::Star, Algorithm::Tree] {
        for layout in LAYOUTS {
            let one = Schedule::new(algorithm.chosen(false, 2, 0), layout.iter().sum());
            on_threads(in_processes(layout, with(algorithm)), |mut member| {
                assert_eq!(member.size(), one.members);
                for round in 0..20 {
                    let n = [0, 1, 17, 300, 12_345][round % 5];
                    let all = (0..member.size()).map(|rank| values(rank, round, n));
                    let all: Vec<_> = all.collect();
                    let sum = sum_in_place(&mut member, &all);
                    assert_eq!(sum, serial(&one, &all), "{algorithm}, {layout:?}");
                    in_two_halves(&mut member, &all, &sum);
                }
            });
        }
    }
}

#[test]
fn tensors_are_summed_over_processes_to_the_bits_of_one_process() {
    for layout in LAYOUTS {
        let one = Schedule::new(Algorithm::Owner, layout.iter().sum());
        let members = in_processes(layout, GroupOptions::default());
        on_threads(members, |mut member| {
            let all: Vec<_> = (0..member.size()).map(|rank| values(rank, 0, 12)).collect();
            let data = Tensor::from_vec(all[member.rank()].clone(), (3, 4), &Device::Cpu).unwrap();
            member.all_reduce_tensor(&data).unwrap();
            let sum = data.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(sum, serial(&one, &all), "{layout:?}");
            if layout.len() == 1 {
                return;
            }
            let n = 5 - usize::from(member.rank() >= layout[0]); // another length in the other processes
            let other = Tensor::full(1f32, n, &Device::Cpu).unwrap();
            let error = member.all_reduce_tensor(&other).unwrap_err();
            assert_eq!(error, mismatch(layout[0], 4, 5));
        });
    }
}

#[test]
fn a_few_values_are_summed_in_rank_order() {
    let tenths = |rank: usize| [0.1 * (rank + 1) as f64, -0.0, 1e16 / (rank as f64 + 3.0)];
    for layout in LAYOUTS {
        let mut expected = tenths(0);
        for rank in 1..layout.iter().sum() {
            let more = expected.iter_mut().zip(tenths(rank));
            more.for_each(|(sum, value)| *sum += value);
        }
        let members = in_processes(layout, GroupOptions::default());
        on_threads(members, |mut member| {
            let mut values = tenths(member.rank());
            member.sum(&mut values).unwrap();
            let [found, expected] = [values, expected].map(|v| v.map(f64::to_bits));
            assert_eq!(found, expected, "{layout:?}");
            member.sum(&mut []).unwrap();
        });
    }
}

#[test]
fn a_process_group_sums_a_few_values_in_rank_order_if_all_bring_as_many() {
    let sums = on_threads(group(3, GroupOptions::default()), |seat| {
        let mut processes = Threads(seat);
        let mut values = [[1e16, 0.5], [1.0, 0.5], [-1e16, 0.5]][processes.rank()];
        processes.sum_values(&mut values).unwrap();
        let mut one_more = vec![1.0; 2 + usize::from(processes.rank() == 2)];
        let error = processes.sum_values(&mut one_more).unwrap_err();
        (values, error)
    });
    assert_eq!(sums, vec![([0.0, 1.5], Error::KindMismatch); 3]);
}

#[test]
fn gathered_items_and_barriers_stay_in_the_process() {
    let members = in_processes(&[2, 3], GroupOptions::default());
    on_threads(members, |mut member| {
        let ranks = member.all_gather(member.rank()).unwrap();
        let own = if member.rank() < 2 { 0..2 } else { 2..5 };
        assert_eq!(ranks, own.collect::<Vec<usize>>());
        member.barrier().unwrap();
    });
}

/// All members of all processes get the same error. Member 3, which differs, is always the last member of
/// the last process.
#[test]
fn other_lengths_in_one_process_are_an_error_in_all() {
    for layout in [&[2, 2][..], &[1, 1, 1, 1], &[4], &[1, 3], &[3, 1]] {
        let members = || in_processes(layout, GroupOptions::default());
        let one_less = |member: &Member, n| n - usize::from(member.rank() == 3);
        on_threads(members(), |mut member| {
            let n = one_less(&member, 8);
            assert_eq!(member.all_reduce(vec![1.0; n]), Err(mismatch(3, 7, 8)));
        });
        on_threads(members(), |mut member| {
            let n = one_less(&member, 2);
            assert_eq!(member.sum(&mut vec![1.0; n]), Err(mismatch(3, 1, 2)));
        });
    }
}

/// A process group that fails after some calls.
struct Failing(usize);

impl Failing {
    fn call(&mut self) -> Result<(), Error> {
        let why = "the cable is out".to_owned();
        let left = self.0.checked_sub(1);
        self.0 = left.ok_or(Error::Process { rank: 1, why })?;
        Ok(())
    }
}

impl ProcessGroup for Failing {
    fn rank(&self) -> usize {
        1
    }

    fn size(&self) -> usize {
        2
    }

    fn all_reduce(&mut self, _: &mut [&mut [f32]], _: &SumOrder) -> Result<(), Error> {
        self.call()
    }

    fn all_gather(&mut self, data: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.call()?;
        Ok(vec![data.to_vec(); 2])
    }

    fn duplicate(&self) -> Result<Box<dyn ProcessGroup>, Error> {
        panic!("a failing process group makes no other channel")
    }
}

#[test]
fn a_process_group_that_fails_fails_for_all_members_of_the_process() {
    // the first call counts the members, the second one compares the lengths, the third one sums
    for calls in [1, 2] {
        let members = group_in(Box::new(Failing(calls)), 3, within(MINUTE)).unwrap();
        let errors = on_threads(members, |mut member| {
            let error = member.all_reduce(vec![1.0; 100]).unwrap_err();
            assert_eq!(member.sum(&mut [1.0]), Err(error.clone()));
            error.to_string()
        });
        let expected = "all-reduce: process 1: the cable is out";
        assert_eq!(errors, [expected; 3]);
    }
}

#[test]
fn a_member_that_leaves_is_named_by_its_rank_in_the_whole() {
    let members = group_in(Box::new(Failing(9)), 3, within(MINUTE)).unwrap();
    on_threads(members, |mut member| {
        if member.rank() != 4 {
            assert_eq!(member.all_reduce(vec![1.0]), Err(left(4)));
        }
    });
}

/// A member that waits for member 0's call of the process group does not time out: the process group has its own limit.
#[test]
fn the_limit_of_a_group_does_not_end_a_call_of_the_process_group() {
    let options = within(Duration::from_millis(1));
    let members = group_in(Box::new(Failing(1)), 3, options).unwrap();
    let answers = on_threads(members, |mut member| {
        member.over_all_processes(|_| {
            std::thread::sleep(Duration::from_millis(50));
            Ok("at last")
        })
    });
    assert_eq!(answers, vec![Ok("at last"); 3]);
}
