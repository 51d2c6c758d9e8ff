//! Checks that the machine has enough memory left: Linux ends a process that takes too much. On other systems there is
//! no check.
//!
//! A step that fits must not be refused. So the need is a lower bound, and the memory that is left an upper bound:
//! what the machine, its containers and `ulimit` leave. Before a step needs more than any before it, the need of all
//! replicas at once is compared.

use candle_core::{Result, bail};
use std::fs::read_to_string;
use std::path::Path;

/// An error if the machine, or a limit of this process, has no room on the CPU for the `floats` that `what` needs. The
/// process has `already` some of them; they are counted after the memory that is left, so that memory which is
/// allocated meanwhile is counted. If the system does not tell how much is left, there is no error.
///
/// ```
/// data_parallel_functional::check_memory("a network", 1 << 20, || 0)?;
/// if std::path::Path::new("/proc/meminfo").exists() {
///     let error = data_parallel_functional::check_memory("a network", 1 << 58, || 0).unwrap_err().to_string();
///     assert!(error.starts_with("out of memory on the CPU: a network needs at least 1099511627776 MiB, "));
/// }
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// As above.
pub fn check(what: &str, floats: usize, already: impl Fn() -> usize) -> Result<()> {
    let Some(left) = left() else { return Ok(()) };
    let bytes = 4 * floats;
    let left = left.saturating_add(4 * already());
    if bytes > left {
        let [bytes, left] = [bytes, left].map(|bytes| bytes >> 20);
        bail!("out of memory on the CPU: {what} needs at least {bytes} MiB, {left} MiB are left")
    }
    Ok(())
}

/// The bytes that this process can still take, by the tightest limit.
fn left() -> Option<usize> {
    let read = |file| read_to_string(Path::new("/proc").join(file)).unwrap_or_default();
    let info = read("meminfo");
    let limits = read("self/limits");
    let status = read("self/status");
    let swap = number(&info, "SwapFree:")?;
    let mut all = vec![number(&info, "MemAvailable:").map(|memory| memory + swap)];
    // `ulimit -v` and `-d`: memory that is reserved and not in use can still be used, so it is not subtracted
    for (limit, used) in [
        ("Max address space", "VmRSS:"),
        ("Max data size", "RssAnon:"),
    ] {
        let used = number(&status, used)?;
        all.push(number(&limits, limit).map(|limit| limit.saturating_sub(used)));
    }
    // containers: control groups of version 2 or 1, and those above them
    for line in read("self/cgroup").lines() {
        let [root, limit, used, files] = match line.split(':').nth(1)? {
            "" => ["", "max", "current", "file "],
            "memory" => ["memory", "limit_in_bytes", "usage_in_bytes", "total_cache "],
            _ => continue,
        };
        let path = format!("/sys/fs/cgroup/{root}{}", line.rsplit(':').next()?);
        all.extend(Path::new(&path).ancestors().map(|group| {
            let file = |name| read_to_string(group.join(format!("memory.{name}"))).ok();
            // files in memory are given back
            let more = swap + number(&file("stat")?, files)?;
            Some((number(&file(limit)?, "")? + more).saturating_sub(number(&file(used)?, "")?))
        }));
    }
    all.into_iter().flatten().min()
}

/// The number behind a word that begins a line, in bytes.
fn number(text: &str, word: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix(word))?;
    let number: usize = line.split_whitespace().next()?.parse().ok()?;
    Some(number << if line.ends_with("kB") { 10 } else { 0 })
}
