//! A network in candle, on two devices.

use data_parallel::prelude::*;

/// Points (n, 2) and whether they lie in a circle, (n,).
fn circle(n: usize, seed: u64) -> Result<(Tensor, Tensor)> {
    let x = uniform(&mut rng(seed), -1.0, 1.0, (n, 2))?;
    let y = x.sqr()?.sum(1)?.lt(0.5)?.to_dtype(DType::U32)?;
    Ok((x, y))
}

#[test]
fn points_in_a_circle_are_found() -> Result<()> {
    let ((x, y), (x_test, y_test)) = (circle(1000, 0)?, circle(500, 1)?);
    let net = DataParallel::new(&devices(2)?, Initializer::Layers, 0, |vb| {
        let fc1 = candle_nn::linear(2, 32, vb.pp("fc1"))?;
        let fc2 = candle_nn::linear(32, 2, vb.pp("fc2"))?;
        Ok(candle(move |x: &Tensor| x.apply(&fc1)?.tanh()?.apply(&fc2)))
    })?;
    let adamw = AdamW {
        lr: 0.03,
        ..AdamW::default()
    };
    let mut trainer = Trainer::new(&net, cross_entropy, adamw);
    let train_iter = DataIter::of_tensors(&x, &y, 50, Some(0))?;
    for batch in (1..=20).flat_map(|epoch| train_iter.epoch(epoch)) {
        let (x, y) = batch?;
        trainer.step(&x, &y)?; // split, forward, backward, all-reduce, update
    }
    let test_iter = DataIter::of_tensors(&x_test, &y_test, 100, None)?;
    assert!(evaluate_accuracy(&net, &test_iter)? > 0.95);
    Ok(())
}
