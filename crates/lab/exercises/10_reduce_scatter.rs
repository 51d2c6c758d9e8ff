// 10. Reduce-scatter: each member sums its part of the vectors
//
// In an all-reduce, each of k members brings a vector of n elements. Each gets
// the sum of all k vectors. A member could read all other vectors: (k − 1) · n
// elements. Two rounds need less (book: 13.7). In the first round, the
// reduce-scatter, member i sums part i of all vectors. In the second round, the
// all-gather, it copies the other parts from the members that summed them. A
// member reads about 2 (k − 1) / k · n elements in both rounds together. The
// check counts them.
//
// `part` cuts n elements into k parts, one after the other. Part 0 begins at
// element 0. Where k does not divide n, the first n % k parts are one element
// longer: 11 elements make parts of 3, 3, 3 and 2.
//
// The other functions are the work of member i of k in a round. `own` is its
// vector. `read(j, range)` returns these elements of member j, as they were
// before the round. `all_gather` shows how to use it.

use std::ops::Range;

pub fn part(i: usize, k: usize, n: usize) -> Range<usize> {
    // gap: todo!("compute where part i of n elements begins and ends")
    let start = i * (n / k) + i.min(n % k);
    start..start + n / k + usize::from(i < n % k)
    // end of gap
}

pub fn reduce_scatter(
    i: usize,
    k: usize,
    own: &mut [f32],
    read: impl Fn(usize, Range<usize>) -> Vec<f32>,
) {
    // gap: todo!("add to part i of `own` the same part of all other members")
    let range = part(i, k, own.len());
    for j in (0..k).filter(|&j| j != i) {
        let values = read(j, range.clone());
        for (sum, value) in own[range.clone()].iter_mut().zip(values) {
            *sum += value;
        }
    }
    // end of gap
}

pub fn all_gather(
    i: usize,
    k: usize,
    own: &mut [f32],
    read: impl Fn(usize, Range<usize>) -> Vec<f32>,
) {
    for j in (0..k).filter(|&j| j != i) {
        let sums = part(j, k, own.len());
        own[sums.clone()].copy_from_slice(&read(j, sums));
    }
}
