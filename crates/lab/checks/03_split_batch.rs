// Which examples each shard has, for some sizes, and the error if x and y have different numbers of examples.

use anyhow::{Result, anyhow, ensure};
use candle_core::{Device, Tensor};
use lab::without_backtrace;

use super::exercise::split_batch;

pub fn check() -> Result<()> {
    split(&[vec![0, 1], vec![2, 3]])?;
    split(&[vec![0, 1, 2], vec![3, 4]])?;
    split(&[vec![0, 1], vec![2, 3], vec![4]])?;
    split(&[vec![0, 1, 2], vec![3, 4, 5], vec![6, 7], vec![8, 9]])?;
    split(&[vec![0, 1, 2]])?;
    split(&[vec![0], vec![1], vec![], vec![]])?;
    for (n, labels) in [(4, 5), (5, 4)] {
        let [x, y] = [n, labels].map(|n| Tensor::arange(0u32, n, &Device::Cpu));
        ensure!(
            split_batch(&x?, &y?, &[Device::Cpu, Device::Cpu]).is_err(),
            "x has {n} examples and y has {labels} labels, but you return no error: use `num_examples`."
        );
    }
    Ok(())
}

/// Example i is the row [i], and its label is i. `right` has those of each shard.
fn split(right: &[Vec<u32>]) -> Result<()> {
    let (n, k) = (right.concat().len(), right.len());
    let y = Tensor::new(right.concat(), &Device::Cpu)?;
    let shards = split_batch(&y.unsqueeze(1)?, &y, &vec![Device::Cpu; k]);
    let (x_shards, y_shards) = shards.map_err(|error| {
        let error = without_backtrace(error);
        anyhow!(
            "With n = {n} and k = {k}, your code returns an error: {error}\n  `narrow(0, start, len)` needs a \
             number of examples, not their end, and `start + len` is at most n."
        )
    })?;
    for (what, len) in [("x", x_shards.len()), ("y", y_shards.len())] {
        ensure!(
            len == k,
            "With n = {n} and k = {k}, you return {len} shards of {what}. Each device needs one, even if it is empty."
        );
    }
    for y in &y_shards {
        let dims = y.dims();
        ensure!(dims.len() == 1, "A shard of y has the shape {dims:?}: is it cut from x?");
    }
    let examples: Vec<Vec<u32>> = x_shards
        .iter()
        .map(|x| x.squeeze(1)?.to_vec1())
        .collect::<candle_core::Result<_>>()?;
    let labels: Vec<Vec<u32>> = y_shards
        .iter()
        .map(|y| y.to_vec1())
        .collect::<candle_core::Result<_>>()?;
    ensure!(
        examples == labels,
        "Split x and y in the same way.\n  your examples: {examples:?}\n  your labels: {labels:?}"
    );

    let all = examples.concat();
    let lost = n.saturating_sub(all.len());
    let why = if all == right.concat() {
        "only the first n % k shards have one example more"
    } else if right.concat().starts_with(&all) {
        &format!("no device gets the last {lost} of {n} examples")
    } else if k > 1 && examples.iter().all(|shard| *shard == examples[0]) {
        "all devices get the same examples"
    } else {
        "the shards together do not have each example once, in order"
    };
    ensure!(
        examples == right,
        "With n = {n} and k = {k}, {why}.\n  yours: {examples:?}\n  right: {right:?}"
    );
    Ok(())
}
