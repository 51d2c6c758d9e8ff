//! A run starts no more threads than its replicas need, whatever candle would start by itself; and what it computes
//! does not depend on threads or cores.

use std::collections::{HashSet, VecDeque};
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::kit::{ended, has, start};

trials![
    no_threads_but_those_of_the_replicas,
    any_number_of_cores_gives_the_same_bits,
    #[cfg(target_os = "linux")]
    a_run_takes_a_thread_for_each_core_that_it_was_given,
];

/// Two replicas on two cores: the main thread and its helper in evaluations, two threads that
/// compute, one that prepares minibatches, one that waits for Ctrl-C, and one that sleeps and says how far a long epoch
/// is. `concise` has two more that sum gradients, and two of rayon's in place of the helper. A thread that is seen only once may be about
/// to end, and is not counted.
fn no_threads_but_those_of_the_replicas() -> Result<()> {
    let args = "--device cpu --data synthetic --limit-test 50 --gpus 2 --threads 2 --batch-size 32";
    for (program, rest, limit) in [
        ("scratch", "--limit-train 2000 --epochs 6", 7),
        ("concise", "--limit-train 96 --epochs 1", 10),
    ] {
        let mut child = start(program, &format!("{args} {rest}"))?;
        // a thread that has ended may be listed for a moment longer: those in ten readings in a row count
        let (mut most, mut readings) = (0, VecDeque::new());
        let status = loop {
            let threads = fs::read_dir(format!("/proc/{}/task", child.id()));
            let threads = threads.into_iter().flatten().flatten();
            let now: HashSet<_> = threads.map(|thread| thread.file_name()).collect();
            readings.push_back(now);
            if readings.len() > 10 {
                readings.pop_front();
                let lasting =
                    |thread: &&_| readings.iter().all(|reading| reading.contains(*thread));
                most = most.max(readings[0].iter().filter(lasting).count());
            }
            match child.try_wait()? {
                Some(status) => break status,
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        ensure!(status.success(), "{program}: {status}");
        ensure!((3..=limit).contains(&most), "{program}: {most} threads");
    }
    Ok(())
}

/// What a program prints that may use these cores.
fn on_cores(cores: &str, program: &str, args: &str) -> Result<String> {
    let mut command = Command::new("taskset");
    command.args(["-c", cores]).arg(std::env::current_exe()?);
    command
        .args(["--as", program])
        .args(args.split_whitespace());
    let (status, stdout, stderr) = ended(command.output()?)?;
    ensure!(status == 0, "{cores}: {program} {args}: {stderr}");
    Ok(stdout)
}

/// More threads than cores, fewer, and a process that has one core only.
fn any_number_of_cores_gives_the_same_bits() -> Result<()> {
    let args = "--device cpu --data synthetic --limit-train 21 --limit-test 8 --batch-size 9 --epochs 1 --gpus 3";
    let folder = tempfile::tempdir()?;
    for program in ["scratch", "concise"] {
        let model = |name: &str, cores: &str, threads: &str| -> Result<Vec<u8>> {
            let out = folder.path().join(format!("{program}-{name}"));
            let args = format!("{args} {threads} --out {}", out.display());
            on_cores(cores, program, &args)?;
            Ok(fs::read(out.join("model.safetensors"))?)
        };
        let one = model("one", "0", "")?;
        for threads in ["1", "2", "7"] {
            let other = model(threads, "0-255", &format!("--threads {threads}"))?;
            ensure!(one == other, "{program}: {threads} threads show");
        }
        let other = model("seed", "0-255", "--seed 1")?;
        ensure!(one != other, "{program}: the seed changes nothing");
    }
    Ok(())
}

/// Processes that may use one hyperthread, all hyperthreads of its core, and one of each core.
#[cfg(target_os = "linux")]
fn a_run_takes_a_thread_for_each_core_that_it_was_given() -> Result<()> {
    // of CPU 0 alone, if the system does not say
    let siblings = |cpu: usize| {
        let folder = format!("/sys/devices/system/cpu/cpu{cpu}/topology");
        let list = fs::read_to_string(format!("{folder}/core_cpus_list"));
        list.map_or(cpu.to_string(), |list| list.trim().to_owned())
    };
    let core = siblings(0);
    let both = if core == "0" {
        "1 of 1 cores each"
    } else {
        "1 of 2 hyperthreads each"
    };
    let cpus = std::thread::available_parallelism()?.get();
    let other_core = (1..cpus).find(|cpu| siblings(*cpu) != core);
    let (one_each, cores) = match other_core {
        Some(cpu) => (format!("0,{cpu}"), "1 of 2 cores each"),
        None => ("0".to_owned(), "1 of 1 cores each"),
    };
    let args = "--device cpu --data synthetic --limit-train 2 --limit-test 2 --batch-size 2 --epochs 1 --gpus 2";
    for (allowed, words) in [
        ("0", "1 of 1 cores each"),
        (&core, both),
        (&one_each, cores),
    ] {
        has(&on_cores(allowed, "scratch", args)?, words)?;
    }
    Ok(())
}
