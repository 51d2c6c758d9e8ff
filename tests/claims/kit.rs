//! What the claims share: how a test is listed, small runs, and programs as processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use candle_core::Tensor;
use d2l::Param;
use libtest_mimic::{Failed, Trial};

#[path = "../../crates/dataset/tests/fixtures/idx.rs"]
mod idx;
#[path = "../../crates/data-parallel/tests/library/kit.rs"]
mod library;

pub use idx::{gzip, write_idx};
pub use library::*;

/// Lists functions `fn() -> anyhow::Result<()>` as the tests of a module.
macro_rules! trials {
    ($($(#[$where:meta])? $test:ident),* $(,)?) => {
        pub fn trials() -> Vec<libtest_mimic::Trial> {
            listed!(true, "", $($(#[$where])? $test),*)
        }
    };
}

/// The tests of such functions; they are listed as ignored where `needs` is not there.
macro_rules! listed {
    ($there:expr, $needs:expr, $($(#[$where:meta])? $test:ident),* $(,)?) => {{
        let (there, module) = ($there, module_path!());
        Vec::from([$(
            $(#[$where])?
            $crate::kit::trial_if(there, $needs, module, stringify!($test), $test)
        ),*])
    }};
}

pub fn trial(
    module: &str,
    name: &str,
    test: impl FnOnce() -> Result<()> + Send + 'static,
) -> Trial {
    let module = module.rsplit("::").next().unwrap_or(module);
    Trial::test(format!("{module}::{name}"), move || {
        test().map_err(|e| Failed::from(format!("{e:#}")))
    })
}

/// As [`trial`], listed as ignored where `needs` is not there.
pub fn trial_if(
    there: bool,
    needs: &str,
    module: &str,
    name: &str,
    test: fn() -> Result<()>,
) -> Trial {
    if there {
        return trial(module, name, test);
    }
    let name = format!("{name} (ignored: needs {needs})");
    trial(module, &name, test).with_ignored_flag(true)
}

/// A folder of the real Fashion-MNIST, for the tests that are about it.
pub fn real_data() -> Option<PathBuf> {
    let folder = std::env::var_os("FASHION_MNIST_DIR")?;
    (!folder.is_empty()).then(|| folder.into())
}

/// How often a loop is repeated: `n` times, or with CLAIMS_TIMES=10 ten times as often.
pub fn times(n: usize) -> usize {
    let factor = std::env::var("CLAIMS_TIMES").ok();
    n * factor.map_or(1, |times| times.parse().expect("CLAIMS_TIMES is a number"))
}

/// Options of a run on a few synthetic examples on the CPU.
pub fn small(gpus: usize) -> run::Options {
    run::Options {
        gpus: Some(gpus),
        batch_size: Some(16),
        epochs: 1,
        data: Some(dataset::Data::Synthetic),
        limit_train: Some(50),
        limit_test: Some(20),
        device: data_parallel::devices::DeviceKind::Cpu,
        ..run::Options::default()
    }
}

/// The command `program args…`, as a process of this binary.
pub fn command(program: &str, args: &str) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--as", program]);
    command.args(args.split_whitespace());
    Ok(command)
}

/// Starts `program args…`; nothing of what it prints is kept.
pub fn start(program: &str, args: &str) -> Result<Child> {
    let mut command = command(program, args)?;
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command.spawn()?)
}

/// The repository's root.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Runs `program args…` to its end: exit status, stdout, stderr.
pub fn run(program: &str, args: &str) -> Result<(i32, String, String)> {
    ended(command(program, args)?.output()?)
}

/// What a process says last that went through all it had to.
const ALL: &str = "that was all";

/// Does in this process what [`comes_to_its_end`] waits for. `all` prints where it is.
pub fn to_its_end(all: impl FnOnce() -> Result<()>) -> ExitCode {
    match all() {
        Ok(()) => {
            println!("{ALL}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs what this binary does as `name`; where it does not come to its end, the error says where it was.
pub fn comes_to_its_end(name: &str) -> Result<()> {
    let mut command = command(name, "")?;
    // to write down where a panic was takes memory
    let output = command.env("RUST_BACKTRACE", "0").output()?;
    let says = String::from_utf8_lossy(&output.stdout);
    let last = says.lines().last().unwrap_or("nothing");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let well = output.status.success() && last == ALL;
    ensure!(well, "{last}\n{stderr}");
    Ok(())
}

/// How a program ended: exit status, stdout, stderr.
pub fn ended(output: Output) -> Result<(i32, String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    let status = output.status.code();
    let status = status.with_context(|| format!("it was ended by a signal\n{stdout}{stderr}"))?;
    Ok((status, stdout, stderr))
}

/// Runs `program args…`, which ends well: stdout and stderr.
pub fn succeeds(program: &str, args: &str) -> Result<[String; 2]> {
    let (status, stdout, stderr) = run(program, args)?;
    ensure!(status == 0, "{program} {args}: {status}\n{stdout}{stderr}");
    Ok([stdout, stderr])
}

/// Runs `program args…`, which refuses to train: status 2, and stderr has all of `words`.
pub fn refuses(program: &str, args: &str, words: &[&str]) -> Result<()> {
    let (status, stdout, stderr) = run(program, args)?;
    ensure!(status == 2, "{program} {args}: {status}\n{stdout}{stderr}");
    ensure!(!stderr.contains("panicked"), "{program} {args}: {stderr}");
    ensure!(!stdout.contains("epoch 1"), "{program} {args}: {stdout}");
    let mut words = words.iter();
    words.try_for_each(|words| has(&stderr, words))
}

/// Waits until a file of a run is there, which must not end before.
pub fn until_there(file: &Path, run: &mut Child) -> Result<()> {
    until(|| file.exists(), &file.display().to_string(), run)
}

/// Waits until a run has written two checkpoints; it must not end before.
pub fn until_two_checkpoints(folder: &Path, run: &mut Child) -> Result<()> {
    until(
        || older_checkpoint(folder).is_some(),
        "two checkpoints",
        run,
    )
}

/// Waits until something is there while a process runs, which must not end before; for a few minutes at most.
pub fn until(mut is_there: impl FnMut() -> bool, what: &str, run: &mut Child) -> Result<()> {
    let start = Instant::now();
    while !is_there() {
        let ended = run.try_wait()?;
        ensure!(ended.is_none(), "{ended:?} before {what}");
        let took = start.elapsed();
        ensure!(took < Duration::from_secs(300), "no {what} in {took:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// A script in which `$PROGRAM` is a program of this binary, as root of a namespace that may mount.
pub fn in_a_namespace(program: &str, script: &str) -> Result<Command> {
    let this = std::env::current_exe()?;
    let mut command = Command::new("unshare");
    command
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .env("PROGRAM", format!("{} --as {program}", this.display()))
        .stdin(Stdio::null());
    Ok(command)
}

/// The checkpoint before the newest one in the folder of a run, if there is one.
pub fn older_checkpoint(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let step = |path: &Path| {
        let name = path.file_name()?.to_str()?.strip_prefix("checkpoint-")?;
        name.strip_suffix(".safetensors")?.parse::<usize>().ok()
    };
    let older = entries.map(|entry| entry.path());
    let older = older.filter_map(|path| Some((step(&path)?, path)));
    older.max().map(|(_, path)| path)
}

/// Sends a signal: `-KILL`.
#[cfg(unix)]
pub fn signal(signal: &str, pid: u32) -> Result<()> {
    let mut kill = Command::new("kill");
    let status = kill.args([signal, &pid.to_string()]).status()?;
    ensure!(status.success(), "kill {signal} {pid}: {status}");
    Ok(())
}

/// Lets the programs hear the signals that this process ignores, as under `nohup` or behind `&` in a script: they
/// would ignore them as well, but not what this process catches.
#[cfg(unix)]
pub fn programs_hear_signals() -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
    use std::sync::{Arc, atomic::AtomicBool};

    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(mask.unwrap_or("0").trim(), 16)?;
    for signal in [SIGHUP, SIGINT, SIGTERM, SIGUSR1] {
        if ignored & (1 << (signal - 1)) != 0 {
            signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
        }
    }
    Ok(())
}

/// Copies of parameters of `scratch` on `k` devices of the CPU.
pub fn copies(params: &[Tensor], k: usize) -> candle_core::Result<Vec<Vec<Param>>> {
    scratch::replicas(params, &cpus(k))
}
