//! The sum has the bits of the serial sum; and whoever leaves, panics, hangs or brings another
//! layout ends the call of all the others.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn values(rank: usize, round: usize, n: usize) -> Vec<f32> {
    (0..n)
        .map(|i| ((i * 7919 + rank * 104_729 + round * 31) % 1009) as f32 * 0.37 - 150.0)
        .collect()
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

#[test]
fn the_sum_has_the_bits_of_the_serial_sum_in_every_round() {
    for k in 1..=5 {
        on_threads(group(k, None), |mut member| {
            for round in 0..20 {
                let n = 300 * (round % 4) + round; // 0 and fewer than pieces as well
                let mut expected = values(0, round, n);
                for rank in 1..k {
                    let more = values(rank, round, n);
                    expected.iter_mut().zip(more).for_each(|(e, m)| *e += m);
                }
                let mut data = values(member.rank(), round, n);
                let mut pieces = Vec::new();
                if (round + member.rank()) % 3 == 0 {
                    let collect = |start, sum: &[f32]| {
                        assert_eq!(start, pieces.len());
                        pieces.extend_from_slice(sum);
                    };
                    member.all_reduce_with(&data, collect).unwrap();
                    data = pieces;
                } else {
                    member.all_reduce(&mut data).unwrap();
                }
                assert_eq!(data, expected, "k = {k}, round {round}");
            }
        });
    }
}

/// Three rounds are well, then rank 1 does `fault` instead of the fourth.
fn outcomes(
    timeout: Option<Duration>,
    fault: impl Fn(&mut Member) + Sync,
) -> Vec<Result<(), Error>> {
    on_threads(group(4, timeout), |mut member| {
        for _ in 0..3 {
            member.all_reduce(&mut [1.0; 8]).unwrap();
        }
        if member.rank() == 1 {
            fault(&mut member);
            return Ok(());
        }
        member.all_reduce(&mut [1.0; 8])
    })
}

#[test]
fn a_member_that_returns_early_ends_the_call_of_the_others() {
    let outcome = outcomes(None, |_| ());
    for rank in [0, 2, 3] {
        assert_eq!(outcome[rank], Err(Error::PeerLeft { rank: 1 }));
    }
}

#[test]
fn a_member_that_panics_ends_the_call_of_the_others() {
    let outcome = on_threads(group(3, None), |mut member| {
        if member.rank() == 2 {
            let panicked = catch_unwind(AssertUnwindSafe(move || {
                let _member = member;
                std::panic::resume_unwind(Box::new("a fault"));
            }));
            assert!(panicked.is_err());
            return Ok(());
        }
        member.all_reduce(&mut [1.0])
    });
    assert_eq!(outcome[0], Err(Error::PeerLeft { rank: 2 }));
    assert_eq!(outcome[1], Err(Error::PeerLeft { rank: 2 }));
}

#[test]
fn a_member_that_hangs_is_waited_for_no_longer_than_the_limit() {
    let limit = Duration::from_millis(50);
    let outcome = outcomes(Some(limit), |_| std::thread::sleep(Duration::from_secs(1)));
    for rank in [0, 2, 3] {
        assert_eq!(outcome[rank], Err(Error::TimedOut { limit }));
    }
}

#[test]
fn other_lengths_are_an_error_for_all() {
    let outcome = outcomes(None, |member| {
        let error = member.all_reduce(&mut [1.0; 7]).unwrap_err();
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
        on_threads(group(4, None), |mut member| {
            let mut data = [1.0];
            member.all_reduce(&mut data).unwrap();
            assert_eq!(data, [4.0]);
        });
    }
}

#[test]
fn a_reader_that_panics_ends_the_next_call_of_the_others() {
    let outcome = on_threads(group(3, None), |mut member| {
        let rank = member.rank();
        let panics = |_: usize, _: &[f32]| assert_ne!(rank, 1, "on purpose");
        let call = AssertUnwindSafe(|| member.all_reduce_with(&[1.0; 4], panics));
        let panicked = catch_unwind(call).is_err();
        // the one that panicked keeps its seat and calls no more
        let next = if panicked {
            Ok(())
        } else {
            member.all_reduce(&mut [1.0; 4])
        };
        (member, next).1
    });
    assert_eq!(outcome[0], Err(Error::PeerLeft { rank: 1 }));
    assert_eq!(outcome[2], Err(Error::PeerLeft { rank: 1 }));
}

#[test]
fn tensors_are_summed_in_rank_order_and_gathered_items_come_in_it() {
    use candle_core::{Device, Tensor};
    let tensor = |rank: usize, round: usize| {
        let values = values(rank, round, 50);
        Tensor::from_vec(values, (5, 10), &Device::Cpu).unwrap()
    };
    on_threads(group(3, None), |mut member| {
        for round in 0..20 {
            let mut expected = values(0, round, 50);
            for rank in 1..3 {
                let more = values(rank, round, 50);
                expected.iter_mut().zip(more).for_each(|(e, m)| *e += m);
            }
            let sum = member.all_reduce_tensor(&tensor(member.rank(), round));
            let sum = sum.unwrap().flatten_all().unwrap();
            assert_eq!(sum.to_vec1::<f32>().unwrap(), expected, "round {round}");
            assert_eq!(member.all_gather(member.rank()).unwrap(), [0, 1, 2]);
            let mut data = [1.]; // and the calls may be mixed
            member.all_reduce(&mut data).unwrap();
            assert_eq!(data, [3.]);
        }
    });
}

#[test]
fn a_tensor_of_another_size_and_a_member_that_left_are_named() {
    use candle_core::{DType, Device, Tensor};
    let zeros = |n: usize| Tensor::zeros(n, DType::F32, &Device::Cpu).unwrap();
    let errors = on_threads(group(3, None), |mut member| {
        let n = if member.rank() == 2 { 7 } else { 8 };
        member.all_reduce_tensor(&zeros(n)).unwrap_err()
    });
    let expected = Error::LengthMismatch {
        rank: 2,
        found: 7,
        expected: 8,
    };
    assert_eq!(errors, vec![expected; 3]);
    let results = on_threads(group(3, None), |mut member| match member.rank() {
        1 => None,
        _ => member.all_reduce_tensor(&zeros(8)).err(),
    });
    let left = Some(Error::PeerLeft { rank: 1 });
    assert_eq!(results, [left.clone(), None, left]);
}
