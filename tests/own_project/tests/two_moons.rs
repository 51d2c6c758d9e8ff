//! A multilayer perceptron on two moons, on two replicas.

use data_parallel::prelude::*;

/// Points on two half circles, (n, 2), and which one, (n,).
fn moons(n: usize, seed: u64) -> Result<(Tensor, Tensor)> {
    let mut rng = rng(seed);
    let t = uniform(&mut rng, 0.0, std::f64::consts::PI, n)?;
    let y = Tensor::from_iter((0..n as u32).map(|i| i % 2), &Device::Cpu)?;
    let lower = y.to_dtype(DType::F32)?;
    let sign = (1.0 - (&lower * 2.0)?)?;
    let (up, right) = (
        (t.sin()? * &sign)? + (&lower * 0.5)?,
        (t.cos()? * &sign)? + &lower,
    );
    let x = Tensor::stack(&[right?, up?], 1)?;
    Ok(((x + normal(&mut rng, 0.1, (n, 2))?)?, y))
}

#[test]
fn two_moons_are_told_apart() -> Result<()> {
    let ((x, y), (x_test, y_test)) = (moons(1000, 0)?, moons(500, 1)?);
    let net = DataParallel::new(&devices(2)?, Initializer::Layers, 0, |vb| {
        Ok(Sequential::new()
            .add(Linear::new(2, 32, vb.pp("0"))?)
            .add(Relu)
            .add(Linear::new(32, 2, vb.pp("2"))?))
    })?;
    let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.5));
    let train_iter = DataIter::of_tensors(&x, &y, 50, Some(0))?;
    for batch in (1..=60).flat_map(|epoch| train_iter.epoch(epoch)) {
        let (x, y) = batch?;
        trainer.step(&x, &y)?;
    }
    let test_iter = DataIter::of_tensors(&x_test, &y_test, 100, None)?;
    assert!(evaluate_accuracy(&net, &test_iter)? > 0.98);
    Ok(())
}
