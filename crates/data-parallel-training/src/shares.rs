//! Division of a minibatch among replicas.

/// `n` examples in proportion to `weights`, rounded down. The examples that are left go one by one to the
/// shares with the largest fractions. No share is empty where there is an example for each. With equal weights the first
/// shares have one more where `n` cannot be divided, as in the book's `split_batch`.
///
/// ```
/// assert_eq!(data_parallel_training::shares(8, &[1.0; 3]), [3, 3, 2]);
/// assert_eq!(data_parallel_training::shares(8, &[3.0, 1.0]), [6, 2]);
/// ```
pub fn shares(n: usize, weights: &[f64]) -> Vec<usize> {
    let total: f64 = weights.iter().sum();
    let exact: Vec<f64> = weights.iter().map(|w| w / total * n as f64).collect();
    let mut shares: Vec<usize> = exact.iter().map(|share| *share as usize).collect();
    let missing = |i: usize, shares: &[usize]| exact[i] - shares[i] as f64;
    let left = n.saturating_sub(shares.iter().sum());
    for _ in 0..left {
        // the first of those that miss most
        let from_the_last = (0..shares.len()).rev();
        let most =
            from_the_last.max_by(|a, b| missing(*a, &shares).total_cmp(&missing(*b, &shares)));
        shares[most.expect("there is a replica")] += 1;
    }
    while n >= shares.len() && shares.contains(&0) {
        let largest = (0..shares.len()).max_by_key(|i| shares[*i]);
        let without = shares.iter().position(|share| *share == 0);
        shares[largest.expect("there is a replica")] -= 1;
        shares[without.expect("there is one")] += 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_the_weights_and_none_is_empty() {
        assert_eq!(shares(256, &[3.0, 1.0]), [192, 64]);
        assert_eq!(shares(10, &[1.0, 1.0, 2.0]), [3, 2, 5]);
        assert_eq!(shares(96, &[1000.0, 1.0]), [95, 1]);
        assert_eq!(shares(1, &[1.0, 3.0]), [0, 1]);
        for n in 0..40 {
            let dealt = shares(n, &[0.3, 5.0, 1.7]);
            assert_eq!(dealt.iter().sum::<usize>(), n);
            assert!(n < 3 || !dealt.contains(&0), "{dealt:?}");
        }
    }
}
