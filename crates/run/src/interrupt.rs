//! Ctrl-C ends a run in order: the iterators over the data end, and so does everything that loops over them. They
//! never end inside a step of several minibatches. So the training functions do not mention Ctrl-C. A second Ctrl-C,
//! half a second after the first or later, ends the process at once.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Context;
use devices::lock;

use crate::say::{above_the_bar, remove_bar};

/// The exit status after Ctrl-C.
pub(crate) const INTERRUPTED_STATUS: u8 = 130;
/// A second signal within this time is the same wish: `timeout` sends one to the program and one to its group, and `perf`
/// adds one to that of the terminal.
const INSISTS_AFTER: Duration = Duration::from_millis(500);

// Statics, because signals come to the process.
/// This process has been asked to end.
static ASKED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
/// The run ends in order: the iterators over the data end. Several processes have to agree first; one that is alone ends
/// as soon as it is asked.
static ENDS: LazyLock<Mutex<Arc<AtomicBool>>> = LazyLock::new(|| Mutex::new(ASKED.clone()));

/// True if Ctrl-C was pressed (or the process was asked to end) since the start.
///
/// ```
/// assert!(!run::interrupted());
/// ```
pub fn interrupted() -> bool {
    ends().load(SeqCst)
}

/// The flag that Ctrl-C sets: for [`Trainer::stop_when`](https://docs.rs/data-parallel), which lets several processes end
/// together.
pub fn asked_to_end() -> Arc<AtomicBool> {
    ASKED.clone()
}

/// The flag that ends the run.
pub(crate) fn ends() -> Arc<AtomicBool> {
    lock(&ENDS).clone()
}

/// From here on the run ends when `flag` is set.
pub(crate) fn end_when(flag: Arc<AtomicBool>) {
    *lock(&ENDS) = flag;
}

/// From here on Ctrl-C, SIGTERM and SIGHUP only set the flag, the first time, and so do the signals with which queues
/// warn: SIGUSR1, SIGUSR2 and SIGXCPU. One that was ignored when the program started stays ignored: so `nohup` asks for
/// it, and `sh` for what it starts in the background.
pub(crate) fn catch() -> anyhow::Result<()> {
    static CAUGHT: AtomicBool = AtomicBool::new(false);
    if CAUGHT.swap(true, SeqCst) {
        Ok(())
    } else {
        on_signals().context("for Ctrl-C a thread could not be started")
    }
}

#[cfg(unix)]
fn on_signals() -> std::io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU, SIGXFSZ};

    let ignored = ignored();
    let mut wanted = vec![SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU];
    wanted.retain(|signal| ignored & (1 << (signal - 1)) == 0);
    // a file that may grow no more is as a full disk: the write fails, and the process goes on
    signal_hook::flag::register(SIGXFSZ, Arc::default())?;
    let mut signals = signal_hook::iterator::Signals::new(wanted)?;
    // of a terminal that closes the shell tells and the system, and a queue warns before it ends a job: only Ctrl-C and
    // SIGTERM insist
    let insists = |signal| signal == SIGINT || signal == SIGTERM;
    let serve = move || signals.forever().for_each(|s| signalled(insists(s)));
    std::thread::Builder::new()
        .name("ctrl-c".into())
        .spawn(serve)
        .map(drop)
}

/// The signals that this process was started to ignore, a bit each from signal 1. Only Linux tells without
/// `unsafe`; elsewhere none.
#[cfg(unix)]
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(not(unix))]
fn on_signals() -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(|| signalled(true))
}

/// The first time the run ends in order; the second time that a signal insists, the process ends at once.
fn signalled(insists: bool) {
    static INSISTED: OnceLock<Instant> = OnceLock::new();
    if let Some(first) = INSISTED.get() {
        if insists && first.elapsed() >= INSISTS_AFTER {
            remove_bar();
            std::process::exit(INTERRUPTED_STATUS.into());
        }
        return;
    }
    if insists {
        let _ = INSISTED.set(Instant::now());
    }
    let was_asked = ASKED.swap(true, SeqCst);
    if was_asked && !insists {
        return;
    }
    let word = if insists {
        "stopping after this step; press Ctrl-C again to stop at once"
    } else {
        "stopping after this step"
    };
    // the terminal has written ^C; with a bar that is gone
    above_the_bar(|drawn| {
        if drawn {
            writeln!(std::io::stderr(), "{word}")
        } else {
            writeln!(std::io::stderr(), "\n{word}")
        }
    });
}
