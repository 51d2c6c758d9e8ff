//! A buffer of a program's own has one value on all replicas after each step, is saved and comes back, and a step that is
//! not taken leaves it. A parameter that a network sets itself is an error.

use anyhow::{Context, Result, ensure};
use data_parallel::prelude::*;

use crate::kit::{cpus, formula_tensor, has, largest_difference, says, sgd};
use crate::states::{differences, near, of_replica};
use crate::where_replicas_are::in_processes;

/// The codes that are nearest to the inputs. In training each code moves towards the mean of its inputs.
struct Codebook {
    codes: Var,
}

impl ModuleT for Codebook {
    fn forward_t(&self, x: &Tensor, train: bool) -> candle_core::Result<Tensor> {
        let codes = self.codes.as_detached_tensor();
        let k = codes.dim(0)?;
        let apart = x
            .detach()
            .unsqueeze(1)?
            .broadcast_sub(&codes.unsqueeze(0)?)?;
        let nearest = apart.sqr()?.sum(2)?.argmin(1)?;
        let found = codes.index_select(&nearest, 0)?;
        if train {
            let all = Tensor::arange(0u32, k as u32, x.device())?.unsqueeze(0)?;
            let is_of = nearest
                .unsqueeze(1)?
                .broadcast_eq(&all)?
                .to_dtype(DType::F32)?;
            let count = is_of.sum(0)?.unsqueeze(1)?;
            let mean = is_of.t()?.contiguous()?.matmul(&x.detach())?;
            let mean = mean.broadcast_div(&count.maximum(1f32)?)?;
            let is_used = count.gt(0f32)?.broadcast_as(codes.shape())?;
            let moved = ((&codes * 0.9)? + (mean * 0.1)?)?;
            self.codes.set(&is_used.where_cond(&moved, &codes)?)?;
        }
        Ok(found)
    }
}

/// A linear layer whose weight is divided by its largest singular value, of which training improves the vectors.
struct SpectralNorm {
    weight: Tensor,
    left: Var,
    right: Var,
}

impl ModuleT for SpectralNorm {
    fn forward_t(&self, x: &Tensor, train: bool) -> candle_core::Result<Tensor> {
        let unit = |x: &Tensor| x.broadcast_div(&(x.sqr()?.sum_all()? + 1e-12)?.sqrt()?);
        let [left, right] = [&self.left, &self.right].map(|var| var.as_detached_tensor().copy());
        let (left, right) = (left?, right?);
        let norm = left.t()?.matmul(&self.weight)?.matmul(&right)?;
        if train {
            let weight = self.weight.detach();
            // another vector on each replica, because the inputs move it too
            let moved = (weight.matmul(&right)?
                + (x.detach().mean_all()? * 1e-3)?.broadcast_as((2, 1))?)?;
            self.left.set(&unit(&moved)?)?;
            self.right.set(&unit(&weight.t()?.matmul(&moved)?)?)?;
        }
        x.matmul(&self.weight.broadcast_div(&norm.abs()?)?.t()?)
    }
}

/// Straight through: the codes of the outputs, with the gradient of the outputs.
fn network(vb: VarBuilder<'_>) -> candle_core::Result<Sequential> {
    let codes = Init::Uniform { lo: -1.0, up: 1.0 };
    let book = vb.pp("book");
    let codebook = candle(Codebook {
        codes: buffer(&book, (5, 3), "codes", codes, BufferRule::Mean)?,
    });
    let head = vb.pp("head");
    let norm = candle(SpectralNorm {
        weight: head.get_with_hints((2, 3), "weight", candle_nn::init::DEFAULT_KAIMING_NORMAL)?,
        left: buffer(&head, (2, 1), "left", Init::Const(1.0), BufferRule::First)?,
        right: buffer(&head, (3, 1), "right", Init::Const(1.0), BufferRule::First)?,
    });
    let quantize = move |x: &Value, train: bool| {
        let found = codebook.forward(&x.detach()?, train)?;
        let minus = candle(|x: &Tensor| x.neg()).forward(x, train)?;
        x + &(&found + &minus)?.detach()?
    };
    Ok(Sequential::new()
        .add(Linear::new(4, 3, vb.pp("fc"))?)
        .add(quantize)
        .add(norm))
}

fn minibatch(step: u32) -> candle_core::Result<(Tensor, Tensor)> {
    Ok((
        formula_tensor(2 * step, 1.0, &[7, 4])?,
        formula_tensor(2 * step + 1, 1.0, &[7, 2])?,
    ))
}

#[test]
fn a_codebook_and_a_spectral_norm_have_one_value() -> Result<()> {
    let place = tempfile::tempdir()?;
    for k in [1, 2, 3] {
        let new = || DataParallel::new(&cpus(k), Initializer::Normal(0.5), 0, network);
        let (net, half) = (new()?, new()?);
        ensure!(
            net.parameter("head.left", 0)?
                .flatten_all()?
                .to_vec1::<f32>()?
                == [1.0, 1.0]
        );
        let begin = net.state_dict()?;
        let mut trainer = Trainer::new(&net, squared_error, sgd(0.1, 0.9));
        let mut first = Trainer::new(&half, squared_error, sgd(0.1, 0.9));
        for step in 0..10 {
            let (x, y) = minibatch(step)?;
            if step == 4 {
                let before = net.state_dict()?;
                // a loss that is too large for a number
                let large = (&y * 3e19)?;
                ensure!(trainer.step(&x, &large).is_err());
                near("refused", &before, &net.state_dict()?, 0.0)?;
            }
            trainer.step(&x, &y)?;
            if step < 5 {
                first.step(&x, &y)?;
            }
        }
        let end = net.state_dict()?;
        for i in 1..k {
            near("another replica", &end, &of_replica(&net, i)?, 0.0)?;
        }
        for (name, moved) in differences(&begin, &end)? {
            ensure!(moved > 0.0, "{name} has not moved");
        }
        // saved, and resumed from the middle
        let path = place.path().join(format!("{k}.safetensors"));
        half.save(&path)?;
        let state = first.state_dict()?;
        let resumed = new()?;
        resumed.load(&path)?;
        let mut rest = Trainer::new(&resumed, squared_error, sgd(0.1, 0.9));
        rest.load_state_dict(state.clone())?;
        for step in 5..10 {
            let (x, y) = minibatch(step)?;
            rest.step(&x, &y)?;
        }
        for i in [0, k - 1] {
            near("resumed", &end, &of_replica(&resumed, i)?, 0.0)?;
        }
    }
    Ok(())
}

/// The mean of all examples, however they are spread: over replicas, processes and accumulated minibatches.
#[test]
fn a_mean_is_that_of_the_examples() -> Result<()> {
    struct Center(Var);
    impl ModuleT for Center {
        fn forward_t(&self, x: &Tensor, train: bool) -> candle_core::Result<Tensor> {
            let y = x.broadcast_sub(&self.0.as_detached_tensor())?;
            if train {
                self.0.set(&x.detach().mean(0)?)?;
            }
            Ok(y)
        }
    }
    let network = |vb: VarBuilder<'_>| {
        let center = buffer(&vb, 4, "center", Init::Const(0.0), BufferRule::Mean)?;
        Ok(Sequential::new()
            .add(candle(Center(center)))
            .add(Linear::new(4, 2, vb.pp("fc"))?))
    };
    let (x, y) = minibatch(0)?;
    let expected = x.mean(0)?;
    let is_near = |net: &DataParallel, i: usize| -> Result<()> {
        let apart = largest_difference(&net.parameter("center", i)?, &expected)?;
        ensure!(apart < 1e-6, "{apart}");
        Ok(())
    };
    for k in [1, 2, 3, 7, 8] {
        let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, network)?;
        Trainer::new(&net, squared_error, sgd(0.1, 0.0)).step(&x, &y)?;
        (0..k).try_for_each(|i| is_near(&net, i))?;
    }
    in_processes(&[2, 1], |world| {
        let (from, n) = [(0, 5), (5, 2)][world.processes().rank()];
        let net = DataParallel::new(world, Initializer::Layers, 0, network)?;
        let mut trainer = Trainer::new(&net, squared_error, sgd(0.1, 0.0));
        trainer.step(&x.narrow(0, from, n)?, &y.narrow(0, from, n)?)?;
        is_near(&net, 0)
    })?;
    Ok(())
}

/// A network in layers that moves a buffer while it is written down, by the numbers of a value.
struct Averaged {
    fc: Linear,
    mean: Var,
}

impl Network for Averaged {
    fn forward(&self, x: &Value, train: bool) -> candle_core::Result<Value> {
        let h = self.fc.forward(x, train)?;
        if train {
            let mean = h.eval()?.detach().mean(0)?;
            let moved = (self.mean.as_detached_tensor() * 0.9)? + (mean * 0.1)?;
            self.mean.set(&moved?)?;
        }
        Ok(h)
    }
}

#[test]
fn a_buffer_that_eval_moves_is_moved_once_in_a_step() -> Result<()> {
    let network = |vb: VarBuilder<'_>| {
        Ok(Averaged {
            fc: Linear::new(4, 2, vb.pp("fc"))?,
            mean: buffer(&vb, 2, "mean", Init::Const(1.0), BufferRule::Mean)?,
        })
    };
    let (x, y) = minibatch(0)?;
    let mut means = Vec::new();
    for k in [1, 2, 3] {
        let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, network)?;
        let mut trainer = Trainer::new(&net, squared_error, sgd(0.1, 0.0));
        trainer.step(&x, &y)?;
        let mean = net.parameter("mean", k - 1)?;
        ensure!(trainer.step(&(&x * 1e30)?, &y).is_err()); // the loss is infinite
        ensure!(trainer.step(&x, &x).is_err()); // targets of another shape
        for i in 0..k {
            let apart = largest_difference(&net.parameter("mean", i)?, &mean)?;
            ensure!(apart == 0.0, "a refused step has moved it by {apart}");
        }
        means.push(mean);
    }
    for mean in &means {
        let apart = largest_difference(mean, &means[0])?;
        ensure!(apart < 1e-6, "{apart}");
    }
    Ok(())
}

/// Counts its calls, and in inference too if it is told so.
struct Counts {
    count: Var,
    in_inference: bool,
    by: f32,
}

impl ModuleT for Counts {
    fn forward_t(&self, x: &Tensor, train: bool) -> candle_core::Result<Tensor> {
        if train || self.in_inference {
            let first = x.detach().flatten_all()?.get(0)?;
            let moved = (self.count.as_detached_tensor() + (first * f64::from(self.by))?)?;
            self.count.set(&moved)?;
        }
        x * 1.0
    }
}

fn counting(in_inference: bool, by: f32) -> candle_core::Result<DataParallel> {
    DataParallel::new(&cpus(2), Initializer::Layers, 0, move |vb| {
        let count = buffer(&vb, (), "count", Init::Const(0.0), BufferRule::Mean)?;
        Ok(Sequential::new()
            .add(candle(Counts {
                count,
                in_inference,
                by,
            }))
            .add(Linear::new(4, 2, vb.pp("fc"))?))
    })
}

/// Between accumulated minibatches, and after an inference that moves them.
#[test]
fn buffers_that_differ_are_not_saved() -> Result<()> {
    let place = tempfile::tempdir()?;
    let path = place.path().join("net.safetensors");
    let (x, y) = minibatch(0)?;
    let net = counting(false, 1.0)?;
    let mut trainer = Trainer::new(&net, squared_error, sgd(0.1, 0.0)).accumulate(2)?;
    trainer.step(&x, &y)?;
    says("the replicas differ: count[] is ", net.save(&path))?;
    says("Trainer::flush", net.check_replicas())?;
    trainer.step(&x, &y)?;
    net.save(&path)?;
    let net = counting(true, 1.0)?;
    net.forward(&x)?;
    says("in training alone", net.save(&path))
}

#[test]
fn a_buffer_that_becomes_nan_is_the_networks_own() -> Result<()> {
    let (x, y) = minibatch(0)?;
    let net = counting(false, f32::NAN)?;
    let step = Trainer::new(&net, squared_error, sgd(0.1, 0.0)).step(&x, &y);
    says("count has become NaN: the network sets it so", step)
}

/// In a loss, which is written down before the network is computed.
#[test]
fn a_parameter_that_a_loss_sets_is_an_error() -> Result<()> {
    let network = |vb: VarBuilder<'_>| {
        Ok(Averaged {
            fc: Linear::new(4, 2, vb.pp("fc"))?,
            mean: Var::from_tensor(&vb.get(2, "mean")?)?,
        })
    };
    let net = DataParallel::new(&cpus(2), Initializer::Normal(0.5), 0, network)?;
    let mut trainer = Trainer::new(&net, squared_error, sgd(0.1, 0.0)).rate("mean", 0.0)?;
    let (x, y) = minibatch(0)?;
    says("the network sets mean itself", trainer.step(&x, &y))
}

/// Also without the check of gradients, and where the rate becomes 0 later.
#[test]
fn a_parameter_that_the_network_sets_is_an_error() -> Result<()> {
    let network = |vb: VarBuilder<'_>| {
        let codes = Var::from_tensor(&vb.get((5, 3), "codes")?)?;
        let codebook = candle(Codebook { codes });
        Ok(Sequential::new()
            .add(Linear::new(4, 3, vb.pp("fc"))?)
            .add(codebook)
            .add(Linear::new(3, 2, vb.pp("head"))?))
    };
    for checks in [true, false] {
        let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, network)?;
        let trainer = Trainer::new(&net, squared_error, sgd(0.1, 0.0)).check_gradients(checks);
        let mut trainer = trainer.rate("codes", 0.0)?.rate("fc", 0.0)?;
        let (x, y) = minibatch(0)?;
        for _ in 0..2 {
            let refused = trainer.step(&x, &y).err().context("refused")?.to_string();
            let words = if checks {
                "numbers that are no buffer of the network"
            } else {
                "the network sets codes itself"
            };
            has(&refused, words)?;
            has(&refused, "data_parallel::buffer")?;
        }
    }
    Ok(())
}

/// A module's own variable would be another one on each replica, and in no file.
#[test]
fn what_a_module_moves_in_training_is_a_buffer() -> Result<()> {
    struct Centered(Var);
    impl ModuleT for Centered {
        fn forward_t(&self, x: &Tensor, train: bool) -> candle_core::Result<Tensor> {
            let before = self.0.as_detached_tensor().copy()?;
            if train {
                let mean = x.detach().mean(0)?;
                self.0.set(&((&before * 0.9)? + (mean * 0.1)?)?)?;
            }
            x.broadcast_sub(&before)
        }
    }
    let step = |is_buffer: bool| -> Result<f32> {
        let network = move |vb: VarBuilder<'_>| {
            let mean = if is_buffer {
                buffer(&vb, 3, "mean", Init::Const(0.0), BufferRule::Mean)?
            } else {
                Var::zeros(3, DType::F32, vb.device())?
            };
            Ok(Sequential::new()
                .add(candle(Centered(mean)))
                .add(Linear::new(3, 2, vb)?))
        };
        let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, network)?;
        let mut trainer = Trainer::new(&net, squared_error, sgd(0.1, 0.0));
        let x = formula_tensor(1, 1.0, &[6, 3])?;
        let y = formula_tensor(2, 1.0, &[6, 2])?;
        Ok(trainer.step(&x, &y)?.loss.mean()?)
    };
    step(true)?;

    // a parameter that stays in its bounds is the same on each replica, and in each file
    struct Bounded(Var);
    impl ModuleT for Bounded {
        fn forward_t(&self, x: &Tensor, train: bool) -> candle_core::Result<Tensor> {
            if train {
                self.0.set(&self.0.as_detached_tensor().clamp(-0.2, 0.2)?)?;
            }
            x.matmul(&self.0)
        }
    }
    let bounded = |vb: VarBuilder<'_>| {
        let weight = vb.get_with_hints((3, 2), "weight", Init::Uniform { lo: -1.0, up: 1.0 })?;
        Ok(candle(Bounded(Var::from_tensor(&weight)?)))
    };
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, bounded)?;
    let mut trainer = Trainer::new(&net, squared_error, sgd(0.1, 0.0));
    let x = formula_tensor(1, 1.0, &[6, 3])?;
    let y = formula_tensor(2, 1.0, &[6, 2])?;
    for _ in 0..3 {
        trainer.step(&x, &y)?;
    }
    net.check_replicas()?;

    let words = "numbers that are no buffer of the network, and inference depends on them";
    says(words, step(false))
}
