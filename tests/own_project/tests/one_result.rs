//! Three small programs that take all from the prelude: one `Result` serves networks, losses, data and training.

use data_parallel::prelude::*;

/// Numbers with a little noise, another one in each epoch.
struct Numbers;

impl Examples for Numbers {
    fn num_examples(&self) -> usize {
        20
    }

    fn minibatch(&self, numbers: &[u32], epoch: usize) -> Result<(Tensor, Tensor)> {
        let noise = numbers
            .iter()
            .map(|i| uniform(&mut example_rng(0, epoch, *i), 0.0, 0.1, 1));
        let noise = Tensor::cat(&noise.collect::<Result<Vec<_>>>()?, 0)?;
        let x = Tensor::new(numbers, &Device::Cpu)?.to_dtype(DType::F32)?;
        let y = (&x * 2.0)?.unsqueeze(1)?;
        Ok(((x + noise)?.unsqueeze(1)?, y))
    }
}

/// Data that is made for each minibatch.
mod examples_of_ones_own {
    use super::*;

    #[test]
    fn main() -> Result<()> {
        let net = DataParallel::new(&devices(2)?, Initializer::Layers, 0, |vb| {
            Linear::new(1, 1, vb)
        })?;
        let data = DataIter::new(Numbers, 4, Some(0))?;
        let mut trainer = Trainer::new(&net, squared_error, AdamW::default());
        for batch in data.epoch(1) {
            let (x, y) = batch?;
            trainer.step(&x, &y)?;
        }
        let [squares] = evaluate(&net, &data, |y_hat, y| {
            let squares = (y_hat - y)?.sqr()?.sum_all()?.to_scalar::<f32>()?;
            Ok([f64::from(squares)])
        })?;
        assert!(squares.is_finite());
        Ok(())
    }
}

/// A function of the library's own errors, which a program acts on.
mod errors_with_kinds {
    use super::*;
    use data_parallel::Error;

    fn steps(trainer: &mut Trainer) -> std::result::Result<usize, Error> {
        let mut left_out = 0;
        for bad in [false, true, false] {
            let x = Tensor::full(if bad { f32::NAN } else { 1.0 }, (4, 2), &Device::Cpu)?;
            let y = Tensor::zeros(4, DType::U32, &Device::Cpu)?;
            match trainer.step(&x, &y).map_err(Error::from) {
                Ok(_) => {}
                Err(Error::StepRefused(_)) => left_out += 1,
                Err(other) => return Err(other),
            }
        }
        Ok(left_out)
    }

    #[test]
    fn main() -> Result<()> {
        let net = DataParallel::new(&devices(2)?, Initializer::Layers, 0, |vb| {
            Linear::new(2, 3, vb)
        })?;
        let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.1));
        assert_eq!(steps(&mut trainer)?, 1);
        assert_eq!(trainer.steps(), 2);
        Ok(())
    }
}

/// A program whose own functions return any error.
mod any_error {
    use super::*;
    use std::error::Error;

    fn train(world: &World) -> std::result::Result<(), Box<dyn Error>> {
        let batch_size: usize = "5".parse()?;
        let net = DataParallel::new(world, Initializer::Layers, 0, |vb| Linear::new(2, 3, vb))?;
        let (x, y) = (
            Tensor::ones((batch_size, 2), DType::F32, &Device::Cpu)?,
            Tensor::zeros(batch_size, DType::U32, &Device::Cpu)?,
        );
        Trainer::new(&net, cross_entropy, Sgd::new(0.1)).step(&x, &y)?;
        Ok(())
    }

    #[test]
    fn main() -> std::result::Result<(), Box<dyn Error>> {
        launch(2, train)
    }
}
