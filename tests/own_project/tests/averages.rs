//! An optimizer of one's own with one state more: the average of weights (EMA).

use data_parallel::prelude::*;

/// SGD with momentum, and the exponential average of each parameter over the steps.
#[derive(Debug)]
struct Averaged {
    lr: f64,
    /// How much of the average stays in a step.
    keep: f32,
}

impl Optimizer for Averaged {
    fn lr(&self) -> f64 {
        self.lr
    }

    fn state(&self) -> &'static [&'static str] {
        &["momentum", "average"] // each begins as zeros
    }

    fn step(&self, slices: &mut [Slice<'_>]) -> Result<()> {
        for slice in slices {
            let (lr, examples) = (slice.lr as f32, slice.examples as f32);
            let keep = if slice.step == 1 { 0.0 } else { self.keep };
            slice.each(|p, sum, [momentum, average]| {
                *momentum = 0.9 * *momentum + sum / examples;
                *p -= lr * *momentum;
                *average = keep * *average + (1.0 - keep) * *p;
            })?;
        }
        Ok(())
    }
}

/// The network's state with the averages in the place of the parameters.
fn averages(net: &DataParallel, trainer: &Trainer) -> Result<Vec<(String, Tensor)>> {
    let of_trainer = trainer.state_dict()?; // "average fc.weight", "momentum fc.weight", …
    let mut state = net.state_dict()?;
    for (name, tensor) in &mut state {
        let own = format!("average {name}");
        if let Some((_, average)) = of_trainer.iter().find(|(name, _)| *name == own) {
            *tensor = average.reshape(tensor.shape())?;
        }
    }
    Ok(state)
}

fn network(vb: VarBuilder<'_>) -> Result<Linear> {
    Linear::new(3, 1, vb)
}

#[test]
fn an_average_is_an_optimizer_with_one_state_more() -> Result<()> {
    let x = normal(&mut rng(0), 1.0, (256, 3))?;
    let y = (x.sum(1)?.unsqueeze(1)? + normal(&mut rng(1), 2.0, (256, 1))?)?; // much noise
    let data = DataIter::of_tensors(&x, &y, 4, Some(0))?;
    let net = DataParallel::new(&devices(2)?, Initializer::Layers, 0, network)?;
    // a second network has the averages, so training and its checkpoints do not know of them
    let averaged = DataParallel::new(&devices(2)?, Initializer::Layers, 0, network)?;
    let sgd = Averaged {
        lr: 0.02,
        keep: 0.98,
    };
    let mut trainer = Trainer::new(&net, squared_error, sgd);
    let mut expected: Option<Tensor> = None;
    for batch in (1..=4).flat_map(|epoch| data.epoch(epoch)) {
        let (x, y) = batch?;
        trainer.step(&x, &y)?;
        let weight = net.parameter("weight", 0)?;
        expected = Some(match expected {
            None => weight,
            Some(average) => ((average * 0.98)? + (weight * 0.02)?)?,
        });
    }
    averaged.load_state_dict(&averages(&net, &trainer)?)?;
    let far = (averaged.parameter("weight", 1)? - expected.expect("steps"))?;
    let far = far.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(far < 1e-5, "{far}");
    // the line without noise has slopes of 1: averages are nearer to it
    let distance = |net: &DataParallel| -> Result<f32> {
        let weight = (net.parameter("weight", 0)? - 1.0)?;
        weight.sqr()?.sum_all()?.to_scalar()
    };
    assert!(distance(&averaged)? < distance(&net)?);
    Ok(())
}
