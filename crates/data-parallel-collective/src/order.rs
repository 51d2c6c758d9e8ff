//! The order in which the members of several processes are summed: the same one wherever the members are.

use crate::algorithm::{Algorithm, Schedule, Sum};
use crate::shared_vectors::{BLOCK, add};
use std::ops::Range;

/// The order in which processes sum together. All their members are summed in pairs, then pairs of pairs, as in one
/// process; with [`Algorithm::Star`] from the first to the last. A process sums its own members first, as far as this
/// order allows it. So it brings few vectors to the others. Of four members in processes of 2 + 2, each process brings
/// one: 0+1, and 2+3. In processes of 3 + 1, the first one brings two, 0+1 and 2, and the other one brings 3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SumOrder {
    /// Number of vectors that each process brings.
    pub vectors: Vec<usize>,
    /// The additions, one after the other. At the end vector 0 is the sum.
    pub additions: Vec<Addition>,
    /// The first member of each process, and the number of all.
    starts: Vec<usize>,
    /// The members that each vector is the sum of.
    members: Vec<Range<usize>>,
    in_pairs: bool,
}

/// One vector is added to another. The numbers count the vectors of all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addition {
    /// The vector that becomes the sum.
    pub to: usize,
    /// The vector that is added to it.
    pub other: usize,
}

/// An addition of two sums of consecutive members, which it counts: an [`Addition`] counts vectors.
struct Join {
    /// The first member of the sum that the other is added to.
    to: usize,
    /// The first member of the other.
    other: usize,
    /// Behind the last member of both.
    end: usize,
}

impl SumOrder {
    /// The order for processes, given the number of members of each.
    ///
    /// ```
    /// let order = data_parallel_collective::SumOrder::new(&[3, 1], Default::default());
    /// assert_eq!(order.vectors, [2, 1]); // 0+1 and 2, and 3
    /// let additions = order.additions.iter().map(|addition| (addition.to, addition.other));
    /// assert!(additions.eq([(1, 2), (0, 1)])); // (0+1) + (2+3)
    /// ```
    pub fn new(members: &[usize], algorithm: Algorithm) -> Self {
        let mut starts = vec![0];
        for n in members {
            starts.push(starts[starts.len() - 1] + n);
        }
        let k = starts[members.len()];
        let in_pairs = algorithm != Algorithm::Star;
        let joins = if in_pairs { pairs(k) } else { one_by_one(k) };
        // a process does the joins of its own members before it brings its vectors
        let is_in_one_process = |join: &Join| {
            let mut owned = starts.windows(2);
            owned.any(|own| own[0] <= join.to && join.end <= own[1])
        };
        let (inside, between): (Vec<Join>, Vec<Join>) =
            joins.into_iter().partition(is_in_one_process);
        // the first members of the vectors that are left
        let is_added = |member: &usize| inside.iter().any(|join| join.other == *member);
        let heads: Vec<usize> = (0..k).filter(|member| !is_added(member)).collect();
        let vectors_before = |member| heads.partition_point(|head| *head < member);
        let mut additions = Vec::new();
        for join in between {
            additions.push(Addition {
                to: vectors_before(join.to),
                other: vectors_before(join.other),
            });
        }
        let vectors = starts
            .windows(2)
            .map(|own| vectors_before(own[1]) - vectors_before(own[0]));
        let ends = heads[1..].iter().chain([&k]);
        let of_vectors = heads.iter().zip(ends).map(|(head, end)| *head..*end);
        Self {
            vectors: vectors.collect(),
            additions,
            members: of_vectors.collect(),
            starts,
            in_pairs,
        }
    }

    /// The number of the first vector of a process.
    pub fn first(&self, process: usize) -> usize {
        self.vectors[..process].iter().sum()
    }

    /// Adds the vectors of all processes, which follow each other with `len` elements each, to the first one.
    ///
    /// ```
    /// let mut vectors = [1.0, 2.0, 10.0, 20.0, 100.0, 200.0]; // 0+1 and 2 of a process, 3 of another
    /// data_parallel_collective::SumOrder::new(&[3, 1], Default::default()).sum(&mut vectors, 2);
    /// assert_eq!(vectors[..2], [111.0, 222.0]);
    /// ```
    ///
    /// # Panics
    /// If there are fewer vectors.
    pub fn sum(&self, vectors: &mut [f32], len: usize) {
        devices::vectorized(
            #[inline(always)]
            || {
                // in blocks that stay in the cache
                for start in (0..len).step_by(BLOCK) {
                    let block = start..len.min(start + BLOCK);
                    for &Addition { to, other } in &self.additions {
                        let (before, from) = vectors.split_at_mut(other * len);
                        add(&mut before[to * len..][block.clone()], &from[block.clone()]);
                    }
                }
            },
        );
    }

    /// The elements that are the parts of a process's members, of a vector of `len`: what a
    /// [reduce-scatter](crate::ProcessGroup::reduce_scatter) leaves with it.
    pub fn part(&self, process: usize, len: usize) -> Range<usize> {
        let parts = parts(self.size());
        let first = |process: usize| parts.chunk(self.starts[process], len).start;
        first(process)..first(process + 1)
    }

    /// The first member of a process.
    pub(crate) fn first_member(&self, process: usize) -> usize {
        self.starts[process]
    }

    /// The members of all processes.
    pub(crate) fn size(&self) -> usize {
        self.starts[self.vectors.len()]
    }

    /// The members of a process that each of its vectors is the sum of, counted in the process.
    pub(crate) fn locals(&self, process: usize) -> impl Iterator<Item = Range<usize>> {
        let first = self.first(process);
        let start = self.starts[process];
        self.members[first..first + self.vectors[process]]
            .iter()
            .map(move |range| range.start - start..range.end - start)
    }

    /// The sums inside a process, before those between processes. The first member of each vector gets its sum; with
    /// several chunks, one member sums each.
    pub(crate) fn inside(&self, process: usize, chunks: usize) -> Schedule {
        let members = self.starts[process + 1] - self.starts[process];
        let sum = |chunk: usize, own: Range<usize>| Sum {
            by: if chunks == 1 { own.start } else { chunk },
            to: vec![own.start],
            from: own.collect(),
            chunk,
            in_pairs: self.in_pairs,
        };
        let many = || self.locals(process).filter(|own| own.len() > 1);
        let sums = (0..chunks).flat_map(|chunk| many().map(move |own| sum(chunk, own)));
        Schedule {
            members,
            chunks,
            rounds: vec![sums.collect()],
        }
    }
}

/// A vector in as many parts as there are members.
pub(crate) fn parts(members: usize) -> Schedule {
    Schedule {
        members,
        chunks: members,
        rounds: Vec::new(),
    }
}

/// The tree over `k` members.
fn pairs(k: usize) -> Vec<Join> {
    let rounds = Schedule::new(Algorithm::Tree, k).rounds;
    let sums = rounds.iter().flatten().filter(|sum| sum.from.len() == 2);
    let join = |sum: &Sum| {
        let to = sum.from[0];
        let other = sum.from[1];
        let end = (2 * other - to).min(k); // both sums have as many members, unless there are no more
        Join { to, other, end }
    };
    sums.map(join).collect()
}

/// From the first of `k` members to the last.
fn one_by_one(k: usize) -> Vec<Join> {
    let join = |other| Join {
        to: 0,
        other,
        end: other + 1,
    };
    (1..k).map(join).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every layout of up to 9 members gives the sum of one process.
    #[test]
    fn the_order_is_the_same_wherever_the_members_are() {
        for algorithm in [Algorithm::Star, Algorithm::Owner] {
            for k in 1..=9usize {
                let one = Schedule::new(algorithm, k).held().pop().unwrap()[0][0].clone();
                for cuts in 0..1 << (k - 1) {
                    let ends = (1..=k).filter(|end| *end == k || cuts >> (end - 1) & 1 == 1);
                    let layout: Vec<usize> = ends
                        .scan(0, |start, end| Some(end - std::mem::replace(start, end)))
                        .collect();
                    assert_eq!(sum(&layout, algorithm), one, "{layout:?}");
                }
            }
        }
    }

    /// The sum of all, as one schedule of what each process does, and of what they do together.
    fn sum(layout: &[usize], algorithm: Algorithm) -> crate::Partial {
        let order = SumOrder::new(layout, algorithm);
        let mut rounds = Vec::new();
        for process in 0..layout.len() {
            let start = order.first_member(process);
            for mut round in order.inside(process, 1).rounds {
                for sum in &mut round {
                    sum.by += start;
                    let members = sum.from.iter_mut().chain(&mut sum.to);
                    members.for_each(|member| *member += start);
                }
                rounds.push(round);
            }
        }
        for addition in &order.additions {
            let first_member = |vector: usize| order.members[vector].start;
            let to = first_member(addition.to);
            let other = first_member(addition.other);
            rounds.push(vec![Sum::new(to, vec![to, other], 0)]);
        }
        let all = Schedule {
            members: order.size(),
            chunks: 1,
            rounds,
        };
        assert_eq!(all.check_rounds(), Ok(()));
        all.held().pop().unwrap()[0][0].clone()
    }

    #[test]
    fn an_even_layout_brings_one_vector_each() {
        for (layout, vectors) in [
            (vec![2, 2], vec![1, 1]),
            (vec![4, 4, 4], vec![1, 1, 1]),
            (vec![1; 5], vec![1; 5]),
            (vec![3, 3], vec![2, 2]),
            (vec![1, 3], vec![1, 2]),
        ] {
            assert_eq!(SumOrder::new(&layout, Algorithm::Auto).vectors, vectors);
        }
    }
}
