// The buckets of a few lists of sizes, and with which gradient each bucket leaves, in a few orders.

use anyhow::{Result, bail, ensure};

use super::exercise::{Counters, buckets};

pub fn check() -> Result<()> {
    // LeNet's parameters; W3 has more elements than the limit
    let lenet = [180, 20, 25_000, 50, 102_400, 128, 1_280, 10];
    check_buckets(&lenet, 30_000, &[&[7, 6, 5], &[4], &[3, 2, 1, 0]])?;
    check_buckets(&[4, 1, 2, 4], 5, &[&[3], &[2, 1], &[0]])?;
    // exactly the limit
    check_buckets(&[1, 4, 2, 3], 5, &[&[3, 2], &[1, 0]])?;
    // parameter 0 has room in bucket 0, but bucket 1 is the newest
    check_buckets(&[2, 4, 3], 5, &[&[2], &[1], &[0]])?;
    check_buckets(&[9, 1, 9, 9], 5, &[&[3], &[2], &[1], &[0]])?;
    check_buckets(&[], 5, &[])?;

    check_order([5, 4, 3, 2, 1, 0])?;
    check_order([0, 1, 2, 3, 4, 5])?;
    check_order([4, 0, 3, 2, 5, 1])?;
    check_order([1, 5, 2, 0, 4, 3])
}

fn check_buckets(sizes: &[usize], limit: usize, right: &[&[usize]]) -> Result<()> {
    let yours = buckets(sizes, limit);
    if yours == right {
        return Ok(());
    }
    let len = |bucket: &[usize]| bucket.iter().filter_map(|i| sizes.get(*i)).sum::<usize>();
    let why = if right.len() > 1 && yours.first().is_some_and(|bucket| bucket.contains(&0)) {
        "Your first bucket has parameter 0. Its gradient is complete last, so this bucket waits for the \
         whole backward pass. Begin with the last parameter."
    } else if yours.iter().any(|b| b.len() > 1 && len(b) > limit) {
        "A bucket has more elements than the limit. Compare the limit with the elements that the bucket \
         has together with the new parameter."
    } else {
        "Your buckets are wrong."
    };
    bail!("{why}\n  sizes: {sizes:?}, limit: {limit}\n  yours: {yours:?}\n  right: {right:?}")
}

/// Calls `complete` with the parameters in this order.
fn check_order(order: [usize; 6]) -> Result<()> {
    let buckets = [vec![5, 4], vec![3], vec![2, 1, 0]];
    let mut counters = Counters::new(buckets.to_vec());
    let mut left = Vec::new();
    for (n, i) in order.iter().enumerate() {
        let so_far = &order[..=n];
        let is_complete = |bucket: &Vec<usize>| bucket.iter().all(|i| so_far.contains(i));
        let mut all = buckets.iter();
        let right = all.position(|bucket| bucket.contains(i) && is_complete(bucket));
        let yours = counters.complete(*i);
        let why = match yours {
            Some(b) if left.contains(&b) => "A bucket leaves twice.",
            Some(_) if buckets.iter().any(|bucket| bucket.last() == Some(i)) => {
                "Do you wait for the parameter that usually comes last? Count instead."
            }
            _ => "A bucket leaves when none of its gradients is missing.",
        };
        ensure!(
            yours == right,
            "`complete` returns a wrong bucket. {why}\n  buckets: {buckets:?}, calls with {so_far:?}\n  \
             yours: {yours:?}\n  right: {right:?}"
        );
        left.extend(yours);
    }
    Ok(())
}
