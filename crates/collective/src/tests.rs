//! The sum has the bits of the schedule's order; and whoever leaves, panics, hangs or brings another
//! length ends the call of all the others, with an error that names it.

use super::*;
use candle_core::{Device, Tensor};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

fn values(rank: usize, round: usize, n: usize) -> Vec<f32> {
    (0..n)
        .map(|i| ((i * 7919 + rank * 104_729 + round * 31) % 1009) as f32 * 0.37 - 150.0)
        .collect()
}

fn with(algorithm: Algorithm) -> Options {
    Options {
        algorithm,
        ..Options::default()
    }
}

fn within(limit: Duration) -> Options {
    Options {
        timeout: Some(limit),
        ..Options::default()
    }
}

/// Runs `f` for every member on a thread of its own.
fn on_threads<T: Send>(members: Vec<Member>, f: impl Fn(Member) -> T + Sync) -> Vec<T> {
    std::thread::scope(|s| {
        let threads: Vec<_> = members
            .into_iter()
            .map(|m| {
                let f = &f;
                s.spawn(move || f(m))
            })
            .collect();
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
                let total = parts.reduce(|sum, part| sum + part).unwrap();
                sum.to.iter().for_each(|rank| held[*rank][i] = total);
            }
        }
    }
    held.swap_remove(held.len() - 1)
}

#[test]
fn the_sum_has_the_bits_of_the_serial_sum_in_every_round() {
    for (algorithm, k) in Algorithm::ALL
        .into_iter()
        .flat_map(|a| (1..=5).map(move |k| (a, k)))
    {
        let schedule = Schedule::in_shared_memory(algorithm, k);
        on_threads(group(k, with(algorithm)), |mut member| {
            for round in 0..20 {
                // none, fewer than chunks, and more than a block as well
                let n = [0, 1, 17, 300, 12_345][round % 5] + round / 5;
                let all: Vec<_> = (0..k).map(|rank| values(rank, round, n)).collect();
                let sum = member.all_reduce(all[member.rank()].clone()).unwrap();
                assert_eq!(
                    sum,
                    serial(&schedule, &all),
                    "{algorithm}, k = {k}, round {round}"
                );
            }
        });
    }
}

#[test]
fn star_and_owner_have_the_bits_of_the_sum_in_rank_order() {
    let all: Vec<_> = (0..5).map(|rank| values(rank, 0, 5000)).collect();
    let mut expected = all[0].clone();
    for more in &all[1..] {
        expected.iter_mut().zip(more).for_each(|(e, m)| *e += m);
    }
    for algorithm in [Algorithm::Star, Algorithm::Owner, Algorithm::Auto] {
        let sums = on_threads(group(5, with(algorithm)), |mut member| {
            member.all_reduce(all[member.rank()].clone()).unwrap()
        });
        assert!(sums.iter().all(|sum| *sum == expected), "{algorithm}");
    }
}

#[test]
fn the_memory_is_the_one_that_was_brought() {
    on_threads(group(3, Options::default()), |mut member| {
        let data = vec![1.0; 1000];
        let address = data.as_ptr();
        let sum = member.all_reduce(data).unwrap();
        assert_eq!((sum.as_ptr(), sum.len()), (address, 1000));
    });
}

/// Three rounds are well, then rank 1 does `fault` instead of the fourth.
fn outcomes(options: Options, fault: impl Fn(&mut Member) + Sync) -> Vec<Result<(), Error>> {
    on_threads(group(4, options), |mut member| {
        for _ in 0..3 {
            member.all_reduce(vec![1.0; 8]).unwrap();
        }
        if member.rank() == 1 {
            fault(&mut member);
            return Ok(());
        }
        let failed = member.all_reduce(vec![1.0; 8]);
        assert_eq!(
            failed,
            member.all_reduce(vec![1.0; 8]),
            "a failed group works again"
        );
        failed.map(drop)
    })
}

#[test]
fn a_member_that_returns_early_ends_the_call_of_the_others() {
    let outcome = outcomes(Options::default(), |_| ());
    for rank in [0, 2, 3] {
        assert_eq!(outcome[rank], Err(Error::PeerLeft { rank: 1 }));
    }
}

#[test]
fn a_member_that_panics_ends_the_call_of_the_others() {
    let outcome = on_threads(group(3, Options::default()), |mut member| {
        if member.rank() == 2 {
            let panicked = catch_unwind(AssertUnwindSafe(move || {
                let _member = member;
                std::panic::resume_unwind(Box::new("a fault"));
            }));
            assert!(panicked.is_err());
            return Ok(vec![]);
        }
        member.all_reduce(vec![1.0])
    });
    assert_eq!(outcome[0], Err(Error::PeerLeft { rank: 2 }));
    assert_eq!(outcome[1], Err(Error::PeerLeft { rank: 2 }));
}

#[test]
fn a_member_that_hangs_is_named_when_the_time_is_over() {
    let limit = Duration::from_millis(50);
    let over = AtomicBool::new(false);
    let outcome = outcomes(within(limit), |member| {
        while !over.load(SeqCst) {
            // until the others have given up
            over.store(member.group.gate.check().is_err(), SeqCst);
            std::thread::yield_now();
        }
        assert!(member.all_reduce(vec![1.0; 8]).is_err(), "it came too late");
    });
    let expected = Error::TimedOut {
        limit,
        missing: vec![1],
    };
    assert_eq!(
        expected.to_string(),
        "all-reduce: replica 1 did not come within 50ms"
    );
    for rank in [0, 2, 3] {
        assert_eq!(outcome[rank], Err(expected.clone()));
    }
}

/// A member stops between the gates, where it is at work on the memory of the others.
#[test]
fn a_member_that_hangs_inside_is_named_and_its_late_work_harms_nobody() {
    for algorithm in Algorithm::ALL {
        let limit = Duration::from_millis(50);
        let options = Options {
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
                    std::thread::yield_now(); // until all others are gone, with all that they had
                }
            })
        });
        let missing = vec![2];
        assert_eq!(
            outcome,
            vec![Err(Error::TimedOut { limit, missing }); 4],
            "{algorithm}"
        );
    }
}

#[test]
fn other_lengths_are_an_error_for_all() {
    let outcome = outcomes(Options::default(), |member| {
        let error = member.all_reduce(vec![1.0; 7]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "all-reduce: replica 1 brought 7 elements, replica 0 8"
        );
    });
    for rank in [0, 2, 3] {
        assert!(matches!(
            outcome[rank],
            Err(Error::LengthMismatch { rank: 1, .. })
        ));
    }
}

#[test]
fn whoever_leaves_after_the_last_round_disturbs_nobody() {
    for _ in 0..200 {
        on_threads(group(4, Options::default()), |mut member| {
            assert_eq!(member.all_reduce(vec![1.0]).unwrap(), [4.0]);
        });
    }
}

#[test]
fn more_members_than_cores_come_through() {
    for k in [8, 33] {
        on_threads(group(k, within(Duration::from_secs(60))), |mut member| {
            for round in 0..200 {
                let sum = member.all_reduce(vec![(member.rank() + round) as f32; round % 97]);
                let expected = (k * round + k * (k - 1) / 2) as f32;
                assert!(sum.unwrap().iter().all(|value| *value == expected));
            }
        });
    }
}

#[test]
fn a_link_makes_it_as_slow_as_it_is() {
    let link = Link {
        latency: Duration::from_millis(5),
        bytes_per_second: 1e6,
    };
    let options = Options {
        link: Some(link),
        ..with(Algorithm::Ring)
    };
    on_threads(group(2, options), |mut member| {
        let start = Instant::now();
        member.all_reduce(vec![1.0; 2500]).unwrap(); // 10 kB, of which half goes there and half back
        assert!(start.elapsed() >= Duration::from_millis(2 * 5 + 10));
    });
}

#[test]
fn tensors_are_summed_by_the_schedule_and_gathered_items_come_in_rank_order() {
    let tensor =
        |values: &Vec<f32>| Tensor::from_slice(values, (5, values.len() / 5), &Device::Cpu);
    for algorithm in Algorithm::ALL {
        let schedule = Schedule::new(algorithm, 3);
        on_threads(group(3, with(algorithm)), |mut member| {
            for round in 0..20 {
                let n = [5, 50, 1235][round % 3]; // fewer than chunks as well
                let all: Vec<_> = (0..3).map(|rank| values(rank, round, n)).collect();
                let sum = member
                    .all_reduce_tensor(&tensor(&all[member.rank()]).unwrap())
                    .unwrap();
                assert_eq!(sum.dims(), [5, n / 5]);
                let sum = sum.flatten_all().unwrap().to_vec1::<f32>().unwrap();
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
    let zeros = |n: usize| Tensor::zeros(n, candle_core::DType::F32, &Device::Cpu).unwrap();
    let errors = on_threads(group(3, Options::default()), |mut member| {
        let n = if member.rank() == 2 { 7 } else { 8 };
        member.all_reduce_tensor(&zeros(n)).unwrap_err()
    });
    let expected = Error::LengthMismatch {
        rank: 2,
        found: 7,
        expected: 8,
    };
    assert_eq!(errors, vec![expected; 3]);
    let results = on_threads(group(3, Options::default()), |mut member| {
        match member.rank() {
            1 => None,
            _ => member.all_reduce_tensor(&zeros(8)).err(),
        }
    });
    let left = Some(Error::PeerLeft { rank: 1 });
    assert_eq!(results, [left.clone(), None, left]);
}

#[test]
fn items_of_another_kind_are_an_error_for_all() {
    let outcome = on_threads(group(2, Options::default()), |mut member| {
        match member.rank() {
            0 => member.all_gather(0u8).map(drop),
            _ => member.all_gather("one").map(drop),
        }
    });
    assert_eq!(outcome, vec![Err(Error::KindMismatch); 2]);
}
