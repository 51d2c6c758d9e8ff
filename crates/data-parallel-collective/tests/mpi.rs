//! Sums over processes that `mpirun` starts, on this machine: the bits of the sums, and the end of all
//! processes when one fails. Each test starts this binary as the ranks of a job. That all end when a rank is killed,
//! stopped or computes without end is a claim of the programs (tests/claims/several_processes.rs).

extern crate data_parallel_collective as collective;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::process::{Command, ExitCode, exit};
use std::time::Duration;

use collective::{Algorithm, Error, GroupOptions, Member, ProcessGroup, SumOrder, group_in, mpi};
use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() == Some("--rank-job") {
        return run_rank(&args.next().expect("the name of a job"));
    }
    let mut args = Arguments::from_args();
    args.test_threads.get_or_insert(2); // jobs wait for most of their time
    libtest_mimic::run(&args, trials()).exit_code()
}

use End::{Early, ErrorOfAll, Well};

/// What a rank does. An error is printed, and the rank's status is then 1.
type RankJob = fn() -> Result<(), Error>;

/// How a job ends.
#[derive(Clone, Copy)]
enum End {
    /// All ranks end without an error, and stderr is empty.
    Well,
    /// All ranks print this error.
    ErrorOfAll(&'static str),
    /// The status is this, and stderr contains all these words.
    Early(i32, &'static [&'static str]),
}

const LENGTHS: End = ErrorOfAll("all-reduce: replica 1 has 9 elements, replica 0 has 10");
const CALLS: End =
    ErrorOfAll("the replicas made different calls, or gave items of different types");
const PANIC: End = Early(101, &["a fault", "error: rank 1 has panicked"]);
const ABORT: End = Early(7, &["error: rank 1 gives up"]);
const EXIT_0: End = Early(1, &["process rank 1 with PID"]);
const LATE: End = Early(
    1,
    &["error: all-gather: ranks 0, 2 did not arrive within 3s\n"],
);
const LEFT: End = Early(1, &["error: all-reduce: rank 1 did not arrive within 3s\n"]);
const ONE: End = Early(1, &["error: all-gather: rank 1 did not arrive within 3s\n"]);
const ANY: End = Early(
    1,
    &["error: all-gather: rank", " did not arrive within 3s\n"],
);
const NO_END: End = Early(1, &["error: end of MPI: rank 1 did not arrive within 3s\n"]);

/// The name of the test, what the ranks do, and how that ends.
const JOBS: [(&str, RankJob, End); 14] = [
    ("sums_have_the_bits_of_one_process", sums, Well),
    ("gathered_bytes_come_in_rank_order", gathers, Well),
    ("two_threads_sum_at_once", channels, Well),
    ("other_lengths_are_an_error_for_all", lengths, LENGTHS),
    ("other_calls_are_an_error_for_all", calls, CALLS),
    (
        "mpi_does_not_end_while_there_are_process_groups",
        in_use,
        Well,
    ),
    ("a_panic_ends_all", || faulty(|| panic!("a fault")), PANIC),
    ("an_abort_ends_all", || faulty(|| mpi::abort(7)), ABORT),
    ("an_exit_with_0_ends_all", || faulty(|| exit(0)), EXIT_0),
    ("all_that_do_not_come_are_named", two_loops, LATE),
    ("one_that_waits_on_another_channel_is_not_named", waits, ONE),
    ("ranks_that_wait_for_each_other_end", cross, ANY),
    ("a_rank_that_has_left_is_named", leaves, LEFT),
    ("a_rank_that_does_not_end_is_named", no_end, NO_END),
];

fn trials() -> Vec<Trial> {
    let trial = |(name, _, end)| Trial::test(name, move || check_end(name, end));
    JOBS.into_iter().map(trial).collect()
}

// What starts the ranks.

struct Outcome {
    status: Option<i32>,
    out: String,
    err: String,
}

/// Runs a job on `n` ranks; no rank is left when this returns.
fn mpirun(job: &str, n: usize) -> Result<Outcome, Failed> {
    let this = std::env::current_exe()?;
    let run = Command::new("mpirun")
        .args(["--timeout", "60", "--oversubscribe", "--bind-to", "none"])
        .args(["--mca", "plm", "isolated", "-n", &n.to_string()]) // on this machine only, without ssh
        .arg(&this)
        .args(["--rank-job", job])
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .output();
    let output = run.map_err(|error| match error.kind() {
        ErrorKind::NotFound => "there is no mpirun: install Open MPI (Debian: openmpi-bin)".into(),
        _ => Failed::from(error),
    })?;
    Ok(Outcome {
        status: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

fn check(holds: bool, what: &str, outcome: &Outcome) -> Result<(), Failed> {
    let Outcome { status, out, err } = outcome;
    match holds {
        true => Ok(()),
        false => Err(format!("{what}; status {status:?}\n{out}\n{err}").into()),
    }
}

fn check_end(job: &str, end: End) -> Result<(), Failed> {
    match end {
        Well => (2..=4).try_for_each(|n| all_is_well(job, n)),
        ErrorOfAll(error) => (2..=4).try_for_each(|n| error_of_all(job, n, error)),
        Early(status, says) => ends(job, status, says),
    }
}

fn all_is_well(job: &str, n: usize) -> Result<(), Failed> {
    let outcome = mpirun(job, n)?;
    let well = outcome.out.matches("is well\n").count();
    check(outcome.status == Some(0), "it failed", &outcome)?;
    check(well == n, &format!("{well} of {n} are well"), &outcome)?;
    check(outcome.err.is_empty(), "stderr is not empty", &outcome)
}

fn error_of_all(job: &str, n: usize, error: &str) -> Result<(), Failed> {
    let outcome = mpirun(job, n)?;
    let said: BTreeSet<&str> = outcome.out.lines().collect();
    let all = (0..n).all(|rank| said.contains(format!("rank {rank}: {error}").as_str()));
    check(all, "not all say it", &outcome)?;
    check(outcome.status == Some(1), "the status is another", &outcome)
}

fn ends(job: &str, status: i32, says: &[&str]) -> Result<(), Failed> {
    let outcome = mpirun(job, 4)?;
    let same = outcome.status == Some(status);
    check(same, "the status is another", &outcome)?;
    for words in says {
        let said = outcome.err.contains(words);
        check(said, &format!("it does not say {words:?}"), &outcome)?;
    }
    let well = outcome.out.contains("is well\n");
    check(!well, "a rank came to its end", &outcome)
}

// What the ranks do.

fn run_rank(name: &str) -> ExitCode {
    let job = JOBS.iter().find(|job| job.0 == name);
    let outcome = job.expect("a job of this name").1();
    let rank = std::env::var("OMPI_COMM_WORLD_RANK").expect("mpirun sets it");
    match &outcome {
        Ok(()) => println!("rank {rank} is well"),
        Err(error) => println!("rank {rank}: {error}"),
    }
    mpi::finish().expect("all process groups are gone");
    ExitCode::from(u8::from(outcome.is_err()))
}

/// A process group without a limit; `mpirun` has a limit.
fn process_group() -> Result<Box<dyn ProcessGroup>, Error> {
    mpi::process_group(None)
}

fn impatient() -> Result<Box<dyn ProcessGroup>, Error> {
    mpi::process_group(Some(Duration::from_secs(3)))
}

/// Values with a sum that depends on the order.
fn values(rank: usize, seed: usize, n: usize) -> Vec<f32> {
    let value = |i: usize| {
        let bits = (i * 7919 + rank * 104_729 + seed * 31) % 10_007;
        (bits as f32 - 5000.0) * 0.37_f32.powi((bits % 13) as i32)
    };
    (0..n).map(value).collect()
}

/// The sum of all parts in pairs, then pairs of pairs.
fn in_pairs(parts: &[Vec<f32>]) -> Vec<f32> {
    if let [one] = parts {
        return one.clone();
    }
    let (left, right) = parts.split_at(parts.len().next_power_of_two() / 2);
    added(in_pairs(left), in_pairs(right))
}

fn added(mut sums: Vec<f32>, more: Vec<f32>) -> Vec<f32> {
    sums.iter_mut().zip(more).for_each(|(sum, x)| *sum += x);
    sums
}

/// A sum in some order.
type Sum = fn(&[Vec<f32>]) -> Vec<f32>;

/// Sums `data` over processes with one vector each.
fn sum(processes: &mut Box<dyn ProcessGroup>, data: &mut [f32]) -> Result<(), Error> {
    let order = SumOrder::new(&vec![1; processes.size()], Algorithm::Auto);
    processes.all_reduce(&mut [data], &order)
}

fn on_threads<T: Send, U: Send>(items: Vec<T>, f: impl Fn(T) -> U + Sync) -> Vec<U> {
    std::thread::scope(|s| {
        let run = |item| s.spawn(|| f(item));
        let threads: Vec<_> = items.into_iter().map(run).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn assert_bits(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected);
    let different = pairs.filter(|(f, e)| f.to_bits() != e.to_bits());
    assert_eq!(different.count(), 0, "of {} elements", expected.len());
}

/// Pieces and chunks of all kinds: none, some empty, odd ones, and more than one piece.
fn sums() -> Result<(), Error> {
    let pairs: Sum = in_pairs;
    let star: Sum = |parts| parts.iter().cloned().reduce(added).expect("there are some");
    for (layout, algorithm, order) in [
        ([1, 1, 1, 1], Algorithm::Auto, pairs),
        ([2, 2, 2, 2], Algorithm::Auto, pairs),
        ([3, 1, 2, 5], Algorithm::Auto, pairs),
        ([3, 1, 2, 5], Algorithm::Star, star),
    ] {
        let processes = process_group()?;
        let own = layout[processes.rank()];
        let k: usize = layout[..processes.size()].iter().sum();
        let options = GroupOptions {
            algorithm,
            ..GroupOptions::default()
        };
        let mut members = group_in(processes, own, options)?;
        for (seed, n) in [0, 1, 17, 129_068, 1_000_000].into_iter().enumerate() {
            let all: Vec<_> = (0..k).map(|rank| values(rank, seed, n)).collect();
            let expected = order(&all);
            let sums = on_threads(members.iter_mut().collect(), |member: &mut Member| {
                let part = member.reduce_scatter(all[member.rank()].clone())?;
                assert_bits(&part, &expected[member.part(n)]);
                assert_bits(&member.all_gather_parts(part)?, &expected);
                member.all_reduce(all[member.rank()].clone())
            });
            for sum in sums {
                assert_bits(&sum?, &expected);
            }
        }
    }
    Ok(())
}

fn gathers() -> Result<(), Error> {
    let mut processes = process_group()?;
    let (rank, size) = (processes.rank(), processes.size());
    for n in [0, 1, 30, 112, 113, 10_000] {
        let of = |rank: usize| vec![rank as u8 + 1; n * rank];
        let expected: Vec<_> = (0..size).map(of).collect();
        assert_eq!(processes.all_gather(&of(rank))?, expected);
    }
    Ok(())
}

/// The two threads sum different lengths at the same time.
fn channels() -> Result<(), Error> {
    let first = process_group()?;
    let second = first.duplicate()?;
    let done = on_threads(vec![(first, 1), (second, 2)], |(mut processes, thread)| {
        for round in 0..50 {
            let n = [3, 1000, 20_000][(round * thread) % 3] + thread;
            let all: Vec<_> = (0..processes.size()).map(|r| values(r, round, n)).collect();
            let mut data = all[processes.rank()].clone();
            sum(&mut processes, &mut data)?;
            assert_bits(&data, &in_pairs(&all));
        }
        Ok(())
    });
    done.into_iter().collect()
}

fn lengths() -> Result<(), Error> {
    let mut processes = process_group()?;
    sum(&mut processes, &mut [1.0; 10])?;
    match processes.rank() {
        1 => sum(&mut processes, &mut [1.0; 9]),
        _ => sum(&mut processes, &mut [1.0; 10]),
    }
}

fn calls() -> Result<(), Error> {
    let mut processes = process_group()?;
    match processes.rank() {
        1 => processes.all_gather(&[1]).map(drop),
        2 => {
            let order = SumOrder::new(&vec![1; processes.size()], Algorithm::Auto);
            processes.reduce_scatter(&mut [&mut [1.0; 10]], &order)
        }
        _ => sum(&mut processes, &mut [1.0; 10]),
    }
}

fn in_use() -> Result<(), Error> {
    let first = process_group()?;
    let second = first.duplicate()?;
    drop(first);
    let error = mpi::finish().expect_err("there is another process group");
    let error = error.to_string();
    assert!(error.contains("drop all process groups first"), "{error}");
    drop(second);
    mpi::finish()?;
    let error = process_group().err().expect("MPI is finished").to_string();
    assert!(error.contains("cannot start again"), "{error}");
    Ok(())
}

/// Rank 1 does `fault` after some rounds, while the others go on.
fn faulty(fault: fn()) -> Result<(), Error> {
    let mut processes = process_group()?;
    for round in 0.. {
        if round == 5 && processes.rank() == 1 {
            fault();
        }
        sum(&mut processes, &mut [1.0; 1000])?;
    }
    Ok(())
}

fn endless() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Rank 3 arrives later than rank 1; the error must not name it.
fn two_loops() -> Result<(), Error> {
    let mut processes = impatient()?;
    match processes.rank() {
        0 | 2 => endless(),
        3 => std::thread::sleep(Duration::from_millis(500)),
        _ => (),
    }
    processes.all_gather(&[]).map(drop)
}

/// All wait for rank 1: rank 0 on one channel, the others still on another one.
fn waits() -> Result<(), Error> {
    let mut first = impatient()?;
    let mut second = first.duplicate()?;
    match first.rank() {
        0 => second.all_gather(&[]).map(drop),
        1 => endless(),
        _ => first.all_gather(&[]).map(drop),
    }
}

/// Rank 1 waits on another channel than the others.
fn cross() -> Result<(), Error> {
    let mut first = impatient()?;
    let mut second = first.duplicate()?;
    match first.rank() {
        1 => second.all_gather(&[]).map(drop),
        _ => first.all_gather(&[]).map(drop),
    }
}

/// Rank 1 drops its process group, but does not end.
fn leaves() -> Result<(), Error> {
    let mut processes = impatient()?;
    if processes.rank() == 1 {
        drop(processes);
        endless();
    }
    sum(&mut processes, &mut [1.0])
}

fn no_end() -> Result<(), Error> {
    if impatient()?.rank() == 1 {
        endless();
    }
    mpi::finish()
}
