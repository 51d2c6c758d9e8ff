//! A thread and its helpers share out the tasks of one operation after the other. Task q of n belongs to
//! the same thread every time, so that it finds the memory of the operation before in that thread's cache.
//! A thread that has finished its own tasks takes tasks that others have not begun.
//!
//! The owner waits for tasks, never for helpers: on a busy machine a helper that has no core takes no task, and the
//! owner does them all itself. A helper that comes late finds nothing to take, or takes tasks of a later operation. A
//! thread takes a task by lowering a counter.
//!
//! Operations follow each other within microseconds. So a helper looks for the next one for about 50 µs, then offers
//! its core to other threads for 0.4 ms, and then sleeps. A call takes 1.3 µs on two threads that are awake, and 29 µs
//! if it has to wake one (AMD EPYC, idle).

use devices::lock;
use std::any::Any;
use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::*;
#[cfg(not(test))]
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle, park, yield_now};
use std::time::{Duration, Instant};

#[cfg(test)]
use tests::stepped::{AtomicBool, AtomicUsize};

/// Looks of a thread that waits, before it first offers its core to another thread: for about 50 µs.
const SPINS: usize = 2000;

/// The time that a helper then offers its core to other threads before it sleeps.
const PATIENCE: Duration = Duration::from_micros(400);

type Task<'a> = dyn Fn(usize) + Sync + 'a;

pub(crate) struct Pool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

struct Shared {
    /// Written by the owner while no task is left; read by a thread that has taken a task and not yet reported it.
    job: UnsafeCell<Option<Job>>,
    /// For each thread, how many of its own tasks are not taken. Lowering it takes a task of the present job, also where
    /// the number was read during an earlier one.
    left: Box<[Aligned<AtomicUsize>]>,
    /// Tasks that are not reported as finished.
    unfinished: Aligned<AtomicUsize>,
    /// Counts the jobs; a helper waits for it to change.
    round: Aligned<AtomicUsize>,
    /// For each thread, true if it sleeps and has to be woken.
    asleep: Box<[AtomicBool]>,
    /// The number of those that sleep.
    sleepers: AtomicUsize,
    ended: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

#[derive(Clone, Copy)]
struct Job {
    task: *const Task<'static>,
    tasks: usize,
}

/// On cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct Aligned<T>(T);

// Safety: `job` is written while no task is left or unfinished, and read between taking a task and reporting it. So no
// thread reads it while the owner writes it.
unsafe impl Sync for Shared {}
// Safety: as above; the task behind the pointer is Sync.
unsafe impl Send for Shared {}

impl Pool {
    /// The calling thread and `size - 1` helpers, each of which calls `begin` first.
    ///
    /// # Errors
    /// If the system starts no more threads.
    pub(crate) fn new(size: usize, begin: fn()) -> std::io::Result<Self> {
        let mut pool = Self {
            shared: Arc::new(Shared::of(size)),
            helpers: Vec::new(),
        };
        for thread in 1..size {
            let shared = pool.shared.clone();
            let help = move || {
                begin();
                shared.help(thread);
            };
            let helper = Builder::new().name(format!("helper {thread}"));
            pool.helpers.push(helper.spawn(help)?);
        }
        Ok(pool)
    }

    /// The threads, the owner's included.
    pub(crate) fn size(&self) -> usize {
        self.shared.left.len()
    }

    /// Calls `task` with each number below `tasks`; returns when all calls have. A panic of one
    /// comes back here.
    pub(crate) fn run(&mut self, tasks: usize, task: &Task<'_>) {
        let shared = &*self.shared;
        // Safety: a reference is a valid pointer. It is used while a task is unfinished, and this function ends later.
        let task = unsafe { std::mem::transmute::<&Task<'_>, *const Task<'static>>(task) };
        // First the job, then how many tasks are unfinished, and then how many are left: once some are, helpers read the
        // job, run them and report them.
        // Safety: the tasks of the job before are finished, and those of this one cannot be taken yet.
        unsafe { *shared.job.get() = Some(Job { task, tasks }) };
        shared.unfinished.0.store(tasks, Relaxed);
        for (thread, Aligned(left)) in shared.left.iter().enumerate() {
            let own = shared.first_of(thread + 1, tasks) - shared.first_of(thread, tasks);
            left.store(own, Release);
        }
        shared.round.0.fetch_add(1, SeqCst);
        self.wake(tasks.saturating_sub(1));
        shared.work(0);
        shared.wait_for_tasks();
        if let Some(panic) = lock(&shared.panic).take() {
            resume_unwind(panic);
        }
    }

    /// Wakes at most this number of the helpers that sleep.
    fn wake(&self, most: usize) {
        let shared = &*self.shared;
        if shared.sleepers.load(SeqCst) == 0 {
            return;
        }
        let sleeping = (1..self.size()).filter(|&thread| shared.asleep[thread].swap(false, SeqCst));
        for thread in sleeping.take(most) {
            shared.sleepers.fetch_sub(1, SeqCst);
            self.helpers[thread - 1].thread().unpark();
        }
    }
}

impl Drop for Pool {
    /// The helpers end by themselves. To wait for them would be a deadlock where a task ends the process, because it runs
    /// on a helper that can then not end; and on Windows, where a thread that ends can wait for no other.
    fn drop(&mut self) {
        self.shared.ended.store(true, SeqCst);
        self.shared.round.0.fetch_add(1, SeqCst);
        self.wake(self.size());
    }
}

impl Shared {
    fn of(size: usize) -> Self {
        Self {
            job: UnsafeCell::new(None),
            left: (0..size).map(|_| Aligned::default()).collect(),
            unfinished: Aligned::default(),
            round: Aligned::default(),
            asleep: (0..size).map(|_| AtomicBool::new(false)).collect(),
            sleepers: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            panic: Mutex::new(None),
        }
    }

    /// The first of a thread's own tasks. Of fewer tasks than threads, each of the first threads has one.
    fn first_of(&self, thread: usize, tasks: usize) -> usize {
        if tasks < self.left.len() {
            thread.min(tasks)
        } else {
            thread * tasks / self.left.len()
        }
    }

    /// Runs this thread's tasks, then those that others have left.
    fn work(&self, thread: usize) {
        let mut finished = 0;
        for block in (thread..self.left.len()).chain(0..thread) {
            while let Some(left) = self.take_task(block) {
                // Safety: this thread has taken a task and not yet reported it.
                let job = unsafe { *self.job.get() }.expect("a job has tasks");
                // Safety: as above, so the owner still waits, and the task lives until it does not.
                let task = unsafe { &*job.task };
                let number = self.first_of(block + 1, job.tasks) - left;
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| task(number))) {
                    let mut first = lock(&self.panic);
                    if first.is_none() {
                        *first = Some(panic);
                    } else {
                        forget(panic); // to drop it could panic, and the task would not be reported
                    }
                }
                finished += 1;
            }
        }
        if finished > 0 {
            self.unfinished.0.fetch_sub(finished, Release);
        }
    }

    /// Takes one of a thread's own tasks, and returns how many of them were left, or none if none was.
    fn take_task(&self, thread: usize) -> Option<usize> {
        let Aligned(left) = &self.left[thread];
        left.fetch_update(Acquire, Relaxed, |n| n.checked_sub(1))
            .ok()
    }

    fn help(&self, thread: usize) {
        let mut seen = 0;
        loop {
            seen = self.wait_for_round(thread, seen);
            if self.ended.load(SeqCst) {
                return;
            }
            self.work(thread);
        }
    }

    fn wait_for_round(&self, thread: usize, seen: usize) -> usize {
        let mut since = None;
        for spins in 0.. {
            let round = self.round.0.load(Acquire);
            if round != seen {
                return round;
            }
            if spins < SPINS {
                spin_loop();
            } else if since.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
                yield_now();
            } else {
                break;
            }
        }
        // told before the last look: either the owner sees the sleeper, or the sleeper the round
        self.sleepers.fetch_add(1, SeqCst);
        self.asleep[thread].store(true, SeqCst);
        while self.round.0.load(SeqCst) == seen {
            park();
        }
        if self.asleep[thread].swap(false, SeqCst) {
            self.sleepers.fetch_sub(1, SeqCst);
        }
        self.round.0.load(Acquire)
    }

    fn wait_for_tasks(&self) {
        for spins in 0.. {
            if self.unfinished.0.load(Acquire) == 0 {
                return;
            }
            if spins < SPINS {
                spin_loop();
            } else {
                yield_now(); // the helper that has the task may need this core
            }
        }
    }
}

#[cfg(test)]
mod tests {
    pub(super) mod stepped;

    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    use std::sync::{Condvar, mpsc};
    use std::thread::{current, sleep, spawn};

    fn count(calls: &AtomicUsize) {
        calls.fetch_add(1, Relaxed);
    }

    #[test]
    fn helpers_that_sleep_are_woken() {
        let mut pool = Pool::new(3, || ()).unwrap();
        for _ in 0..3 {
            sleep(Duration::from_millis(20));
            // each thread has to come: a task ends when all have begun
            let begun = AtomicUsize::new(0);
            pool.run(3, &|_| {
                count(&begun);
                while begun.load(Relaxed) < 3 {
                    yield_now();
                }
            });
        }
    }

    /// Of the owner, of a helper, and of both: the tasks wait for each other, so each thread has one.
    #[test]
    fn panics_of_all_threads_come_back() {
        let owner = current().id();
        for panics in [|own| own, |own: bool| !own, |_| true] {
            let mut pool = Pool::new(2, || ()).unwrap();
            let begun = AtomicUsize::new(0);
            let panicking = AssertUnwindSafe(|| {
                pool.run(2, &|_| {
                    count(&begun);
                    while begun.load(Relaxed) < 2 {
                        yield_now();
                    }
                    assert!(!panics(current().id() == owner), "on purpose");
                });
            });
            let panic = catch_unwind(panicking).expect_err("a panic");
            assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
            let calls = AtomicUsize::new(0);
            pool.run(8, &|_| count(&calls));
            assert_eq!(calls.load(Relaxed), 8);
        }
    }

    /// Fails where `f` does not return.
    fn ends<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, done) = mpsc::channel();
        spawn(move || sender.send(f()));
        done.recv_timeout(Duration::from_secs(20))
            .expect("a task or a report is lost")
    }

    /// A helper looks for tasks between any two of the owner's atomic operations, and runs what it finds.
    #[test]
    fn a_helper_may_come_at_any_moment() {
        let mut moments = 0;
        while ends(move || {
            let shared = Arc::new(Shared::of(2));
            let helper = shared.clone();
            stepped::before(moments, move || {
                let helper = helper.clone();
                spawn(move || helper.work(1)).join().unwrap();
            });
            let mut pool = Pool {
                shared,
                helpers: vec![],
            };
            let calls: Vec<_> = (0..3).map(|_| AtomicUsize::new(0)).collect();
            for tasks in [2, 3] {
                pool.run(tasks, &|i| count(&calls[i]));
            }
            let calls = calls.into_iter().map(AtomicUsize::into_inner);
            assert_eq!(Vec::from_iter(calls), [2, 2, 1]);
            stepped::is_over()
        }) {
            moments += 1;
        }
        assert!(moments > 10, "{moments}");
    }

    /// A helper stands still between any two of its atomic operations, until the owner is in the middle of a later job: what
    /// the helper has read is old then. If it has taken a task, the owner waits for it.
    #[test]
    fn a_helper_may_stand_still_at_any_moment() {
        const JOBS: [usize; 4] = [4, 4, 3, 5];
        let mut moments = 0;
        while ends(move || {
            let shared = Arc::new(Shared::of(2));
            let (stands, stood) = mpsc::channel();
            let (later, in_later_job) = mpsc::channel();
            let (begin, has_begun) = mpsc::channel();
            let helper = shared.clone();
            let helper = spawn(move || {
                stepped::before(moments, move || {
                    stands.send(()).unwrap();
                    let _ = in_later_job.recv_timeout(Duration::from_millis(50));
                });
                has_begun.recv().unwrap();
                helper.work(1);
                stepped::is_over()
            });
            let mut pool = Pool {
                shared,
                helpers: vec![],
            };
            let owner = current().id();
            let stood = Mutex::new(stood);
            let is_first = AtomicBool::new(true);
            for (job, tasks) in JOBS.into_iter().enumerate() {
                is_first.store(true, Relaxed);
                let calls: Vec<_> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, &|i| {
                    // the owner's first task of a job
                    if current().id() == owner && is_first.swap(false, Relaxed) {
                        if job == 0 {
                            begin.send(()).unwrap();
                            let _ = lock(&stood).recv(); // it stands still, or has ended
                        } else if job + 1 == JOBS.len() {
                            let _ = later.send(());
                            let start = Instant::now();
                            while !helper.is_finished() && start.elapsed() < PATIENCE * 50 {
                                yield_now();
                            }
                        }
                    }
                    count(&calls[i]);
                });
                let calls = calls.into_iter().map(AtomicUsize::into_inner);
                assert_eq!(Vec::from_iter(calls), vec![1; tasks], "job {job}");
            }
            helper.join().unwrap()
        }) {
            moments += 1;
        }
        assert!(moments > 5, "{moments}");
    }

    /// Helpers without a core, as on a busy machine: they do not come before the gate is open.
    #[test]
    fn the_owner_does_all_where_no_helper_comes() {
        static OPEN: Mutex<bool> = Mutex::new(false);
        static GATE: Condvar = Condvar::new();
        let (sender, done) = mpsc::channel();
        let owner = spawn(move || {
            let wait = || drop(GATE.wait_while(lock(&OPEN), |open| !*open));
            let mut pool = Pool::new(4, wait).unwrap();
            let calls = AtomicUsize::new(0);
            (0..100).for_each(|tasks| pool.run(tasks, &|_| count(&calls)));
            sender.send(calls.load(Relaxed)).unwrap();
        });
        let calls = done.recv_timeout(Duration::from_secs(20));
        *lock(&OPEN) = true;
        GATE.notify_all();
        assert_eq!(calls, Ok(99 * 100 / 2), "it waits for helpers");
        owner.join().unwrap();
    }

    /// Jobs of any number of tasks follow each other at once, on more threads than cores. So helpers come late, in the
    /// middle of a later job or when the pool ends, and some sleep in between.
    #[test]
    fn no_task_is_lost_and_none_runs_twice() {
        let owner = |seed: usize| {
            let begin = Instant::now();
            let mut state = seed;
            let mut random = move |below: usize| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 33) % below
            };
            let mut jobs = 0;
            while begin.elapsed() < Duration::from_millis(500) {
                let mut pool = Pool::new(1 + random(5), || ()).unwrap();
                for _ in 0..random(400) {
                    let tasks = random(24);
                    let length = random(300);
                    let slow = random(24);
                    // memory of this job alone, and written without atomics: a task that is late writes elsewhere
                    let calls: Vec<_> = (0..tasks).map(|_| UnsafeCell::new(0usize)).collect();
                    struct Calls<'a>(&'a [UnsafeCell<usize>]);
                    // Safety: each is written by the task of its number.
                    unsafe impl Sync for Calls<'_> {}
                    impl Calls<'_> {
                        fn add(&self, i: usize) {
                            // Safety: as above.
                            unsafe { *self.0[i].get() += 1 };
                        }
                    }
                    let all = Calls(&calls);
                    pool.run(tasks, &|i| {
                        (0..length).for_each(|_| spin_loop());
                        if i == slow {
                            yield_now();
                        }
                        all.add(i);
                    });
                    let calls: Vec<_> = calls.into_iter().map(UnsafeCell::into_inner).collect();
                    assert_eq!(calls, vec![1; tasks]);
                    jobs += 1;
                    if random(100) == 0 {
                        sleep(Duration::from_millis(1)); // the helpers sleep
                    }
                }
            }
            jobs
        };
        let owners: Vec<_> = (1..4).map(|seed| spawn(move || owner(seed))).collect();
        let jobs = owners.into_iter().map(|owner| owner.join().unwrap());
        assert!(jobs.sum::<usize>() > 100);
    }
}
