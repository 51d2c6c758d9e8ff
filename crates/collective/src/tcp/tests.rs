//! Worlds of threads that communicate over TCP: the sums, and that all learn which process failed.

use super::*;
use crate::{Options, group_in};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
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

/// Runs `f` in each of `size` processes, and returns the results.
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
            // each channel can make more channels
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
            // later calls fail too
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

/// The others detect the death of a process even if none of them is in a call.
#[test]
fn a_process_that_dies_is_noticed_at_once() {
    for victim in 0..3 {
        let all_are_in = std::sync::Barrier::new(3);
        let errors = among(3, PLENTY, |world| {
            all_are_in.wait();
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

/// Process 0 names the late process to the others; if it is late itself, they name it.
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
    let line = "processes 1, 2 did not arrive within 2s";
    assert_eq!(error.to_string(), line);
}

/// Sending a large message ends in time if the other process does not read it.
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
    let why = "67108865 bytes to gather; at most 67108864 are possible".to_owned();
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
            "all-reduce: process 1: it has WORLD_SIZE 3, process 0 has 2",
            "all-reduce: process 1: it has WORLD_SIZE 3, process 0 has another"
        ]
    );
    let errors = on_threads(vec![0, 1, 1], |rank| {
        let world = Star::of(&job.place(rank, 3), Some(PLENTY));
        world.err().unwrap().to_string()
    });
    let twice = "all-reduce: process 1: two processes have RANK 1";
    assert_eq!(errors, [twice; 3]);
}

/// Another program listens on a port of process 0, and another one connects to process 0.
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
    let another = Job::new(); // another job: its process 0 may listen on the next port
    on_threads(
        vec![(&job, 0), (&another, 0), (&job, 1), (&another, 1)],
        |(job, rank)| {
            if rank == 1 {
                for i in 2..=16 {
                    if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", job.port() + i)) {
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

/// The first number that process 0 and the others send.
const GREETING: u64 = u64::from_le_bytes(*b"replicas");

/// Connects to a port, and sends nothing; returns the number of the job of process 0 there.
fn visit(port: u16) -> std::io::Result<(TcpStream, u64)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(LITTLE))?;
    let mut said = [0; 16];
    stream.read_exact(&mut said)?;
    let [greeting, job] = words(&said);
    assert_eq!(greeting, GREETING);
    Ok((stream, job))
}

/// The port on which process 0 of a job listens; waits until it does.
fn port_of_process_0(job: &Job) -> u16 {
    let listens = |port: &u16| visit(*port).is_ok_and(|(_, of)| of == u64::from(job.port()));
    for _ in 0..500 {
        if let Some(port) = job.place(0, 2).ports().find(listens) {
            return port;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("process 0 does not start");
}

/// Whether process 0 has closed the connection.
fn is_turned_away(mut stream: TcpStream) -> bool {
    let read = stream.read(&mut [0]);
    read.map_or_else(|error| line::trouble(&error) == Trouble::Broken, |n| n == 0)
}

/// More strangers than process 0 keeps, and one with another protocol.
#[test]
fn strangers_do_not_keep_processes_out() {
    let job = Job::new();
    let limit = 5 * LITTLE;
    on_threads(vec![0, 1], |rank| {
        let mut strangers = Vec::new();
        if rank == 1 {
            let port = port_of_process_0(&job);
            strangers.extend((0..80).map(|_| visit(port).unwrap().0));
            let request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
            strangers[79].write_all(request).unwrap();
        }
        let mut world = Star::of(&job.place(rank, 2), Some(limit)).unwrap();
        assert_eq!(world.all_gather(&[7]).unwrap(), [[7], [7]]);
        if rank == 1 {
            assert!(is_turned_away(strangers.pop().unwrap()), "it is let in");
            assert!(is_turned_away(strangers.remove(0)), "all are kept");
        }
    });
}

/// The hello of a process may take longer than the greeting of process 0.
#[test]
fn a_process_that_is_slow_is_let_in() {
    let job = Job::new();
    on_threads(vec![0, 1], |rank| {
        if rank == 0 {
            Star::of(&job.place(0, 2), Some(PLENTY)).unwrap();
            return;
        }
        let port = port_of_process_0(&job);
        let lines = [(u64::MAX, 0), (0, 2200)].map(|(channel, wait)| {
            let mut stream = visit(port).unwrap().0;
            let hello = [GREETING, 1, 2, channel].map(u64::to_le_bytes);
            let (first, second) = hello.as_flattened().split_at(20);
            stream.write_all(first).unwrap();
            std::thread::sleep(Duration::from_millis(wait));
            stream.write_all(second).unwrap();
            let mut welcome = [1; 8];
            stream.read_exact(&mut welcome).unwrap();
            assert_eq!(welcome, [0; 8], "channel {channel}");
            stream
        });
        let mut go = [0];
        (&lines[1]).read_exact(&mut go).unwrap();
        assert_eq!(go, [GO]);
    });
}

/// Process 0 drops the connection, to make room for others, before it has received the hello.
#[test]
fn a_process_that_is_turned_away_comes_again() {
    let (job, listener) = loop {
        let job = Job::new();
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", job.port() + 1)) {
            break (job, listener);
        }
    };
    on_threads(vec![0, 1], |rank| {
        if rank == 1 {
            Star::of(&job.place(1, 2), Some(PLENTY)).unwrap();
            return;
        }
        let greeting = [GREETING, u64::from(job.port())].map(u64::to_le_bytes);
        let (mut lines, mut is_second) = (Vec::new(), false);
        while lines.len() < 2 {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(greeting.as_flattened()).unwrap();
            if is_second && stream.read_exact(&mut [0; 32]).is_ok() {
                stream.write_all(&[0; 8]).unwrap();
                lines.push(stream);
            }
            is_second = !is_second;
        }
        lines[1].write_all(&[GO]).unwrap();
        let mut goodbye = Vec::new();
        lines[0].read_to_end(&mut goodbye).unwrap();
        assert_eq!(goodbye, [0; 24]);
    });
}

#[test]
fn a_master_that_is_not_known_is_named() {
    let host = "x".repeat(64); // a part of a name is never so long, so no name server is asked
    let place = Place {
        host: host.clone(),
        ..Job::new().place(1, 2)
    };
    let error = Star::of(&place, Some(Duration::from_millis(100)));
    let error = error.err().unwrap().to_string();
    let words = format!("all-reduce: process 1: MASTER_ADDR {host:?} cannot be found: ");
    assert!(error.starts_with(&words), "{error}");
}

/// It is stopped for longer than its limit, as by Ctrl-Z. The process is a second run of this test.
#[test]
fn a_process_that_is_stopped_while_it_waits_meets_the_others() {
    const NAME: &str = "tcp::tests::a_process_that_is_stopped_while_it_waits_meets_the_others";
    const OTHER: &str = "COLLECTIVE_TEST_PORT_AND_RANK";
    if let Ok(other) = std::env::var(OTHER) {
        let (port, rank) = other.split_once(' ').unwrap();
        let (port, host) = (port.parse().unwrap(), "127.0.0.1".to_owned());
        let (rank, size) = (rank.parse().unwrap(), 2);
        TcpStream::connect((&host[..], port)).unwrap(); // it has started
        let place = Place {
            rank,
            size,
            host,
            port,
        };
        Star::of(&place, Some(LITTLE)).unwrap();
        return;
    }
    on_threads(vec![0, 1], |rank| {
        let job = Job::new();
        let mut other = Command::new(std::env::current_exe().unwrap())
            .args([NAME, "--exact", "--nocapture"])
            .env(OTHER, format!("{} {rank}", job.port()))
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        job.0.accept().unwrap();
        for (signal, time) in [("-STOP", LITTLE), ("-CONT", Duration::ZERO)] {
            std::thread::sleep(Duration::from_millis(100));
            let mut kill = Command::new("kill");
            let sent = kill.args([signal, &other.id().to_string()]).status();
            assert!(sent.unwrap().success());
            std::thread::sleep(time);
        }
        std::thread::sleep(Duration::from_millis(100));
        let world = Star::of(&job.place(1 - rank, 2), Some(PLENTY));
        let ended = other.wait().unwrap();
        assert!(
            ended.success() && world.is_ok(),
            "{ended} {:?}",
            world.err()
        );
    });
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
