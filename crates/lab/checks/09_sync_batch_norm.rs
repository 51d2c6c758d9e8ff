// The moments of a shard, and mean and variance of all rows. Sizes differ, and values are near 1000.

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};
use lab::same;

use super::exercise::{combine, moments};

pub fn check() -> Result<()> {
    check_shards(&[6], 0.0)?;
    check_shards(&[5, 3, 1], 0.0)?;
    // with 4, 4 and 8 rows, all means are exact in f32
    let near_1000 =
        "Near 1000, the variance or `squares` is mostly rounding. Subtract first, then square";
    check_shards(&[4, 4, 8], 1000.0).context(near_1000)
}

/// The values are near `center`, which changes no deviation.
fn check_shards(sizes: &[usize], center: f64) -> Result<()> {
    let rows: usize = sizes.iter().sum();
    let values = (0..2 * rows).map(|i| (i * i % 11) as f32 / 8.0);
    let near_0 = Tensor::from_iter(values, &Device::Cpu)?.reshape((rows, 2))?;
    let (mut start, mut sent) = (0, Vec::new());
    for &len in sizes {
        let shard = near_0.narrow(0, start, len)?;
        start += len;
        let yours = moments(&(&shard + center)?)?;
        let n = yours.rows;
        ensure!(n == len, "`rows` is {n} for a shard of {len} rows.");
        let mean = (shard.mean(0)? + center)?;
        same("`mean` of a shard", &yours.mean, &mean)?;
        same("`squares` of a shard", &yours.squares, &squares(&shard)?)?;
        sent.push(yours);
    }
    let (mean, var) = combine(&sent)?;

    let right = (near_0.mean(0)? + center)?;
    let means: Vec<_> = sent.iter().map(|device| &device.mean).collect();
    let mean_of_means = Tensor::stack(&means, 0)?.mean(0)?;
    let unweighted = "The mean is the mean of the devices' means. Weigh each by its rows";
    let mistakes = [(unweighted, mean_of_means)];
    compare("The mean of all rows", &mean, &right, &mistakes)?;

    let (all, rows) = (squares(&near_0)?, rows as f64);
    let inside: Vec<_> = sent.iter().map(|device| &device.squares).collect();
    let inside = (Tensor::stack(&inside, 0)?.sum(0)? / rows)?;
    let one_less = (&all / (rows - 1.0))?;
    let only = "The variance has only the deviations inside the shards. Their means differ too";
    let unbiased = "The variance is divided by the rows − 1. Batch norm divides by the rows";
    let mistakes = [(only, inside), (unbiased, one_less)];
    compare("The variance of all rows", &var, &(all / rows)?, &mistakes)
}

type Mistake = (&'static str, Tensor);

/// If a mistake gives the values of the answer, its sentence comes first.
fn compare(what: &str, yours: &Tensor, right: &Tensor, mistakes: &[Mistake]) -> Result<()> {
    let judged = same(what, yours, right);
    for (sentence, values) in mistakes {
        if same(what, yours, values).is_ok() {
            return judged.context(*sentence);
        }
    }
    judged
}

/// Of each column: the sum of the squared deviations from its mean.
fn squares(x: &Tensor) -> Result<Tensor> {
    let deviations = x.broadcast_sub(&x.mean(0)?)?;
    Ok(deviations.sqr()?.sum(0)?)
}
