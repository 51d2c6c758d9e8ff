//! A convolutional network of these layers and of candle-nn's, on images of stripes.

use data_parallel::prelude::*;

/// Images (n, 1, 16, 16) with stripes along the rows or the columns, and which, (n,).
fn stripes(n: usize, seed: u64) -> Result<(Tensor, Tensor)> {
    let y = Tensor::from_iter((0..n as u32).map(|i| i % 2), &Device::Cpu)?;
    let of_image = |i: usize, p: usize| [p / 16, p % 16][i % 2] / 2 % 2;
    let pixels = (0..n * 256).map(|i| of_image(i / 256, i % 256) as f32);
    let x = Tensor::from_iter(pixels, &Device::Cpu)?.reshape((n, 1, 16, 16))?;
    let noise = normal(&mut rng(seed), 0.5, (n, 1, 16, 16))?;
    Ok(((x + noise)?, y))
}

#[test]
fn stripes_are_told_apart() -> Result<()> {
    let net = DataParallel::new(&devices(2)?, Initializer::Layers, 0, |vb| {
        let hidden = candle_nn::linear(8 * 6 * 6, 16, vb.pp("hidden"))?;
        Ok(Sequential::new()
            .add(Nhwc)
            .add(Conv2d::new(1, 8, 5, vb.pp("conv"))?)
            .add(BatchNorm2d::new(8, vb.pp("norm"))?)
            .add(Relu)
            .add(MaxPool2d::new(2))
            .add(Flatten)
            .add(candle(move |x: &Tensor| hidden.forward(x)?.gelu()))
            .add(Dropout::new(0.2, vb.pp("dropout"))?)
            .add(Linear::new(16, 2, vb.pp("last"))?))
    })?;
    let ((x, y), (x_test, y_test)) = (stripes(256, 0)?, stripes(64, 1)?);
    let mut trainer = Trainer::new(&net, cross_entropy, AdamW::default());
    let train_iter = DataIter::of_tensors(&x, &y, 32, Some(0))?;
    for batch in (1..=4).flat_map(|epoch| train_iter.epoch(epoch)) {
        let (x, y) = batch?;
        trainer.step(&x, &y)?;
    }
    let test_iter = DataIter::of_tensors(&x_test, &y_test, 32, None)?;
    assert!(evaluate_accuracy(&net, &test_iter)? > 0.95);
    Ok(())
}
