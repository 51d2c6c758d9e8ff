//! In which order the members of several processes are summed: in the same one wherever the members are.

use crate::algorithm::{Algorithm, Schedule, Sum};
use crate::slots::{BLOCK, add};
use pulp::Arch;
use std::ops::Range;

/// How processes sum together. All their members are summed in pairs, then pairs of pairs, as in one process; with
/// [`Algorithm::Star`] from the first to the last. A process sums its own members first, as far as this order allows it.
/// So it brings few vectors to the others. Of four members in processes of 2 + 2, each process brings one: 0+1, and 2+3. In
/// processes of 3 + 1, the first one brings two, 0+1 and 2, and the other one brings 3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SumOrder {
    /// How many vectors each process brings.
    pub vectors: Vec<usize>,
    /// The additions, one after the other: vector `.1` is added to vector `.0`. The numbers count the vectors of all
    /// processes. At the end vector 0 is the sum.
    pub additions: Vec<(usize, usize)>,
    /// The first member of each process, and the number of all.
    starts: Vec<usize>,
    /// The members that each vector is the sum of.
    members: Vec<Range<usize>>,
    in_pairs: bool,
}

impl SumOrder {
    /// The order for processes with so many members each.
    ///
    /// ```
    /// let order = collective::SumOrder::new(&[3, 1], Default::default());
    /// assert_eq!(order.vectors, [2, 1]); // 0+1 and 2, and 3
    /// assert_eq!(order.additions, [(1, 2), (0, 1)]); // (0+1) + (2+3)
    /// ```
    pub fn new(members: &[usize], algorithm: Algorithm) -> Self {
        let ends = members.iter().scan(0, |end, n| {
            *end += n;
            Some(*end)
        });
        let starts: Vec<usize> = [0].into_iter().chain(ends).collect();
        let (k, in_pairs) = (starts[members.len()], algorithm != Algorithm::Star);
        // a member, one that is added to it, and where the members of the new sum end
        let all: Vec<(usize, usize, usize)> = if in_pairs {
            pairs(k)
        } else {
            (1..k).map(|other| (0, other, other + 1)).collect()
        };
        let in_one = |(to, _, end): &(usize, usize, usize)| {
            starts.windows(2).any(|own| own[0] <= *to && *end <= own[1])
        };
        let (inside, between): (Vec<_>, Vec<_>) = all.into_iter().partition(in_one);
        let is_added = |member: &usize| inside.iter().any(|(_, other, _)| other == member);
        let heads: Vec<usize> = (0..k).filter(|member| !is_added(member)).collect();
        let number = |member| heads.partition_point(|head| *head < member);
        let vectors = |own: &[usize]| number(own[1]) - number(own[0]);
        let addition = |(to, other, _)| (number(to), number(other));
        let ends = heads[1..].iter().chain([&k]);
        let members = heads.iter().zip(ends);
        Self {
            vectors: starts.windows(2).map(vectors).collect(),
            additions: between.into_iter().map(addition).collect(),
            members: members.map(|(head, end)| *head..*end).collect(),
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
    /// collective::SumOrder::new(&[3, 1], Default::default()).sum(&mut vectors, 2);
    /// assert_eq!(vectors[..2], [111.0, 222.0]);
    /// ```
    ///
    /// # Panics
    /// If there are fewer vectors.
    pub fn sum(&self, vectors: &mut [f32], len: usize) {
        Arch::new().dispatch(
            #[inline(always)]
            || {
                // in blocks that stay in the cache
                for start in (0..len).step_by(BLOCK) {
                    let block = start..len.min(start + BLOCK);
                    for &(to, other) in &self.additions {
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
        let (first, start) = (self.first(process), self.starts[process]);
        let own = self.members[first..first + self.vectors[process]].iter();
        own.map(move |range| range.start - start..range.end - start)
    }

    /// What a process sums before. The first member of each vector gets its sum; with several chunks, one member sums
    /// each.
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

/// The tree over `k` members: a member, the one that is added to it, and where the members of the new sum end.
fn pairs(k: usize) -> Vec<(usize, usize, usize)> {
    let rounds = Schedule::new(Algorithm::Tree, k).rounds;
    let sums = rounds.iter().flatten().filter(|sum| sum.from.len() == 2);
    sums.map(|sum| {
        let (to, other) = (sum.from[0], sum.from[1]);
        (to, other, (2 * other - to).min(k))
    })
    .collect()
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
        for (to, other) in &order.additions {
            let [to, other] = [to, other].map(|vector| order.members[*vector].start);
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
