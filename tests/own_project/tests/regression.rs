//! Linear regression with the mean squared error, and a metric of one's own.

use data_parallel::prelude::*;

#[test]
fn the_line_is_found() -> Result<()> {
    let x = normal(&mut rng(0), 1.0, (500, 3))?;
    let y = (x.matmul(&Tensor::new(&[[2f32], [-3.4], [1.0]], &Device::Cpu)?)? + 4.2)?;
    let net = DataParallel::new(&devices(2)?, Initializer::Layers, 0, |vb| {
        Linear::new(3, 1, vb)
    })?;
    let mut trainer = Trainer::new(&net, squared_error, Sgd::new(0.1));
    let data_iter = DataIter::of_tensors(&x, &y, 50, Some(0))?;
    for batch in (1..=20).flat_map(|epoch| data_iter.epoch(epoch)) {
        let (x, y) = batch?;
        trainer.step(&x, &y)?;
    }
    let [absolute, n] = evaluate(&net, &data_iter, |y_hat, y| {
        let error = (y_hat - y)?.abs()?.sum_all()?.to_scalar::<f32>()?;
        Ok([f64::from(error), y.dim(0)? as f64])
    })?;
    assert!(absolute / n < 1e-3);
    Ok(())
}
