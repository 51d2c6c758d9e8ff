//! Worlds of threads that talk over TCP: the sums, and that whoever is in trouble is named to all.

use super::*;
use crate::{Options, group_in};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::channel;

const PLENTY: Duration = Duration::from_secs(60);
const LITTLE: Duration = Duration::from_secs(2);

/// A launcher, which listens on the port of its job.
struct Job(TcpListener);

impl Job {
    fn new() -> Self {
        loop {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            if listener.local_addr().unwrap().port() < 65_000 {
                return Self(listener);
            }
        }
    }

    fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    fn place(&self, rank: usize, size: usize) -> Place {
        Place {
            rank,
            size,
            host: "127.0.0.1".to_owned(),
            port: self.port(),
        }
    }
}

fn on_threads<T: Send, U: Send>(items: Vec<T>, f: impl Fn(T) -> U + Sync) -> Vec<U> {
    std::thread::scope(|s| {
        let run = |item| s.spawn(|| f(item));
        let threads: Vec<_> = items.into_iter().map(run).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// What each of `size` processes gets.
fn among<T: Send>(size: usize, limit: Duration, f: impl Fn(Star) -> T + Sync) -> Vec<T> {
    let job = Job::new();
    on_threads((0..size).collect(), |rank| {
        f(Star::of(&job.place(rank, size), Some(limit)).unwrap())
    })
}

fn values(rank: usize, n: usize) -> Vec<f32> {
    let value = |i: usize| ((i * 7919 + rank * 104_729) % 1009) as f32 * 0.37 - 150.0;
    (0..n).map(value).collect()
}

/// The sum in rank order.
fn sum(size: usize, n: usize) -> Vec<f32> {
    (1..size).fold(values(0, n), |mut sum, rank| {
        let more = values(rank, n);
        sum.iter_mut().zip(more).for_each(|(sum, x)| *sum += x);
        sum
    })
}

#[test]
fn sums_have_the_bits_of_the_rank_order_and_bytes_come_in_it() {
    for size in 1..=4 {
        among(size, PLENTY, |mut world| {
            let rank = world.rank();
            assert_eq!(world.size(), size);
            for n in [0, 1, 17, PIECE, 2 * PIECE + 5] {
                let mut data = values(rank, n);
                world.all_reduce(&mut data).unwrap();
                assert_eq!(data, sum(size, n), "{size} processes, {n} values");
                let of = |rank: usize| vec![rank as u8 + 1; n * rank];
                let expected: Vec<_> = (0..size).map(of).collect();
                assert_eq!(world.all_gather(&of(rank)).unwrap(), expected);
            }
        });
    }
}

#[test]
fn members_of_processes_sum() {
    let job = Job::new();
    on_threads((0..3).collect(), |rank| {
        let world = Star::of(&job.place(rank, 3), Some(PLENTY)).unwrap();
        let members = group_in(Box::new(world), 2, Options::default());
        on_threads(members, |mut member| {
            let sum = member.all_reduce(vec![member.rank() as f32; 5]).unwrap();
            assert_eq!(sum, [15.0; 5]);
            let mut values = [0.5];
            member.sum(&mut values).unwrap();
            assert_eq!(values, [3.0]);
        });
    });
}

#[test]
fn channels_do_not_meet() {
    among(3, PLENTY, |world| {
        let channels = [world.another().unwrap(), world.another().unwrap(), world];
        on_threads(channels.into_iter().enumerate().collect(), |(i, mut c)| {
            for round in 0..50 {
                let n = [3, 1000, 70_000][(round * (i + 1)) % 3] + i;
                let mut data = values(c.rank(), n);
                c.all_reduce(&mut data).unwrap();
                assert_eq!(data, sum(3, n));
            }
            // and each of them can make more
            let mut more = c.another().unwrap();
            assert_eq!(more.all_gather(&[i as u8]).unwrap(), vec![[i as u8]; 3]);
        });
    });
}

#[test]
fn other_lengths_and_other_calls_are_an_error_for_all() {
    let errors = among(3, PLENTY, |mut world| {
        let n = if world.rank() == 2 { 0 } else { 10 };
        world.all_reduce(&mut vec![1.0; n]).unwrap_err()
    });
    let expected = Error::LengthMismatch {
        rank: 2,
        found: 0,
        expected: 10,
    };
    assert_eq!(errors, vec![expected; 3]);
    for other in 0..3 {
        let errors = among(3, PLENTY, |mut world| {
            let failed = match world.rank() == other {
                true => world.all_gather(&[1]).map(drop),
                false => world.all_reduce(&mut [1.0; 10]),
            };
            // and it stays so
            assert_eq!(failed, world.all_reduce(&mut []));
            failed
        });
        assert_eq!(errors, vec![Err(Error::KindMismatch); 3]);
    }
}

#[test]
fn a_process_that_leaves_is_named_to_all() {
    for leaver in 0..3 {
        let errors = among(3, PLENTY, |mut world| {
            world.all_reduce(&mut [1.0]).unwrap();
            match world.rank() == leaver {
                true => None,
                false => world.all_reduce(&mut [1.0]).err(),
            }
        });
        let left = Some(Error::ProcessLeft { rank: leaver });
        let expected = (0..3).map(|rank| left.clone().filter(|_| rank != leaver));
        assert_eq!(errors, expected.collect::<Vec<_>>());
    }
}

/// One that dies is noticed where nobody is in a call, too.
#[test]
fn a_process_that_dies_is_noticed_at_once() {
    for victim in 0..3 {
        let errors = among(3, PLENTY, |world| {
            if world.rank() == victim {
                let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                    let _world = world;
                    std::panic::resume_unwind(Box::new("a fault"));
                }));
                assert!(died.is_err());
                return None;
            }
            let (act, failed) = channel();
            world.post.when_it_fails(move || act.send(()).unwrap());
            failed.recv_timeout(PLENTY).unwrap();
            world.post.check().err()
        });
        let left = Some(Error::ProcessLeft { rank: victim });
        let expected = (0..3).map(|rank| left.clone().filter(|_| rank != victim));
        assert_eq!(errors, expected.collect::<Vec<_>>());
    }
}

/// The others have the one that is late named by process 0, or name that one themselves.
#[test]
fn a_process_that_does_not_come_is_named_to_all_in_time() {
    for late in 0..3 {
        let over = std::sync::Barrier::new(3);
        let errors = among(3, LITTLE, |mut world| {
            let error = match world.rank() == late {
                true => None,
                false => world.all_gather(&[]).err(),
            };
            over.wait();
            error
        });
        let (limit, missing) = (LITTLE, vec![late]);
        let error = Some(Error::ProcessesLate { limit, missing });
        let expected = (0..3).map(|rank| error.clone().filter(|_| rank != late));
        assert_eq!(errors, expected.collect::<Vec<_>>());
    }
    let error = Error::ProcessesLate {
        limit: Duration::from_secs(2),
        missing: vec![1, 2],
    };
    let line = "processes 1, 2 did not come within 2s";
    assert_eq!(error.to_string(), line);
}

/// A message of any size ends where nobody takes it.
#[test]
fn a_process_that_does_not_listen_is_named_in_time() {
    let over = std::sync::Barrier::new(2);
    let errors = among(2, LITTLE, |mut world| {
        let error = match world.rank() {
            0 => None,
            _ => world.all_gather(&vec![0; MOST as usize]).err(),
        };
        over.wait();
        error
    });
    let (limit, missing) = (LITTLE, vec![0]);
    assert_eq!(errors[1], Some(Error::ProcessesLate { limit, missing }));
}

#[test]
fn too_much_is_an_error_for_all() {
    let errors = among(2, PLENTY, |mut world| {
        let n = world.rank() * (MOST as usize + 1);
        world.all_gather(&vec![0; n]).unwrap_err()
    });
    let why = "it brings 67108865 bytes, and 67108864 are the most".to_owned();
    assert_eq!(errors, vec![Error::World { rank: 1, why }; 2]);
}

#[test]
fn a_process_that_does_not_start_is_named_to_all() {
    for absent in 0..3 {
        let job = Job::new();
        let ranks = (0..3).filter(|rank| *rank != absent).collect();
        let errors = on_threads(ranks, |rank| {
            Star::of(&job.place(rank, 3), Some(LITTLE)).err().unwrap()
        });
        let (limit, missing) = (LITTLE, vec![absent]);
        assert_eq!(errors, vec![Error::ProcessesLate { limit, missing }; 2]);
    }
}

#[test]
fn processes_start_one_after_the_other() {
    let job = Job::new();
    on_threads((0..3).collect(), |rank| {
        std::thread::sleep(Duration::from_millis(200) * ((rank + 1) % 3) as u32);
        let mut world = Star::of(&job.place(rank, 3), Some(PLENTY)).unwrap();
        assert_eq!(world.all_gather(&[rank as u8]).unwrap(), [[0], [1], [2]]);
    });
}

#[test]
fn other_numbers_of_processes_and_a_rank_that_is_taken_are_errors() {
    let job = Job::new();
    let errors = on_threads(vec![(0, 2), (1, 3)], |(rank, size)| {
        let world = Star::of(&job.place(rank, size), Some(PLENTY));
        world.err().unwrap().to_string()
    });
    assert_eq!(
        errors,
        [
            "all-reduce: process 1: it has WORLD_SIZE 3, process 0 2",
            "all-reduce: process 1: it has WORLD_SIZE 3, process 0 another one"
        ]
    );
    let errors = on_threads(vec![0, 1, 1], |rank| {
        let world = Star::of(&job.place(rank, 3), Some(PLENTY));
        world.err().unwrap().to_string()
    });
    let twice = "all-reduce: process 1: there are two of RANK 1";
    assert_eq!(errors, [twice; 3]);
}

/// Somebody who listens where process 0 might, and somebody who connects to it.
#[test]
fn strangers_are_passed_over() {
    let job = Job::new();
    let stranger = TcpListener::bind(("127.0.0.1", job.port() + 1));
    // the port may be in use
    let stranger = stranger.map(|stranger| {
        std::thread::spawn(move || {
            let (mut stream, _) = stranger.accept().unwrap();
            stream.write_all(b"220 mail.example.org ready\r\n").unwrap();
            let mut said = Vec::new();
            let _ = stream.read_to_end(&mut said);
            said
        })
    });
    let another = Job::new(); // the job of somebody else, whose process 0 may be next to this one
    on_threads(
        vec![(&job, 0), (&another, 0), (&job, 1), (&another, 1)],
        |(job, rank)| {
            if rank == 1 {
                for i in 2..=16 {
                    if let Ok(mut stream) =
                        std::net::TcpStream::connect(("127.0.0.1", job.port() + i))
                    {
                        let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
                    }
                }
            }
            let mut world = Star::of(&job.place(rank, 2), Some(PLENTY)).unwrap();
            let port = job.port().to_le_bytes();
            assert_eq!(world.all_gather(&port).unwrap(), [port, port]);
        },
    );
    if let Ok(stranger) = stranger {
        let told = stranger.join().unwrap();
        assert!(told.is_empty(), "a stranger was told {told:?}");
    }
}

#[test]
fn errors_come_over_as_they_are() {
    for error in [
        Error::ProcessLeft { rank: 3 },
        Error::KindMismatch,
        Error::ProcessesLate {
            limit: LITTLE,
            missing: vec![1, 4],
        },
        Error::LengthMismatch {
            rank: 1,
            found: 2,
            expected: 3,
        },
        Error::World {
            rank: 1,
            why: "the cable is out".to_owned(),
        },
    ] {
        let failed = among(3, PLENTY, |mut world| {
            if world.rank() == 2 {
                world.post.fail(error.clone());
            }
            world.all_gather(&[]).unwrap_err()
        });
        assert_eq!(failed, vec![error; 3]);
    }
}
