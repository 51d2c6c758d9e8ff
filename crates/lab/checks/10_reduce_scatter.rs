// The parts, the sums after both rounds, and the number of elements read. Some k do not divide n.

use std::cell::Cell;
use std::ops::Range;

use anyhow::Result;
use lab::equal;

use super::exercise::{all_gather, part, reduce_scatter};

pub fn check() -> Result<()> {
    let sizes = [(3, 12), (4, 11), (3, 10), (3, 2), (1, 5)];
    sizes.iter().try_for_each(|&(k, n)| check_parts(k, n))?;
    sizes.iter().try_for_each(|&(k, n)| check_rounds(k, n))
}

fn check_parts(k: usize, n: usize) -> Result<()> {
    let yours: Vec<_> = (0..k).map(|i| part(i, k, n)).collect();
    let right: Vec<_> = (0..k).map(|i| right_part(i, k, n)).collect();
    let mistake = match (1..k).find(|&i| yours[i].start < yours[i - 1].end) {
        Some(i) => format!(", but parts {} and {i} overlap", i - 1),
        None if yours[k - 1].end < n => ", but n / k forgets the remainder".to_owned(),
        None => " that are not the right ones".to_owned(),
    };
    let sentence = format!("You cut {n} elements into {k} parts{mistake}.");
    equal(&sentence, &yours, &right)
}

fn check_rounds(k: usize, n: usize) -> Result<()> {
    // a digit for each member: 1111 is the sum of 1, 10, 100 and 1000
    let digit = |j: usize| 10f32.powi(j as i32);
    let vector = |digit: f32| (0..n).map(|t| digit * (1 + t % 4) as f32).collect();
    let before: Vec<Vec<f32>> = (0..k).map(|j| vector(digit(j))).collect();
    let sum: Vec<f32> = vector((0..k).map(digit).sum());

    let reads = Cell::new(0);
    let mut after = before.clone();
    for (i, own) in after.iter_mut().enumerate() {
        let read = |j: usize, range: Range<usize>| count(i == j, &reads, &before[j][range]);
        reduce_scatter(i, k, own, read);
        let mine = right_part(i, k, n);
        let [old, yours, right] = [&before[i], &*own, &sum].map(|all| &all[mine.clone()]);
        let twice: Vec<f32> = old.iter().zip(right).map(|(old, sum)| old + sum).collect();
        let what = format!("After the reduce-scatter, part {i} of member {i} of {k}");
        if yours == twice {
            equal(&format!("{what} has its own values twice."), yours, right)?;
        }
        equal(&format!("{what} is not the sum of all."), yours, right)?;
    }
    let mut last = after.clone();
    for (i, own) in last.iter_mut().enumerate() {
        let read = |j: usize, range: Range<usize>| count(i == j, &reads, &after[j][range]);
        all_gather(i, k, own, read);
        let what = format!("After the all-gather, member {i} of {k} does not have the sum.");
        equal(&what, own, &sum)?;
    }
    let what = format!("The {k} members together read too many elements in both rounds.");
    let sentence = format!("{what} Perhaps one reads the whole vectors of the others.");
    equal(&sentence, &reads.get(), &(2 * (k - 1) * n))
}

/// Returns the elements that a member reads, and counts them if they are of another member.
fn count(is_own: bool, reads: &Cell<usize>, elements: &[f32]) -> Vec<f32> {
    if !is_own {
        reads.set(reads.get() + elements.len());
    }
    elements.to_vec()
}

fn right_part(i: usize, k: usize, n: usize) -> Range<usize> {
    let start = |i: usize| i * (n / k) + i.min(n % k);
    start(i)..start(i + 1)
}
