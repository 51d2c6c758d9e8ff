//! A network in candle, on two devices.

use data_parallel::functional::Gradients;
use data_parallel::prelude::*;
use std::path::Path;

/// Points (n, 2) and whether they lie in a circle, (n,).
fn circle(n: usize, seed: u64) -> Result<(Tensor, Tensor)> {
    let x = uniform(&mut rng(seed), -1.0, 1.0, (n, 2))?;
    let y = x.sqr()?.sum(1)?.lt(0.5)?.to_dtype(DType::U32)?;
    Ok((x, y))
}

fn network_in_candle(vb: VarBuilder<'_>) -> Result<Sequential> {
    let fc1 = candle_nn::linear(2, 32, vb.pp("fc1"))?;
    let fc2 = candle_nn::linear(32, 2, vb.pp("fc2"))?;
    let network = candle(move |x: &Tensor| x.apply(&fc1)?.tanh()?.apply(&fc2));
    Ok(Sequential::new().add(network))
}

#[test]
fn points_in_a_circle_are_found() -> Result<()> {
    let ((x, y), (x_test, y_test)) = (circle(1000, 0)?, circle(500, 1)?);
    let net = DataParallel::new(&devices(2)?, Initializer::Layers, 0, network_in_candle)?;
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

fn network(vb: VarBuilder<'_>) -> Result<Sequential> {
    let fc1 = Linear::new(2, 32, vb.pp("fc1"))?;
    let fc2 = candle_nn::linear(32, 2, vb.pp("fc2"))?;
    Ok(Sequential::new().add(fc1).add(Gelu).add(candle(fc2)))
}

/// The gradient of the loss with respect to the inputs `x`, of the network whose parameters are in `file`.
fn gradient_of_inputs(file: &Path, x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let mut varmap = candle_nn::VarMap::new();
    let net = network(VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    varmap.load(file)?;
    let x = Var::from_tensor(x)?;
    let loss = cross_entropy(&net.forward(&Value::new(&x)?, false)?, y)?.sum()?;
    let mut gradients = Gradients::new([("x", &x)], usize::MAX)?;
    gradients.backward(&loss)?;
    gradients.values()?[0].reshape(x.shape())
}

#[test]
fn a_step_against_the_gradient_makes_the_loss_smaller() -> Result<()> {
    let (x, y) = circle(100, 0)?;
    let net = DataParallel::new(&devices(2)?, Initializer::Layers, 0, network)?;
    let name = format!("inputs-{}.safetensors", std::process::id());
    let file = std::env::temp_dir().join(name);
    net.save(&file)?;
    let gradient = gradient_of_inputs(&file, &x, &y)?;
    std::fs::remove_file(file)?;
    let loss = |x: &Tensor| {
        let y_hat = Value::new(&net.forward(x)?)?;
        cross_entropy(&y_hat, &y)?.sum()?.eval()?.to_scalar::<f32>()
    };
    // by the step times the square of the gradient
    let square = gradient.sqr()?.sum_all()?.to_scalar::<f32>()?;
    let moved = (&x - (gradient * f64::from(0.1 / square))?)?;
    let less = loss(&x)? - loss(&moved)?;
    assert!((less - 0.1).abs() < 0.01, "{less}");
    Ok(())
}
