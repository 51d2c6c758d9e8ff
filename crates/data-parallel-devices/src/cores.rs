//! Counts the cores of the process, and shares them among the replicas. By default a run takes a thread for each core,
//! and no second hyperthread; a single core with hyperthreads has two. It pins no thread.

use std::collections::BTreeSet;
use std::fs;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The limit of [`limit_cores`]; 0 is no limit. A static, because the cores belong to the process.
static LIMIT: AtomicUsize = AtomicUsize::new(0);

/// The cores that a process may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenCores {
    /// Number of threads that can run at the same time: one on each hyperthread, or fewer where a quota allows fewer.
    pub threads: usize,
    /// The hyperthreads that affinity and cpuset allow. A core without hyperthreads counts as one.
    pub hyperthreads: usize,
    /// The cores that have these hyperthreads.
    pub cores: usize,
    /// The numbers of the CPUs that the affinity allows; empty if the system does not say.
    pub allowed: BTreeSet<u32>,
}

impl GivenCores {
    /// Reads Linux's files with `read`. `threads` is what std counts: it knows the affinity of up to 1024 CPUs, and the
    /// quota. Without the files, each of these threads counts as a core.
    fn of(threads: usize, read: impl Fn(&str) -> Option<String>) -> Self {
        let status = read("/proc/thread-self/status").or_else(|| read("/proc/self/status"));
        let allowed = status
            .as_deref()
            .and_then(|status| {
                let list = |line: &str| cpu_list(line.strip_prefix("Cpus_allowed_list:")?);
                status.lines().find_map(list)
            })
            .unwrap_or_default();
        // a CPU that is offline or not there has no such file
        let siblings = |cpu: &u32| {
            let folder = format!("/sys/devices/system/cpu/cpu{cpu}/topology");
            read(&format!("{folder}/core_cpus_list"))
                .or_else(|| read(&format!("{folder}/thread_siblings_list")))
        };
        let cores: Vec<String> = allowed.iter().filter_map(siblings).collect();
        let hyperthreads = cores.len();
        if hyperthreads == 0 || hyperthreads < threads.min(allowed.len()) {
            return Self {
                threads,
                hyperthreads: threads,
                cores: threads,
                allowed,
            };
        }
        Self {
            threads: threads.min(hyperthreads),
            hyperthreads,
            // all hyperthreads of a core have the same list
            cores: BTreeSet::from_iter(cores).len(),
            allowed,
        }
    }

    /// The threads that a run has if its user does not say how many: one for each core, as a second hyperthread adds
    /// little. A single core with hyperthreads has two.
    ///
    /// ```
    /// let given = data_parallel_devices::GivenCores { threads: 16, hyperthreads: 16, cores: 8, allowed: (0..16).collect() };
    /// assert_eq!(given.default_threads(), 8);
    /// ```
    pub fn default_threads(&self) -> usize {
        self.cores.max(2).min(self.threads)
    }

    /// True if a quota allows fewer threads than there are hyperthreads.
    ///
    /// ```
    /// let given = data_parallel_devices::GivenCores { threads: 2, hyperthreads: 8, cores: 8, allowed: (0..8).collect() };
    /// assert!(given.has_quota());
    /// ```
    pub fn has_quota(&self) -> bool {
        self.threads < self.hyperthreads
    }
}

/// The cores that this process may use: the CPUs of its affinity and its cpuset, and the quota of its cgroup, rounded
/// down. CPU shares, which only count on a busy machine, are not counted.
///
/// They are counted at the first call, so that all parts of a run count the same, and a thread that is pinned later
/// changes nothing. The affinity is that of the thread which makes this call: threads that it starts inherit it.
///
/// ```
/// let given = data_parallel_devices::given_cores();
/// assert!(given.default_threads() <= given.threads);
/// ```
pub fn given_cores() -> &'static GivenCores {
    static GIVEN: OnceLock<GivenCores> = OnceLock::new();
    GIVEN.get_or_init(|| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        GivenCores::of(threads, |file| fs::read_to_string(file).ok())
    })
}

/// The numbers in a list such as `0-3,8,10-11`.
fn cpu_list(list: &str) -> Option<BTreeSet<u32>> {
    let mut cpus = BTreeSet::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cpus.extend(first.parse::<u32>().ok()?..=last.parse().ok()?);
    }
    Some(cpus)
}

/// The number of threads that this process may use: one for each core that it [was given](given_cores), or as many as
/// [`limit_cores`] allows. Of two hyperthreads of a core one is used, unless that leaves fewer than two threads.
///
/// ```
/// assert!(data_parallel_devices::cores() >= 1);
/// ```
pub fn cores() -> usize {
    match LIMIT.load(Ordering::Relaxed) {
        0 => given_cores().default_threads(),
        limit => limit,
    }
}

/// Limits the cores of this process; `None` takes the limit away, and 0 counts as 1. A limit may count hyperthreads. More threads than can
/// run at the same time are not used, because threads without a core only wait for each other.
///
/// ```
/// data_parallel_devices::limit_cores(Some(1));
/// assert_eq!(data_parallel_devices::cores(), 1);
/// data_parallel_devices::limit_cores(Some(100_000));
/// assert_eq!(data_parallel_devices::cores(), data_parallel_devices::given_cores().threads);
/// data_parallel_devices::limit_cores(Some(0));
/// assert_eq!(data_parallel_devices::cores(), 1);
/// data_parallel_devices::limit_cores(None);
/// ```
pub fn limit_cores(limit: Option<usize>) {
    let limit = limit.map_or(0, |n| n.clamp(1, given_cores().threads));
    LIMIT.store(limit, Ordering::Relaxed);
}

/// The share of the [`cores`] that each of `replicas` has: at least one.
///
/// ```
/// assert_eq!(data_parallel_devices::cores_each(1), data_parallel_devices::cores());
/// assert_eq!(data_parallel_devices::cores_each(100_000), 1);
/// ```
pub fn cores_each(replicas: usize) -> usize {
    (cores() / replicas.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files of a made-up machine: the affinity, and for each core that is online its hyperthreads.
    struct Machine<'a> {
        status: &'a str,
        allowed: &'a str,
        list: &'a str,
        cores: &'a [&'a str],
    }

    impl Machine<'_> {
        const TWO_SOCKETS: Self = Self {
            status: "/proc/thread-self/status",
            allowed: "0-15",
            list: "core_cpus_list",
            // 4 cores of 2 hyperthreads each, numbered as Linux does it on most servers
            cores: &["0,8", "1,9", "2,10", "3,11", "4,12", "5,13", "6,14", "7,15"],
        };

        fn read(&self, file: &str) -> Option<String> {
            if file == self.status {
                let allowed = self.allowed;
                return Some(format!(
                    "Name:\ttest\nCpus_allowed:\tffff\nCpus_allowed_list:\t{allowed}\nThreads:\t1\n"
                ));
            }
            let file = file.strip_prefix("/sys/devices/system/cpu/cpu")?;
            let (cpu, list) = file.split_once("/topology/")?;
            let cpu: u32 = cpu.parse().ok()?;
            let has_cpu = |core: &&&str| cpu_list(core).is_some_and(|cpus| cpus.contains(&cpu));
            let core = self.cores.iter().find(has_cpu)?;
            (list == self.list).then(|| format!("{core}\n"))
        }

        /// The default, the most threads, and the cores, where std counts `threads`.
        fn counted(&self, threads: usize) -> [usize; 3] {
            let given = GivenCores::of(threads, |file| self.read(file));
            [given.default_threads(), given.threads, given.cores]
        }
    }

    /// A machine in words, the affinity, its cores if they are others than of [`Machine::TWO_SOCKETS`], the threads that
    /// std counts, and what is counted here.
    type Counted<'a> = (&'a str, &'a str, &'a [&'a str], usize, [usize; 3]);

    #[test]
    fn of_two_hyperthreads_one_counts_where_the_process_may_use_them() {
        let all = Machine::TWO_SOCKETS;
        let cases: [Counted<'_>; 16] = [
            ("two sockets", "0-15", all.cores, 16, [8, 16, 8]),
            (
                "neighbours",
                "0-7",
                &["0-1", "2-3", "4-5", "6-7"],
                8,
                [4, 8, 4],
            ),
            (
                "fast and slow",
                "0-5",
                &["0-1", "2-3", "4", "5"],
                6,
                [4, 6, 4],
            ),
            ("an affinity", "0-3", all.cores, 4, [4, 4, 4]),
            ("an affinity", "0-3,8-11", all.cores, 8, [4, 8, 4]),
            ("an affinity", "0,3-4,12", all.cores, 4, [3, 4, 3]),
            ("an affinity", "5", all.cores, 1, [1, 1, 1]),
            (
                "both hyperthreads of one core",
                "5,13",
                all.cores,
                2,
                [2, 2, 1],
            ),
            ("a quota", "0-15", all.cores, 10, [8, 10, 8]),
            ("a quota", "0-15", all.cores, 3, [3, 3, 8]),
            ("a quota", "0-15", all.cores, 1, [1, 1, 8]),
            ("a quota of one core", "5,13", all.cores, 1, [1, 1, 1]),
            ("most are not there", "0-127", all.cores, 16, [8, 16, 8]),
            (
                "half a core is offline",
                "0-7",
                &["0-1", "2", "4-5"],
                5,
                [3, 5, 3],
            ),
            ("a garbled list", "0-x", all.cores, 16, [16, 16, 16]),
            // a container whose numbers of CPUs are not those of its /sys
            ("another machine", "12-19", all.cores, 8, [8, 8, 8]),
        ];
        for (what, allowed, cores, threads, counted) in cases {
            let machine = Machine {
                allowed,
                cores,
                ..all
            };
            assert_eq!(machine.counted(threads), counted, "{what}: {allowed}");
        }
        let older_linux = Machine {
            status: "/proc/self/status",
            list: "thread_siblings_list",
            ..all
        };
        assert_eq!(older_linux.counted(16), [8, 16, 8]);
        let has_quota = |threads| GivenCores::of(threads, |file| all.read(file)).has_quota();
        assert!(has_quota(10) && !has_quota(16));
    }

    /// std's mask has 1024 bits; of a larger machine it counts all CPUs that are online.
    #[test]
    fn machines_with_thousands_of_cpus_are_counted() {
        let cores: Vec<String> = (0..1024)
            .map(|core| format!("{core},{}", core + 1024))
            .collect();
        let cores: Vec<&str> = cores.iter().map(String::as_str).collect();
        let machine = |allowed| Machine {
            allowed,
            cores: &cores,
            ..Machine::TWO_SOCKETS
        };
        assert_eq!(machine("0-2047").counted(2048), [1024, 2048, 1024]);
        assert_eq!(machine("1000-1031").counted(2048), [32, 32, 32]);
    }

    #[test]
    fn where_linux_says_nothing_std_counts() {
        let nothing = GivenCores {
            threads: 6,
            hyperthreads: 6,
            cores: 6,
            allowed: BTreeSet::new(),
        };
        assert_eq!(GivenCores::of(6, |_| None), nothing);
        let all = Machine::TWO_SOCKETS;
        let without_topology = Machine { cores: &[], ..all };
        assert_eq!(without_topology.counted(16), [16, 16, 16]);
    }

    #[test]
    fn lists_are_read() {
        let cpus = |list| cpu_list(list).map(Vec::from_iter);
        assert_eq!(cpus("\t0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(cpus(""), None);
        assert_eq!(cpus("1-"), None);
    }
}
