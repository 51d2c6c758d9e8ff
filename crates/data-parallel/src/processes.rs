//! Training in several processes, on one machine or several: each has replicas of its own, and a part of
//! each minibatch. How they reach each other is `collective`'s; here is what they have to agree on (diff 5 of
//! the chapter `seven-diffs`).
//!
//! **It does not matter in which processes replicas are**: no bit changes, except with NCCL. Each process makes its
//! part of every minibatch, the shards of its replicas. The parameters are compared when a network is built, and the
//! settings in every step; by `Checkpoints` and by `concise` also before the first. In the first step the processes also
//! compare their parts of the data, which have to differ. The parameters are compared again in each evaluation, and at the
//! end. A checkpoint knows replicas, and no processes except with NCCL.
//!
//! **All stop at one step.** [`Trainer::stop_when`](crate::Trainer::stop_when) gets a flag that a signal sets. In
//! several processes the counts of a minibatch carry the wish. After that step all processes set the flag that
//! ends their minibatches.
//!
//! **A launcher that MPI does not see is an error**: its variables (`devices::launched`) are compared with what MPI
//! says.
//!
//! **A failing process ends all.** Under MPI a panic does so at once. After a step that failed in one process, each of its
//! later calls is an error, and so is its end: a loop that ignores the error comes to [`launch`](crate::launch), which
//! ends all. If a call takes too long, a thread in each
//! process asks the others for their number of calls, and so finds a process that hangs (`collective::mpi`).

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use candle_core::{DType, Device, Result, Tensor};
#[cfg(feature = "mpi")]
use collective::mpi;
use collective::nccl::gpu_ids;
use collective::{Algorithm, ProcessGroup};
use devices::{Context, Launched, Process, bail, find, lock, message};
use training::CheckpointError;

use crate::error::Kind;
use crate::replication::{ReduceOn, Replication};

/// The bytes that are gathered at once, from all processes together.
const PIECE: usize = 1 << 30;
/// What the first process has read or written for all.
const OF_FIRST: &str = "a file of the first process";

/// The processes of a run, as one of them sees them. A process that is alone communicates with no other. All
/// processes must make the same calls in the same order.
///
/// ```
/// // Processes::mpi(timeout)? under mpirun
/// let processes = data_parallel::Processes::alone();
/// assert_eq!(processes.process()?.of, 1);
/// let mut counts = [3.0];
/// processes.sum(&mut counts)?;
/// assert_eq!(counts, [3.0]);
/// # data_parallel::Result::Ok(())
/// ```
pub struct Processes {
    /// None where there is no other.
    world: Option<Mutex<Box<dyn ProcessGroup>>>,
    /// A checksum of the parameters of each network that was dropped.
    ended: Mutex<Vec<u32>>,
    /// Why a step of this process failed, for which the others wait.
    failed: Mutex<Option<String>>,
}

impl Processes {
    /// One that trains by itself.
    pub fn alone() -> Self {
        Self {
            world: None,
            ended: Mutex::default(),
            failed: Mutex::default(),
        }
    }

    /// Those that `mpirun` started. One that waits longer than `timeout` for another ends all.
    ///
    /// # Errors
    /// If the program was built without the feature `mpi`, or MPI does not start, or sees another number of processes than
    /// the launcher has started.
    pub fn mpi(timeout: Option<Duration>) -> Result<Self> {
        let processes = Self::of(mpi::process_group(timeout)?);
        let seen = processes.count();
        let others = |launched: &Launched| launched.processes > 1;
        // under the launcher of another MPI each process sees itself alone
        if let Some(launched) = devices::launched().filter(others)
            && seen == 1
        {
            let Launched {
                variable, value, ..
            } = launched;
            bail!(
                "{variable} is {value}, and MPI sees {seen}: start the program with the launcher of the MPI that it was \
                 built with, or unset {variable}"
            )
        }
        Ok(processes)
    }

    /// Those of a process group of your own, which communicates by other means than MPI.
    pub fn of(world: Box<dyn ProcessGroup>) -> Self {
        Self {
            world: Some(Mutex::new(world)),
            ..Self::alone()
        }
    }

    /// This process among the others.
    ///
    /// # Errors
    /// If the processes do not reach each other.
    pub fn process(&self) -> Result<Process> {
        let Some(mut world) = self.world() else {
            return Ok(Process::ALONE);
        };
        let machines = world.all_gather(machine().as_bytes())?;
        let allowed = &devices::given_cores().allowed;
        let allowed: Vec<[u8; 4]> = allowed.iter().map(|cpu| cpu.to_le_bytes()).collect();
        let cpus = world.all_gather(&allowed.concat())?;
        Ok(place(world.rank(), &machines, &cpus))
    }

    /// Another channel to the same processes, for sums on another thread.
    pub(crate) fn channel(&self) -> Result<Option<Box<dyn ProcessGroup>>> {
        self.check_failed()?;
        let world = self.world().map(|world| world.duplicate());
        Ok(world.transpose()?)
    }

    /// The all-reduce of the replicas on `devices` and of those of the other processes: for `auto` NCCL, if it can
    /// sum on all of them.
    ///
    /// # Errors
    /// If NCCL has to sum and cannot, a ring has to sum several processes, or the processes do not reach each other.
    pub fn choose(&self, how: &Replication, devices: &[Device]) -> Result<Algorithm> {
        let (ids, why) = match gpu_ids(devices) {
            Ok(ids) => (ids, String::new()),
            Err(why) => (Vec::new(), why),
        };
        let mut all = self.gather("reasons against NCCL", why.as_bytes())?;
        if how.allreduce == Algorithm::Ring && all.len() > 1 {
            bail!("a ring sums within one process; choose another all-reduce");
        }
        all.retain(|why| !why.is_empty());
        let ids = self.gather("GPUs", &ids.concat())?.concat();
        let (ids, _) = ids.as_chunks::<16>();
        if (1..ids.len()).any(|i| ids[..i].contains(&ids[i])) {
            all.push(b"replicas share a GPU; NCCL needs a GPU for each".to_vec());
        }
        match (how.allreduce, all.first()) {
            (Algorithm::Auto, None) if ids.len() > 1 && how.reduce_on == ReduceOn::Device => {
                Ok(Algorithm::Nccl)
            }
            (Algorithm::Nccl, Some(why)) => bail!("{}", String::from_utf8_lossy(why)),
            (other, _) => Ok(other),
        }
    }

    /// True if there is no other.
    pub fn are_one(&self) -> bool {
        self.world.is_none()
    }

    /// The value of each process, in rank order. `what` is its name.
    ///
    /// # Errors
    /// If the processes do not reach each other; in all of them, if one brings something else.
    pub(crate) fn gather(&self, what: &str, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.check_failed()?;
        let Some(mut world) = self.world() else {
            return Ok(vec![own.to_vec()]);
        };
        let mut all = world.all_gather(&[what.as_bytes(), b"\n", own].concat())?;
        let mut names = Vec::new();
        for brought in &mut all {
            let newline = brought.iter().position(|byte| *byte == b'\n');
            let end = newline.context("a process has brought nothing")?;
            names.push(String::from_utf8_lossy(&brought[..end]).into_owned());
            brought.drain(..=end);
        }
        if let Some(other) = names.iter().position(|name| *name != names[0]) {
            let error = format!(
                "the processes make different calls: process 0 gathers {}, process {other} gathers {}; each call of the \
                 library is for all processes",
                names[0], names[other]
            );
            return Err(Kind::Disagreement.says(error));
        }
        Ok(all)
    }

    /// As [`gather`](Self::gather), of numbers.
    pub(crate) fn gather_numbers(&self, what: &str, own: &[f64]) -> Result<Vec<Vec<f64>>> {
        let all = self.gather(what, bytemuck::cast_slice(own))?;
        let numbers = |bytes: &Vec<u8>| bytemuck::pod_collect_to_vec(bytes);
        Ok(all.iter().map(numbers).collect())
    }

    /// As [`gather`](Self::gather), of any length: MPI gathers at most 2 GiB at once.
    pub(crate) fn gather_in_pieces(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.gather_in_pieces_of(PIECE / self.count(), own)
    }

    fn gather_in_pieces_of(&self, piece: usize, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let lengths = self.gather_numbers("lengths of outputs", &[own.len() as f64])?;
        let mut all = vec![Vec::new(); lengths.len()];
        let longest = lengths.concat().into_iter().fold(0.0, f64::max) as usize;
        for start in (0..longest).step_by(piece) {
            let [start, end] = [start, start + piece].map(|at| at.min(own.len()));
            for (whole, piece) in all
                .iter_mut()
                .zip(self.gather("outputs", &own[start..end])?)
            {
                whole.extend(piece);
            }
        }
        Ok(all)
    }

    /// The sum of what the processes before this one have brought.
    ///
    /// # Errors
    /// If the processes do not reach each other.
    pub(crate) fn sum_before(&self, own: usize) -> Result<usize> {
        let all = self.gather_numbers("numbers of examples", &[own as f64])?;
        Ok(all[..self.rank()].iter().flatten().sum::<f64>() as usize)
    }

    /// The rows of all processes, in rank order.
    ///
    /// # Errors
    /// If the processes do not reach each other.
    pub(crate) fn gather_rows(&self, own: &Tensor) -> Result<Tensor> {
        if self.are_one() {
            return Ok(own.clone());
        }
        let numbers: Vec<f64> = own.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?;
        let bytes = self.gather_in_pieces(bytemuck::cast_slice(&numbers))?;
        let numbers: Vec<f64> = bytemuck::pod_collect_to_vec(&bytes.concat());
        let row = &own.dims()[1..];
        let rows = numbers.len() / row.iter().product::<usize>().max(1);
        let all = Tensor::from_vec(numbers, [&[rows], row].concat(), &Device::Cpu)?;
        all.to_dtype(own.dtype())
    }

    /// Why one of the processes cannot go on, in all of them: its own error where it has one, else the first of another
    /// process.
    ///
    /// # Errors
    /// If the processes do not reach each other.
    pub(crate) fn why(&self, own: Option<candle_core::Error>) -> Result<candle_core::Error> {
        let said = own.as_ref().map(ToString::to_string).unwrap_or_default();
        let all = self.gather("reasons", said.as_bytes())?;
        let mut of_all = all.iter().enumerate();
        let first = of_all.find(|(_, said)| !said.is_empty());
        let of_first = first.map(|(rank, said)| {
            let said = String::from_utf8_lossy(said);
            message(format!("process {rank}: {said}"))
        });
        own.or(of_first).context("a process cannot go on")
    }

    /// Gives all processes the value that the first one makes.
    ///
    /// # Errors
    /// In all processes, if the first one cannot make it.
    pub(crate) fn of_first(&self, make: impl FnOnce() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
        if self.are_one() {
            return make();
        }
        if self.rank() > 0 {
            let first = self.gather(OF_FIRST, &[])?.swap_remove(0);
            return match first.split_first() {
                Some((0, made)) => Ok(made.to_vec()),
                Some((1, why)) => bail!("process 0: {}", String::from_utf8_lossy(why)),
                Some((_, why)) => {
                    let why = String::from_utf8_lossy(why).into_owned();
                    Err(CheckpointError::InFirstProcess(why).into())
                }
                None => bail!("process 0 has brought nothing"),
            };
        }
        let made = make();
        let told = match &made {
            Ok(made) => [&[0], &made[..]].concat(),
            Err(error) => {
                let is_of_checkpoints = find::<CheckpointError>(error).is_some();
                let kind = if is_of_checkpoints { 2 } else { 1 };
                [&[kind], error.to_string().as_bytes()].concat()
            }
        };
        self.gather(OF_FIRST, &told)?;
        made
    }

    /// This process's number.
    pub fn rank(&self) -> usize {
        self.world().map_or(0, |world| world.rank())
    }

    /// The number of processes.
    pub fn count(&self) -> usize {
        self.world().map_or(1, |world| world.size())
    }

    /// Sums a few values over all processes.
    ///
    /// # Errors
    /// If the processes do not reach each other, or bring different numbers of values.
    pub fn sum(&self, values: &mut [f64]) -> Result<()> {
        self.check_failed()?;
        match self.world() {
            None => Ok(()),
            Some(mut world) => Ok(world.sum_values(values)?),
        }
    }

    /// Compares what the processes say of `what`, line by line.
    ///
    /// # Errors
    /// [`Error::Disagreement`](crate::Error::Disagreement) in all processes, unless all say the same; the message has the first lines that differ.
    pub fn agree(&self, what: &str, said: &str) -> Result<()> {
        let all = self.gather(what, said.as_bytes())?;
        let text = |i: usize| String::from_utf8_lossy(&all[i]);
        let first = text(0);
        let differs = (1..all.len()).find(|i| all[*i] != all[0]);
        let Some(i) = differs else { return Ok(()) };
        let other = text(i);
        let (a, b) = different_lines(&first, &other);
        let error = format!(
            "the processes have different {what}: process 0 has {a:?}, process {i} has {b:?}"
        );
        Err(Kind::Disagreement.says(error))
    }

    /// A step of this process failed. The others wait for it in that step, so no later call of this process can be the one
    /// that they wait for.
    pub(crate) fn fail(&self, why: &candle_core::Error) {
        if !self.are_one() {
            lock(&self.failed).get_or_insert(why.to_string());
        }
    }

    /// An error after a step that failed.
    fn check_failed(&self) -> Result<()> {
        match &*lock(&self.failed) {
            None => Ok(()),
            Some(why) => Err(Kind::Failed.says(format!(
                "an earlier step of this process failed, and the others wait for it; end the program with the error of \
                 that step: {why}"
            ))),
        }
    }

    /// A network is dropped, with parameters of this checksum.
    pub(crate) fn note_end(&self, checksum: u32) {
        lock(&self.ended).push(checksum);
    }

    /// Ends in order: under MPI, once all processes have come here.
    ///
    /// # Errors
    /// If the processes do not reach each other, or a network was dropped that had other parameters in one of them.
    pub fn finish(self) -> Result<()> {
        if self.world.is_none() {
            return Ok(());
        }
        self.check_failed()?;
        let mut ended = lock(&self.ended).clone();
        ended.sort_unstable(); // threads may drop them in another order
        let ended = self.agree("parameters at the end", &format!("{ended:x?}"));
        drop(self);
        mpi::finish()?;
        ended
    }

    /// Ends all processes of [`mpi`](Self::mpi) at once, this one with exit status `status`: after an error, because the
    /// others wait for this one.
    pub fn abort(status: i32) -> ! {
        Self::abort_because(status, "gives up")
    }

    /// As [`abort`](Self::abort); a line on stderr says `rank 1`, and then `why`.
    pub(crate) fn abort_because(status: i32, why: &str) -> ! {
        mpi::abort_because(status, why)
    }

    fn world(&self) -> Option<MutexGuard<'_, Box<dyn ProcessGroup>>> {
        self.world.as_ref().map(lock)
    }
}

/// Where the process `rank` is. Each process has brought the name of its machine, and four bytes for each CPU that it may
/// use; none if it does not know them, because then they may be those of the others.
fn place(rank: usize, machines: &[Vec<u8>], cpus: &[Vec<u8>]) -> Process {
    let is_here = |other: &usize| machines[*other] == machines[rank];
    let own = cpus[rank].as_chunks::<4>().0;
    let shares_cores = |other: &usize| {
        let theirs = cpus[*other].as_chunks::<4>().0;
        own.is_empty() || theirs.is_empty() || theirs.iter().any(|cpu| own.contains(cpu))
    };
    let here = (0..machines.len()).filter(is_here);
    Process {
        rank,
        of: machines.len(),
        local_rank: here.clone().filter(|other| *other < rank).count(),
        on_machine: here.clone().count(),
        on_cores: here.filter(shares_cores).count(),
    }
}

/// A name that only the processes of this machine have.
fn machine() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    name.or_else(|_| std::env::var("HOSTNAME"))
        .unwrap_or_default()
}

/// Without MPI there are no others.
#[cfg(not(feature = "mpi"))]
mod mpi {
    use super::{Duration, Launched, ProcessGroup, Result, bail};

    pub fn process_group(_: Option<Duration>) -> Result<Box<dyn ProcessGroup>> {
        match devices::launched() {
            Some(Launched {
                variable,
                value,
                processes: 2..,
            }) => bail!(
                "{variable} is {value}, and this program was built without MPI: each process would train alone. Rebuild \
                 it with --features mpi, or unset {variable}"
            ),
            _ => bail!("this program was built without MPI; rebuild it with --features mpi"),
        }
    }

    pub fn finish() -> Result<()> {
        Ok(())
    }

    pub fn abort_because(status: i32, _: &str) -> ! {
        std::process::exit(status)
    }
}

/// The first lines that differ. Where one text has more lines, they are those of one name, of which one may be missing.
fn different_lines<'a>(first: &'a str, other: &'a str) -> (&'a str, &'a str) {
    if first.lines().count() == other.lines().count() {
        let mut lines = first.lines().zip(other.lines());
        return lines.find(|(a, b)| a != b).unwrap_or((first, other));
    }
    let line_of = |text: &'a str, name: &str| {
        let is_of_name = |line: &&str| line.split(' ').next() == Some(name);
        text.lines().find(is_of_name).unwrap_or_default()
    };
    let all = first.lines().chain(other.lines());
    let names = all.filter_map(|line| line.split(' ').next());
    let mut pairs = names.map(|name| (line_of(first, name), line_of(other, name)));
    pairs.find(|(a, b)| a != b).unwrap_or((first, other))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the last of four processes learns from the CPUs of all, of which the first is on another machine.
    fn last_of_four(cpus: [&[u32]; 4]) -> Process {
        let machines = ["one", "two", "two", "two"].map(|name| name.as_bytes().to_vec());
        let bytes = |cpus: &[u32]| cpus.iter().flat_map(|cpu| cpu.to_le_bytes()).collect();
        place(3, &machines, &cpus.map(bytes))
    }

    #[test]
    fn pieces_come_together_again() -> Result<()> {
        let bytes: Vec<u8> = (0..100).collect();
        for piece in [1, 7, 100, 1000] {
            let all = Processes::alone().gather_in_pieces_of(piece, &bytes)?;
            assert_eq!(all.concat(), bytes);
        }
        assert_eq!(
            Processes::alone().gather_in_pieces(&[])?,
            [Vec::<u8>::new()]
        );
        Ok(())
    }

    #[test]
    fn processes_that_are_bound_to_other_cores_do_not_share_them() {
        let unbound = last_of_four([&[0, 1, 2, 3]; 4]);
        let expected = Process {
            rank: 3,
            of: 4,
            local_rank: 2,
            on_machine: 3,
            on_cores: 3,
        };
        assert_eq!(unbound, expected);
        for (cpus, on_cores) in [
            ([&[3][..], &[1], &[2], &[3]], 1),
            ([&[0, 1], &[0, 1], &[2, 3], &[2, 3]], 2),
            // the second is not bound
            ([&[0, 1], &[0, 1, 2, 3], &[0, 1], &[2, 3]], 2),
            // where a process does not know its CPUs
            ([&[0, 1], &[], &[0, 1], &[2, 3]], 2),
            ([&[0, 1], &[0, 1], &[2, 3], &[]], 3),
        ] {
            let expected = Process {
                on_cores,
                ..expected
            };
            assert_eq!(last_of_four(cpus), expected, "{cpus:?}");
        }
    }
}
