//! Long sums in f32 have blocks: a chain of very many additions would be inexact. Here are sums of equal numbers, in
//! which every rounding goes the same way.

use crate::support::{assert_close, in_one_bucket, pass, tensor, values, variables};
use candle_core::{Device, Result, Shape, Tensor};
use functional::{Value, cross_entropy};

const TENTH: f64 = 0.1f32 as f64;

fn full(v: f32, shape: impl Into<Shape>) -> Tensor {
    let shape = shape.into();
    tensor(vec![v; shape.elem_count()], shape)
}

#[test]
fn the_weight_of_one_output() -> Result<()> {
    let w = variables(&[full(1., (1, 3))])?;
    let y = Value::new(&full(0.1, (170_000, 3)))?.linear(&w[0], None)?;
    let dw = in_one_bucket(&y.sum()?, &w);
    assert_close("dw", &dw, &[170_000. * TENTH; 3], 3e-5);
    Ok(())
}

#[test]
fn the_bias_of_many_rows() -> Result<()> {
    let n = 1 << 20;
    let vars = variables(&[full(1., (1, 1)), full(0., 1)])?;
    let y = Value::new(&full(1., (n, 1)))?.linear(&vars[0], Some(&vars[1]))?;
    let results = pass(&vars, &y, full(0.1, (n, 1)))?;
    assert_close("db", &values(&results[2]), &[n as f64 * TENTH], 1e-5);
    Ok(())
}

#[test]
fn the_first_layer_of_a_large_image() -> Result<()> {
    let w = variables(&[full(0.01, (1, 1, 5, 5))])?;
    let y = Value::new(&full(0.1, (1, 512, 512, 1)))?.conv2d(&w[0], None, 1, 0)?;
    let loss = y.relu()?.avg_pool2d(2, 2)?.sum()?;
    let dw = in_one_bucket(&loss, &w);
    assert_close("dw", &dw, &[254. * 254. * TENTH; 25], 3e-5);
    Ok(())
}

#[test]
fn the_mean_of_a_large_image() -> Result<()> {
    let y = Value::new(&full(0.1, (1, 512, 512, 1)))?.global_avg_pool2d()?;
    assert_close("mean", &values(&y.eval()?), &[TENTH], 3e-5);
    Ok(())
}

#[test]
fn cross_entropy_of_many_classes() -> Result<()> {
    let (n, low) = (50_257, -2.3f32);
    let mut logits = vec![low; n];
    logits[0] = 0.;
    let y = Tensor::new(&[0u32], &Device::Cpu)?;
    let loss = cross_entropy(&Value::new(&tensor(logits, (1, n)))?, &y)?.eval()?;
    let sum = 1. + (n - 1) as f64 * f64::from(low).exp();
    assert_close("loss", &values(&loss), &[sum.ln()], 1e-5);
    Ok(())
}
