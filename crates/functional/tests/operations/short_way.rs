//! The way back from a loss that leaves candle out gives the bits of candle's.

use crate::support::{labels, random, values};
use candle_core::{Device, Result, Tensor, Var};
use functional::{Expr, cross_entropy, sum};

/// Loss and gradients of a small network on `device`; the way back is candle's where its operation adds up the loss.
pub fn gradients(device: &Device, short: bool) -> Result<Vec<Vec<f32>>> {
    let shapes: [&[usize]; 6] = [&[3, 1, 3, 3], &[3], &[8, 12], &[8], &[8, 4], &[4]];
    let on = |t: Tensor| t.to_device(device);
    let var = |(i, shape): (usize, &&[usize])| Var::from_tensor(&on(random(*shape, i as u64))?);
    let w: Vec<Var> = shapes.iter().enumerate().map(var).collect::<Result<_>>()?;
    let grads: Vec<Var> = w
        .iter()
        .map(|w| Var::from_tensor(&w.ones_like()?))
        .collect::<Result<_>>()?;
    let (x, y) = (on(random((7, 1, 6, 6), 10))?, on(labels(7, 4, 11))?);
    let y_hat = Expr::new(&x)
        .nhwc()
        .conv2d(&w[0], Some(&w[1]), 1, 0)
        .relu()
        .avg_pool2d(2, 2)
        .flatten()
        .linear(&w[2], Some(&w[3]))
        .relu()
        .matmul(&w[4], Some(&w[5]))
        .eval()?;
    let losses = cross_entropy(&y_hat, &y)?;
    let loss = match short {
        true => sum(&losses)?,
        false => losses.sum_all()?,
    };
    functional::backward(&loss, w.iter().zip(&grads))?;
    Ok(std::iter::once(&loss)
        .chain(grads.iter().map(|g| g.as_tensor()))
        .map(values)
        .collect())
}

#[test]
fn gives_candles_bits() -> Result<()> {
    let (short, long) = (
        gradients(&Device::Cpu, true)?,
        gradients(&Device::Cpu, false)?,
    );
    assert_eq!(short[1..], long[1..]);
    assert!(
        (short[0][0] - long[0][0]).abs() < 1e-5,
        "{} and {}",
        short[0][0],
        long[0][0]
    );
    assert!(
        short.iter().flatten().all(|v| *v != 1.),
        "every gradient was written"
    );
    Ok(())
}

/// Also where the losses are not added up before.
#[test]
fn begins_with_ones() -> Result<()> {
    let (w, grad) = (
        Var::from_tensor(&random((4, 5), 1))?,
        Var::from_tensor(&random((4, 5), 2))?,
    );
    let (x, y) = (random((3, 5), 3), labels(3, 4, 4));
    let mut all = Vec::new();
    for sums in [
        |l: Tensor| Ok(l),
        |l: Tensor| sum(&l),
        |l: Tensor| l.sum_all(),
    ] {
        let y_hat = functional::linear(&x, &w, None)?;
        functional::backward(&sums(cross_entropy(&y_hat, &y)?)?, [(&w, &grad)])?;
        all.push(values(&grad));
    }
    assert!(all[0] == all[2] && all[1] == all[2], "{all:?}");
    Ok(())
}

#[test]
fn a_sum_is_exact() -> Result<()> {
    let x = random((1000, 100), 5);
    let expected: f64 = values(&x).iter().map(|v| f64::from(*v)).sum();
    assert_eq!(sum(&x)?.to_scalar::<f32>()?, expected as f32);
    assert_eq!(
        sum(&x.t()?)?.to_scalar::<f32>()?,
        sum(&x)?.to_scalar::<f32>()?
    );
    assert_eq!(sum(&random((0, 3), 5))?.to_scalar::<f32>()?, 0.);
    Ok(())
}
