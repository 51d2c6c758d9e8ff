//! The all-reduce algorithms of k members, as rounds: which member adds which values in which order, and
//! which members get the sum. This file computes no sums: `vectors` and `tensors` do, and
//! [`crate::cost`] predicts their time.
//!
//! An algorithm is data, a [`Schedule`]: rounds of sums, with their sources, order and destinations. Devices and
//! shared memory both use it; NCCL has schedules of its own.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// An algorithm by which the members of a group sum. The order of an algorithm's sums never changes, so the same data
/// gives the same bits every time.
///
/// ```
/// use data_parallel_collective::Algorithm;
/// assert_eq!("ring".parse(), Ok(Algorithm::Ring));
/// assert_eq!(Algorithm::Ring.to_string(), "ring");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Algorithm {
    /// The book's: one device, the hub, sums all data; the others copy the sum.
    Star,
    /// The book's exercise: every device owns one of k parts and sums it; the others copy the sum. It adds in the order of
    /// the tree.
    Owner,
    /// Every device passes a part to its neighbour, which adds its own; then the sums go round the ring.
    Ring,
    /// Devices sum in pairs, then pairs of pairs; the sum is copied back the same way.
    Tree,
    /// NVIDIA's library, which sums tensors on GPUs. Each member needs its own GPU. It has no [`Schedule`]; vectors in
    /// shared memory are summed as with `Auto`.
    Nccl,
    /// The one of the other four that the cost model finds fastest.
    #[default]
    Auto,
}

impl Algorithm {
    /// The algorithms that have a [`Schedule`].
    pub const ALL: [Algorithm; 4] = [Self::Star, Self::Owner, Self::Ring, Self::Tree];

    fn name(self) -> &'static str {
        match self {
            Algorithm::Star => "star",
            Algorithm::Owner => "owner",
            Algorithm::Ring => "ring",
            Algorithm::Tree => "tree",
            Algorithm::Nccl => "nccl",
            Algorithm::Auto => "auto",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let all = Self::ALL.into_iter().chain([Self::Nccl, Self::Auto]);
        let found = all.clone().find(|algorithm| algorithm.name() == name);
        found.ok_or_else(|| {
            let names: Vec<_> = all.map(Self::name).collect();
            format!(
                "unknown all-reduce {name:?}: choose one of {}",
                names.join(", ")
            )
        })
    }
}

/// One sum of one chunk: `by` adds the values of `from`, and writes the sum to all of `to`. A sum with one `from` is a
/// copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sum {
    /// The member that computes the sum.
    pub by: usize,
    /// The members that hold the values.
    pub from: Vec<usize>,
    /// The members that get the sum.
    pub to: Vec<usize>,
    /// The chunk of the data.
    pub chunk: usize,
    /// The order of the additions: in pairs, then pairs of pairs, as 0+1+(2+3); or from the first to the last.
    pub in_pairs: bool,
}

impl Sum {
    /// `by` keeps the sum of `from`, added from the first to the last.
    pub fn new(by: usize, from: Vec<usize>, chunk: usize) -> Self {
        Self {
            by,
            from,
            to: vec![by],
            chunk,
            in_pairs: false,
        }
    }

    /// The sum of `parts` in the order of this sum.
    pub(crate) fn total<T>(&self, parts: impl Iterator<Item = T>, add: impl Fn(T, T) -> T) -> T {
        let total = if self.in_pairs {
            in_pairs(parts, add)
        } else {
            parts.reduce(add)
        };
        total.expect("a sum has a part")
    }
}

/// The sum of `parts`: neighbours are added, then their sums, until one is left. An odd one waits. The parts are taken
/// one by one, so that only few are there at the same time.
fn in_pairs<T>(parts: impl Iterator<Item = T>, add: impl Fn(T, T) -> T) -> Option<T> {
    let mut waiting: Vec<T> = Vec::new();
    for (i, mut sum) in parts.enumerate() {
        // as in a binary counter: part i completes as many pairs as i, in binary, has ones at its end
        for _ in 0..i.trailing_ones() {
            sum = add(waiting.pop().expect("its neighbour waits"), sum);
        }
        waiting.push(sum);
    }
    waiting
        .into_iter()
        .rev()
        .reduce(|sum, before| add(before, sum))
}

/// The rounds of an all-reduce, one after the other; the sums of one round run at the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// The number of members.
    pub members: usize,
    /// The number of chunks of the data.
    pub chunks: usize,
    /// The sums of each round. In a round, no member reads what another one writes.
    pub rounds: Vec<Vec<Sum>>,
}

impl Schedule {
    /// The schedule for `k` members that write only their own memory and copy from the others' memory, as
    /// devices do.
    ///
    /// ```
    /// use data_parallel_collective::{Algorithm, Schedule};
    /// let star = Schedule::new(Algorithm::Star, 3);
    /// assert_eq!(star.rounds[0][0].from, [0, 1, 2]); // the hub sums all in one round,
    /// assert_eq!(star.rounds[1].len(), 2); // and both others copy it in the next
    /// ```
    ///
    /// # Panics
    /// If the algorithm is [`Algorithm::Auto`] or [`Algorithm::Nccl`] and `k` is above 1, or if `k` is 0.
    pub fn new(algorithm: Algorithm, k: usize) -> Self {
        assert!(k > 0, "an all-reduce of 0 members; give at least 1");
        let (chunks, rounds) = match algorithm {
            _ if k == 1 => (1, Vec::new()),
            Algorithm::Star => (1, star(k)),
            Algorithm::Owner | Algorithm::Ring => (k, halves(algorithm, k).concat()),
            Algorithm::Tree => (1, tree(k)),
            Algorithm::Nccl => panic!("NCCL has schedules of its own"),
            Algorithm::Auto => panic!("auto is not an algorithm: call Algorithm::chosen first"),
        };
        Self {
            members: k,
            chunks,
            rounds,
        }
    }

    /// The first half of the all-reduce of owner and ring: it leaves the sum of each chunk with one member. With owners,
    /// member i has that of chunk i.
    ///
    /// ```
    /// use data_parallel_collective::{Algorithm, Schedule};
    /// let held = Schedule::reduce_scatter(Algorithm::Owner, 3).held();
    /// assert_eq!([held[1][0][0].to_string(), held[1][1][0].to_string()], ["0+1+2", "1"]);
    /// ```
    ///
    /// # Panics
    /// If the algorithm is another one, or `k` is 0.
    pub fn reduce_scatter(algorithm: Algorithm, k: usize) -> Self {
        Self::half(algorithm, k, 0)
    }

    /// The second half: each member gets the sums that the [first half](Self::reduce_scatter) left with the others.
    ///
    /// ```
    /// use data_parallel_collective::{Algorithm, Schedule, cost::Link};
    /// let link = Link { latency: Default::default(), bytes_per_second: 16e9 };
    /// let schedule = Schedule::all_gather(Algorithm::Ring, 4);
    /// let ms = schedule.time(160_000_000, |_, _| link).as_secs_f64() * 1e3;
    /// assert_eq!(ms, 7.5); // half of the all-reduce
    /// ```
    ///
    /// # Panics
    /// If the algorithm is another one, or `k` is 0.
    pub fn all_gather(algorithm: Algorithm, k: usize) -> Self {
        Self::half(algorithm, k, 1)
    }

    fn half(algorithm: Algorithm, k: usize, half: usize) -> Self {
        assert!(k > 0, "a schedule for 0 members; give at least 1");
        let [first, second] = halves(algorithm, k);
        let mut rounds = if half == 0 { first } else { second };
        if k == 1 {
            rounds.clear();
        }
        Self {
            members: k,
            chunks: k,
            rounds,
        }
    }

    /// Like [`new`](Self::new), for members in shared memory: an owner writes its sum to all members, so
    /// there is no second round.
    pub fn in_shared_memory(algorithm: Algorithm, k: usize) -> Self {
        let mut schedule = Self::new(algorithm, k);
        if algorithm == Algorithm::Owner && k > 1 {
            schedule.rounds.truncate(1);
            for sum in &mut schedule.rounds[0] {
                sum.to = (0..k).collect();
            }
        }
        schedule
    }

    /// The most elements that the member `rank` holds besides its own `len`, while tensors are summed on
    /// devices: sums, and copies of the others' chunks. Vectors in shared memory are summed in place.
    ///
    /// ```
    /// use data_parallel_collective::{Algorithm, Schedule};
    /// let star = Schedule::new(Algorithm::Star, 4);
    /// // the hub: the sum so far, the next one's copy, and their sum; the others: the sum
    /// assert_eq!([star.extra_memory(0, 100), star.extra_memory(1, 100)], [300, 100]);
    /// // its chunk of the sum and copies of the others', and all of it as one
    /// assert_eq!(Schedule::new(Algorithm::Owner, 4).extra_memory(0, 1600), 2 * 1600);
    /// ```
    pub fn extra_memory(&self, rank: usize, len: usize) -> usize {
        let mut kept = 0;
        let mut most = 0;
        for sum in self.rounds.iter().flatten().filter(|sum| sum.by == rank) {
            let size = self.chunk(sum.chunk, len).len();
            let copy = |from: usize| if from == rank { 0 } else { size };
            let mut so_far = copy(sum.from[0]);
            for from in &sum.from[1..] {
                most = most.max(kept + so_far + copy(*from) + size);
                so_far = size;
            }
            kept += so_far; // until all members have read it
            most = most.max(kept);
        }
        let joined = if self.chunks > 1 { len } else { 0 };
        most.max(kept + joined)
    }

    /// The schedule as JSON, with the names of the fields: for a page that draws it.
    ///
    /// ```
    /// use data_parallel_collective::{Algorithm, Schedule};
    /// let json = Schedule::new(Algorithm::Tree, 2).json();
    /// assert!(json.starts_with(r#"{"members":2,"chunks":1,"rounds":[[{"by":0,"from":[0,1],"to":[0],"chunk":0,"in_pairs":false}]"#));
    /// ```
    pub fn json(&self) -> String {
        let sum = |Sum {
                       by,
                       from,
                       to,
                       chunk,
                       in_pairs,
                   }: &Sum| {
            format!(
                r#"{{"by":{by},"from":{from:?},"to":{to:?},"chunk":{chunk},"in_pairs":{in_pairs}}}"#
            )
        };
        let list = |items: Vec<String>| format!("[{}]", items.join(","));
        let round = |sums: &Vec<Sum>| list(sums.iter().map(sum).collect());
        let rounds = list(self.rounds.iter().map(round).collect()).replace(", ", ",");
        let members = self.members;
        let chunks = self.chunks;
        format!(r#"{{"members":{members},"chunks":{chunks},"rounds":{rounds}}}"#)
    }

    /// The values of the members before the first round and after each one: `held[round][member][chunk]`.
    ///
    /// ```
    /// use data_parallel_collective::{Algorithm, Schedule};
    /// let held = Schedule::new(Algorithm::Tree, 4).held();
    /// assert_eq!(held[0][1][0].to_string(), "1"); // its own values
    /// assert_eq!(held.last().unwrap()[1][0].to_string(), "0+1+(2+3)");
    /// ```
    pub fn held(&self) -> Vec<Vec<Vec<Partial>>> {
        let own = |rank| vec![Partial::own(rank); self.chunks];
        let mut all = vec![(0..self.members).map(own).collect::<Vec<_>>()];
        for round in &self.rounds {
            let before = &all[all.len() - 1];
            let mut after = before.clone();
            for sum in round {
                let parts = sum.from.iter().map(|rank| before[*rank][sum.chunk].clone());
                let whole = sum.total(parts, Partial::add);
                sum.to
                    .iter()
                    .for_each(|rank| after[*rank][sum.chunk] = whole.clone());
            }
            all.push(after);
        }
        all
    }

    /// Checks that this is an all-reduce: every member ends with the values of every member once, summed in the same
    /// order, and the sums of a round can run at the same time.
    ///
    /// # Errors
    /// A sentence that says where it is none.
    pub fn check(&self) -> Result<(), String> {
        self.check_rounds()?;
        let held = self.held().pop().unwrap_or_default();
        for (member, chunks) in held.iter().enumerate() {
            for (chunk, sum) in chunks.iter().enumerate() {
                let mut once = sum.ranks.clone();
                let right = &held[0][chunk];
                once.sort_unstable();
                if once != (0..self.members).collect::<Vec<_>>() {
                    return Err(format!(
                        "Member {member} ends with {sum} in chunk {chunk}. These are numbers of members: each has to be \
                         there once."
                    ));
                }
                if sum != right {
                    return Err(format!(
                        "Chunk {chunk} is {right} on member 0 and {sum} on member {member}: their bits may differ."
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks that all members and chunks exist, and that the sums of each round can run at the same time.
    ///
    /// # Errors
    /// A sentence that says which round is wrong.
    pub fn check_rounds(&self) -> Result<(), String> {
        if self.members == 0 || self.chunks == 0 {
            return Err("A schedule has at least one member and one chunk.".to_owned());
        }
        for (number, round) in (1..).zip(&self.rounds) {
            self.check_round(round)
                .map_err(|wrong| format!("Round {number}: {wrong}"))?;
        }
        Ok(())
    }

    fn check_round(&self, round: &[Sum]) -> Result<(), String> {
        for (i, sum) in round.iter().enumerate() {
            let by = sum.by;
            let chunk = sum.chunk;
            let mut ranks = sum.from.iter().chain(&sum.to).chain([&by]);
            if let Some(rank) = ranks.find(|rank| **rank >= self.members) {
                return Err(format!("there is no member {rank}."));
            }
            if chunk >= self.chunks {
                return Err(format!("there is no chunk {chunk}."));
            }
            if sum.from.is_empty() {
                return Err(format!("member {by} adds nothing."));
            }
            if sum.to.is_empty() {
                return Err(format!("member {by} writes its sum to no member."));
            }
            let others = round.iter().enumerate().filter(|(j, _)| *j != i);
            for (_, other) in others.filter(|(_, other)| other.chunk == chunk) {
                let touched = |rank: &&usize| other.from.contains(rank) || other.to.contains(rank);
                if let Some(rank) = sum.to.iter().find(touched) {
                    return Err(format!(
                        "member {by} writes chunk {chunk} of member {rank} while member {} uses it.",
                        other.by
                    ));
                }
            }
        }
        Ok(())
    }

    /// The range of a chunk in data of `len` elements; chunks begin at multiples of 16.
    pub fn chunk(&self, chunk: usize, len: usize) -> Range<usize> {
        let bound = |chunk: usize| {
            if chunk == self.chunks {
                len
            } else {
                (chunk * len / self.chunks) & !15
            }
        };
        bound(chunk)..bound(chunk + 1)
    }
}

/// The sum of some members' values, during an all-reduce. Shown as the sum that it is, such as `0+1+(2+3)`: additions
/// run from left to right. Sums that are shown alike have the same bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partial {
    /// The members, in the order of the sum.
    pub ranks: Vec<usize>,
    shown: String,
}

impl Partial {
    fn own(rank: usize) -> Self {
        Self {
            ranks: vec![rank],
            shown: rank.to_string(),
        }
    }

    fn add(self, part: Self) -> Self {
        Self {
            shown: match part.ranks.len() {
                1 => format!("{self}+{part}"),
                _ => format!("{self}+({part})"),
            },
            ranks: [self.ranks, part.ranks].concat(),
        }
    }
}

impl fmt::Display for Partial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.shown)
    }
}

pub(crate) fn copy(by: usize, from: usize, chunk: usize) -> Sum {
    Sum::new(by, vec![from], chunk)
}

fn star(k: usize) -> Vec<Vec<Sum>> {
    let sum = Sum::new(0, (0..k).collect(), 0);
    let copies = (1..k).map(|rank| copy(rank, 0, 0));
    vec![vec![sum], copies.collect()]
}

/// The reduce-scatter and the all-gather that an all-reduce consists of.
fn halves(algorithm: Algorithm, k: usize) -> [Vec<Vec<Sum>>; 2] {
    match algorithm {
        Algorithm::Owner => owner(k),
        Algorithm::Ring => ring(k),
        other => panic!("{other} has no halves: owner and ring have"),
    }
}

fn owner(k: usize) -> [Vec<Vec<Sum>>; 2] {
    let sum = |rank| Sum {
        in_pairs: true,
        ..Sum::new(rank, (0..k).collect(), rank)
    };
    // each member begins with its neighbour's chunk, so that not all copy from the same member
    let copies = |rank: usize| {
        (1..k)
            .map(move |i| (rank + i) % k)
            .map(move |owner| copy(rank, owner, owner))
    };
    let rounds = [(0..k).map(sum).collect(), (0..k).flat_map(copies).collect()];
    rounds.map(|round| vec![round])
}

fn ring(k: usize) -> [Vec<Vec<Sum>>; 2] {
    let left = |rank: usize| (rank + k - 1) % k;
    // reduce-scatter: in round i, a member adds its own chunk to the sum so far of its left neighbour
    let sums = |i: usize| {
        let sum = |rank| Sum::new(rank, vec![left(rank), rank], (rank + 2 * k - 1 - i) % k);
        (0..k).map(sum).collect()
    };
    // all-gather: the sums go round the ring once
    let hand_on = |i: usize| {
        let sum = |rank| copy(rank, left(rank), (rank + 2 * k - i) % k);
        (0..k).map(sum).collect()
    };
    [
        (0..k - 1).map(sums).collect(),
        (0..k - 1).map(hand_on).collect(),
    ]
}

fn tree(k: usize) -> Vec<Vec<Sum>> {
    let strides = (0..).map(|i| 1 << i).take_while(|stride| *stride < k);
    let strides: Vec<usize> = strides.collect();
    let pairs = |stride: &usize| {
        let stride = *stride;
        let lower = (0..k).step_by(2 * stride);
        let pairs = lower.map(move |rank| (rank, rank + stride));
        pairs.filter(move |(_, upper)| *upper < k)
    };
    let up = |stride| {
        pairs(stride)
            .map(|(a, b)| Sum::new(a, vec![a, b], 0))
            .collect()
    };
    let down = |stride| pairs(stride).map(|(a, b)| copy(b, a, 0)).collect();
    strides
        .iter()
        .map(up)
        .chain(strides.iter().rev().map(down))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedules() -> impl Iterator<Item = Schedule> {
        let sizes = (1..=9).chain([16, 31]);
        sizes.flat_map(|k| {
            let two = move |a| [Schedule::new(a, k), Schedule::in_shared_memory(a, k)];
            Algorithm::ALL.into_iter().flat_map(two)
        })
    }

    #[test]
    fn each_schedule_is_an_all_reduce() {
        for schedule in schedules() {
            assert_eq!(schedule.check(), Ok(()), "{schedule:?}");
        }
    }

    #[test]
    fn a_reduce_scatter_and_an_all_gather_are_an_all_reduce() {
        for algorithm in [Algorithm::Owner, Algorithm::Ring] {
            for k in 1..=9 {
                let first = Schedule::reduce_scatter(algorithm, k);
                let second = Schedule::all_gather(algorithm, k);
                let both = [first.rounds.clone(), second.rounds].concat();
                assert_eq!(both, Schedule::new(algorithm, k).rounds);
                let held = first.held().pop().unwrap();
                let complete = |member: &Vec<Partial>| {
                    let sums = member.iter().filter(|sum| sum.ranks.len() == k);
                    sums.count()
                };
                assert_eq!(held.iter().map(complete).collect::<Vec<_>>(), vec![1; k]);
            }
        }
    }

    #[test]
    fn what_is_no_all_reduce_is_named() {
        let says = |words: &str, change: fn(&mut Vec<Vec<Sum>>)| {
            let mut schedule = Schedule::new(Algorithm::Star, 3);
            change(&mut schedule.rounds);
            let sentence = schedule.check().unwrap_err();
            assert!(sentence.contains(words), "{sentence}");
        };
        says("Member 1 ends with 1 in", |rounds| rounds.truncate(1));
        let words = "ends with 0+1+1+2";
        says(words, |rounds| rounds[0][0].from = vec![0, 1, 1, 2]);
        let words = "Round 2: there is no member 3";
        says(words, |rounds| rounds[1][0].from = vec![3]);
        let words = "Round 2: there is no chunk 1";
        says(words, |rounds| rounds[1][0].chunk = 1);
        let words = "Round 1: member 1 writes chunk 0 of member 1 while";
        says(words, |rounds| rounds[0].push(copy(1, 2, 0)));
        let words = "Round 2: member 1 writes its sum to no member";
        says(words, |rounds| rounds[1][0].to.clear());
        let words = "ends with 2+(0+1+2)";
        says(words, |rounds| rounds[1][1] = Sum::new(2, vec![2, 0], 0));
        let no_chunks = Schedule {
            chunks: 0,
            ..Schedule::new(Algorithm::Star, 1)
        };
        assert!(no_chunks.check().is_err());
        // in another order for each member
        let both = vec![Sum::new(0, vec![0, 1], 0), Sum::new(1, vec![1, 0], 1)];
        let back = vec![copy(1, 0, 0), copy(0, 1, 1)];
        let mut swapped = Schedule {
            members: 2,
            chunks: 2,
            rounds: vec![both, back],
        };
        assert_eq!(swapped.check(), Ok(()));
        swapped.rounds = vec![vec![Sum::new(0, vec![0, 1], 0)]];
        assert!(swapped.check().is_err());
    }

    #[test]
    fn the_star_sums_in_rank_order_and_owner_and_tree_in_pairs() {
        let sum = |algorithm, k| {
            let held = Schedule::new(algorithm, k).held();
            held[held.len() - 1][0][0].to_string()
        };
        for k in 1..=33 {
            assert_eq!(sum(Algorithm::Owner, k), sum(Algorithm::Tree, k));
            let is_rank_order = sum(Algorithm::Star, k) == sum(Algorithm::Tree, k);
            assert_eq!(is_rank_order, k <= 3, "{k}");
        }
        assert_eq!(sum(Algorithm::Star, 7), "0+1+2+3+4+5+6");
        assert_eq!(sum(Algorithm::Owner, 7), "0+1+(2+3)+(4+5+6)");
    }

    #[test]
    fn chunks_are_the_whole_once() {
        for schedule in schedules() {
            for len in [0, 1, 15, 16, 17, 100, 12345] {
                let chunks = (0..schedule.chunks).map(|c| schedule.chunk(c, len));
                let all: Vec<usize> = chunks.flatten().collect();
                assert_eq!(all, (0..len).collect::<Vec<_>>());
            }
        }
    }
}
