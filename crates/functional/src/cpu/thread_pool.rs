//! A thread and its helpers share out the tasks of one operation after the other. Task q of n belongs to
//! the same thread every time, so that it finds the memory of the operation before in that thread's cache.
//! A thread that has finished its own tasks takes tasks that others have not begun. Helpers spin for a
//! moment before they sleep: operations follow each other within microseconds.

use devices::lock;
use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

/// How long a helper that has nothing to do looks for work before it sleeps; about 1 ms.
const SPINS: usize = 20_000;

type Task<'a> = dyn Fn(usize) + Sync + 'a;

pub(crate) struct Pool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

struct Shared {
    /// Counts the jobs; a helper waits for it to change.
    round: AtomicUsize,
    /// Written by the owner between rounds only; none ends the helpers.
    job: UnsafeCell<Option<(*const Task<'static>, usize)>>,
    /// For each thread, the next of its own tasks.
    next: Box<[Aligned]>,
    /// Helpers that have not finished the round.
    busy: AtomicUsize,
    sleepers: AtomicUsize,
    bed: Mutex<()>,
    wake: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// On cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct Aligned(AtomicUsize);

// Safety: `job` is written while no helper reads it: they read it after they have seen `round`
// change, and the owner writes it only when all have reported the end of the round in `busy`.
unsafe impl Sync for Shared {}
// Safety: as above; the task behind the pointer is Sync.
unsafe impl Send for Shared {}

impl Pool {
    /// The calling thread and `size - 1` helpers, each of which calls `begin` first.
    ///
    /// # Errors
    /// If the system starts no more threads.
    pub(crate) fn new(size: usize, begin: fn()) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            round: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            next: (0..size).map(|_| Aligned::default()).collect(),
            busy: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            bed: Mutex::new(()),
            wake: Condvar::new(),
            panic: Mutex::new(None),
        });
        let mut pool = Self {
            shared,
            helpers: Vec::new(),
        };
        for thread in 1..size {
            let shared = pool.shared.clone();
            let help = move || {
                begin();
                shared.help(thread);
            };
            let helper = std::thread::Builder::new().name(format!("helper {thread}"));
            pool.helpers.push(helper.spawn(help)?);
        }
        Ok(pool)
    }

    /// The threads, the owner's included.
    pub(crate) fn size(&self) -> usize {
        self.shared.next.len()
    }

    /// Calls `task` with each number below `tasks`; returns when all calls have. A panic of one
    /// comes back here.
    pub(crate) fn run(&mut self, tasks: usize, task: &Task<'_>) {
        let shared = &*self.shared;
        // Safety: the task outlives its use, since this function ends after the last helper has
        // reported; the job is written between two rounds.
        unsafe {
            let task = std::mem::transmute::<&Task<'_>, &'static Task<'static>>(task);
            *shared.job.get() = Some((task, tasks));
        }
        for thread in 0..self.size() {
            let Aligned(next) = &shared.next[thread];
            next.store(shared.block(thread, tasks), Relaxed);
        }
        shared.open_round(self.helpers.len());
        shared.work(0, tasks, task);
        shared.wait_for_helpers();
        if let Some(panic) = lock(&shared.panic).take() {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Safety: between two rounds.
        unsafe { *self.shared.job.get() = None };
        self.shared.open_round(0);
        for helper in self.helpers.drain(..) {
            let _ = helper.join(); // its panics were caught and reported
        }
    }
}

impl Shared {
    /// The first of a thread's own tasks.
    fn block(&self, thread: usize, tasks: usize) -> usize {
        thread * tasks / self.next.len()
    }

    fn open_round(&self, helpers: usize) {
        self.busy.store(helpers, Relaxed);
        self.round.fetch_add(1, SeqCst);
        if self.sleepers.load(SeqCst) > 0 {
            let _bed = lock(&self.bed);
            self.wake.notify_all();
        }
    }

    /// Runs this thread's tasks, then those that others have left.
    fn work(&self, thread: usize, tasks: usize, task: &Task<'_>) {
        let threads = self.next.len();
        let all = || {
            for block in (thread..threads).chain(0..thread) {
                let end = self.block(block + 1, tasks);
                loop {
                    let i = self.next[block].0.fetch_add(1, Relaxed);
                    if i >= end {
                        break;
                    }
                    task(i);
                }
            }
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(all)) {
            lock(&self.panic).get_or_insert(panic);
        }
    }

    fn help(&self, thread: usize) {
        let mut seen = 0;
        loop {
            seen = self.wait_for_round(seen);
            // Safety: the round has begun, and the owner does not write before this thread reports.
            let Some((task, tasks)) = (unsafe { *self.job.get() }) else {
                return;
            };
            // Safety: the owner waits for this thread's report, and the task lives until then.
            self.work(thread, tasks, unsafe { &*task });
            self.busy.fetch_sub(1, Release);
        }
    }

    fn wait_for_round(&self, seen: usize) -> usize {
        for _ in 0..SPINS {
            let round = self.round.load(Acquire);
            if round != seen {
                return round;
            }
            std::hint::spin_loop();
        }
        // counted before the last look: either the owner sees the sleeper, or the sleeper the round
        self.sleepers.fetch_add(1, SeqCst);
        let mut bed = lock(&self.bed);
        while self.round.load(SeqCst) == seen {
            bed = self.wake.wait(bed).unwrap_or_else(|e| e.into_inner());
        }
        self.sleepers.fetch_sub(1, SeqCst);
        self.round.load(Acquire)
    }

    fn wait_for_helpers(&self) {
        for spins in 0.. {
            if self.busy.load(Acquire) == 0 {
                return;
            }
            match spins < SPINS {
                true => std::hint::spin_loop(),
                false => std::thread::yield_now(), // a helper's core may be taken by others
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(calls: &AtomicUsize) {
        calls.fetch_add(1, Relaxed);
    }

    #[test]
    fn every_task_runs_once_whatever_the_size() {
        for size in 1..6 {
            let mut pool = Pool::new(size, || ()).unwrap();
            for tasks in [0, 1, 2, size, 7, 100] {
                let calls: Vec<_> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                for _ in 0..20 {
                    pool.run(tasks, &|i| count(&calls[i]));
                }
                assert!(calls.iter().all(|c| c.load(Relaxed) == 20));
            }
        }
    }

    #[test]
    fn helpers_that_sleep_are_woken() {
        let mut pool = Pool::new(3, || ()).unwrap();
        let calls = AtomicUsize::new(0);
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            pool.run(9, &|_| count(&calls));
        }
        assert_eq!(calls.load(Relaxed), 27);
    }

    #[test]
    fn a_panic_comes_back_and_the_pool_goes_on() {
        let mut pool = Pool::new(2, || ()).unwrap();
        let panicking = AssertUnwindSafe(|| pool.run(8, &|i| assert_ne!(i, 7, "on purpose")));
        let panic = catch_unwind(panicking).expect_err("a panic");
        let message = panic.downcast_ref::<String>().unwrap();
        assert!(message.contains("on purpose"));
        let calls = AtomicUsize::new(0);
        pool.run(8, &|_| count(&calls));
        assert_eq!(calls.load(Relaxed), 8);
    }
}
