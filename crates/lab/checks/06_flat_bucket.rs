// The order of the elements in the bucket, and the gradients that are cut from it.

use anyhow::{Result, ensure};
use candle_core::{Device, Shape, Tensor};
use lab::same;

use super::exercise::{flatten, unflatten};

pub fn check() -> Result<()> {
    // the right bucket has the elements 0, 1, …, so an element tells its place
    let right = Tensor::arange(0f32, 18.0, &Device::Cpu)?;
    let grads = [
        right.narrow(0, 0, 6)?.reshape((3, 2))?,
        right.narrow(0, 6, 4)?,
        right.narrow(0, 10, 8)?.reshape((2, 1, 2, 2))?,
    ];
    let bucket = flatten(&grads)?;
    let dims = bucket.dims();
    ensure!(
        dims == [18],
        "Your bucket has the shape {dims:?}. It should be a vector with all 18 elements."
    );
    let (yours, all) = (bucket.to_vec1::<f32>()?, right.to_vec1::<f32>()?);
    ensure!(
        yours[0] == all[0],
        "The gradients are in the wrong order. Put gradient 0 first.\n  yours: {yours:?}\n  right: {all:?}"
    );
    same("The bucket", &bucket, &right)?;
    compare("Gradient", &right, &grads)?;

    let grads = scratch::init_params(0)?;
    compare("LeNet's gradient", &flatten(&grads)?, &grads)
}

/// Compares what `unflatten` cuts from a bucket with the right gradients.
fn compare(what: &str, bucket: &Tensor, right: &[Tensor]) -> Result<()> {
    let shapes: Vec<Shape> = right.iter().map(|grad| grad.shape().clone()).collect();
    let cut = unflatten(bucket, &shapes)?;
    let (n, k) = (cut.len(), right.len());
    ensure!(n == k, "You return {n} gradients. There are {k} shapes.");
    for (i, (yours, right)) in cut.iter().zip(right).enumerate() {
        // tells where the gradient begins
        let first = yours.flatten_all()?.to_vec1::<f32>()?.first().copied();
        let why = match (i, first) {
            (1, Some(0.0)) => "Add the number of elements to the start after each gradient. ",
            (1, Some(3.0)) => "Your start adds the first dimension, not the number of elements. ",
            _ => "",
        };
        same(&format!("{why}{what} {i}"), yours, right)?;
    }
    Ok(())
}
