//! Minibatches of several inputs or targets, or of none; the mean over something else than examples; and the outputs of
//! an evaluation, in order. In each of them k replicas, in one process or in several, do what one does.

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::VarBuilder;
use data_parallel::functional::{Network, Value};
use data_parallel::layers::{BatchNorm2d, Embedding, GlobalAvgPool2d, Linear, Sequential};
use data_parallel::prelude::{
    Batch, Checkpoints, DataIter, Examples, Minibatches, candle, candle_fn, cross_entropy,
    masked_cross_entropy, network_fn, predict, squared_error,
};
use data_parallel::{AdamW, DataParallel, Error, Initializer, Sgd, Trainer, evaluate};

use crate::kit::{cpus, formula, formula_tensor, largest_difference, says};
use crate::numbers_are_looked_at::is;
use crate::where_replicas_are::in_processes;

/// Where replicas can be: processes with so many each.
const LAYOUTS: [&[usize]; 6] = [&[1], &[2], &[3], &[1, 1], &[2, 1], &[1, 2]];

fn values(tensor: &Tensor) -> candle_core::Result<Vec<f32>> {
    tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

/// All parameters of a network, one after the other.
fn parameters(net: &DataParallel) -> Result<Vec<f32>> {
    let state = net.state_dict()?.into_iter();
    let each = state.map(|(_, tensor)| values(&tensor));
    Ok(each.collect::<candle_core::Result<Vec<_>>>()?.concat())
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn close(what: &str, found: &[f32], expected: &[f32], tolerance: f32) -> Result<()> {
    ensure!(found.len() == expected.len(), "{what}: other sizes");
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        ensure!(
            (a - b).abs() <= tolerance,
            "{what}: element {i} is {a}, expected {b}"
        );
    }
    Ok(())
}

// ---- forms

/// Labels and weights of one's own.
#[derive(Clone)]
struct Targets {
    labels: Tensor,
    weights: Tensor,
}

impl Batch for Targets {
    fn map(
        &self,
        f: &mut dyn FnMut(&Tensor) -> candle_core::Result<Tensor>,
    ) -> candle_core::Result<Self> {
        Ok(Self {
            labels: f(&self.labels)?,
            weights: f(&self.weights)?,
        })
    }
}

/// Three inputs, each with a layer of its own.
struct Three {
    layers: [Linear; 3],
    last: Linear,
}

impl Network for Three {
    fn forward(&self, x: &Value, train: bool) -> candle_core::Result<Value> {
        self.forward_all(&[x.clone(), x.clone(), x.clone()], train)
    }

    fn forward_all(&self, x: &[Value], train: bool) -> candle_core::Result<Value> {
        let [a, b, c] = [0, 1, 2].map(|i| self.layers[i].forward(&x[i], train));
        let sum = (&(&a? + &b?)?.gelu()? + &c?)?;
        self.last.forward(&sum, train)
    }
}

fn three(vb: VarBuilder<'_>) -> candle_core::Result<Three> {
    let layer = |i: usize| Linear::new(2 + i, 4, vb.pp(i));
    Ok(Three {
        layers: [layer(0)?, layer(1)?, layer(2)?],
        last: Linear::new(4, 3, vb.pp("last"))?,
    })
}

/// The three inputs of `n` examples.
fn inputs(n: usize) -> Result<(Tensor, [Tensor; 2])> {
    let x = |s: u32| formula_tensor(s, 1.0, &[n, 2 + s as usize]);
    Ok((x(0)?, [x(1)?, x(2)?]))
}

fn labels(n: usize) -> Result<Tensor> {
    let labels = formula(70, n).map(|u| (u * 10.0) as u32 % 3);
    Ok(Tensor::from_iter(labels, &Device::Cpu)?)
}

/// Three steps on 7 examples in each layout end where those of one replica do.
fn same_in_all_layouts<X: Batch, Y: Batch>(
    what: &str,
    x: &X,
    y: &Y,
    trainer: impl Fn(&DataParallel) -> candle_core::Result<Trainer> + Sync,
) -> Result<()> {
    let mut one = Vec::new();
    for layout in LAYOUTS {
        let all = in_processes(layout, |world| {
            let net = DataParallel::new(world, Initializer::Layers, 0, three)?;
            let mut trainer = trainer(&net)?;
            let data = net.part(DataIter::of_tensors(x, y, 7, Some(0))?);
            for epoch in 1..4 {
                for batch in data.epoch(epoch) {
                    let (x, y) = batch?;
                    trainer.step(&x, &y)?;
                }
            }
            net.check_replicas()?;
            parameters(&net)
        })?;
        if one.is_empty() {
            one.clone_from(&all[0]);
            let net = DataParallel::new(&cpus(1), Initializer::Layers, 0, three)?;
            let apart = parameters(&net)?;
            let moved = one.iter().zip(&apart).filter(|(a, b)| a != b).count();
            ensure!(
                moved == one.len(),
                "{what}: {moved} of {} parameters moved",
                one.len()
            );
        }
        close(&format!("{what}, {layout:?}"), &all[0], &one, 2e-6)?;
    }
    Ok(())
}

/// Three inputs with one target, with two in a struct, in a vector, and with none.
#[test]
fn k_replicas_take_the_step_of_one() -> Result<()> {
    let (x, labels) = (inputs(7)?, labels(7)?);
    same_in_all_layouts("three inputs", &x, &labels, |net| {
        Ok(Trainer::new(net, cross_entropy, AdamW::default()))
    })?;
    let weighted = |net: &Three, x: &[Value], y: &[Tensor]| {
        let losses = cross_entropy(&net.forward_all(x, true)?, &y[0])?;
        &losses * &Value::new(&y[1])?
    };
    let weights = formula_tensor(5, 1.0, &[7])?.abs()?;
    let targets = Targets {
        labels: labels.clone(),
        weights: weights.clone(),
    };
    let trainer = |net: &DataParallel| Trainer::with(net, weighted, AdamW::default());
    same_in_all_layouts("a struct", &x, &targets, trainer)?;
    let pair = vec![labels.clone(), weights];
    let as_vector = vec![x.0.clone(), x.1[0].clone(), x.1[1].clone()];
    same_in_all_layouts("vectors", &as_vector, &pair, trainer)?;
    let alone = |net: &Three, x: &[Value], y: &[Tensor]| {
        ensure_none(y)?;
        let y_hat = net.forward_all(x, true)?;
        squared_error(
            &y_hat,
            &Tensor::ones(y_hat.dims(), DType::F32, y_hat.device())?,
        )
    };
    same_in_all_layouts("no target", &x, &(), |net| {
        Trainer::with(net, alone, AdamW::default())
    })
}

fn ensure_none(y: &[Tensor]) -> candle_core::Result<()> {
    if !y.is_empty() {
        candle_core::bail!("{} targets", y.len())
    }
    Ok(())
}

/// A network of candle's operations with two inputs: it trains if its gradient is right, and else is refused.
#[test]
fn several_inputs_in_candle_are_checked() -> Result<()> {
    let (x, _) = (inputs(6)?, ());
    let x = (x.0.clone(), x.0.affine(-1.0, 0.3)?);
    let labels = labels(6)?;
    for (is_right, k) in [(true, 1), (true, 2), (false, 2)] {
        let build = move |vb: VarBuilder<'_>| {
            let w = vb.get_with_hints((2, 3), "w", candle_nn::Init::Const(0.3))?;
            let first = candle_fn(move |x: &[Tensor]| {
                let sum = (x[0].matmul(&w)? + x[1].matmul(&w)?.tanh()?)?;
                if is_right {
                    candle_nn::ops::softmax(&sum, 1)
                } else {
                    candle_nn::ops::softmax_last_dim(&sum) // has no gradient
                }
            });
            Ok(Sequential::new()
                .add(first)
                .add(Linear::new(3, 3, vb.pp("fc"))?))
        };
        let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, build)?;
        let before = parameters(&net)?;
        let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.5));
        let step = trainer.step(&x, &labels);
        if is_right {
            step?;
            ensure!(parameters(&net)? != before);
            let y_hat = net.forward(&x)?;
            ensure!(y_hat.dims() == [6, 3]);
        } else {
            says("missing", step)?;
            ensure!(parameters(&net)? == before);
        }
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_named() -> Result<()> {
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, three)?;
    let before = parameters(&net)?;
    let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.1));
    let (x, y) = (inputs(6)?, labels(6)?);
    let shorter = (x.0.clone(), [x.1[0].narrow(0, 0, 4)?, x.1[1].clone()]);
    says(
        "x[0] has 6 examples, x[1] has 4",
        trainer.step(&shorter, &y),
    )?;
    says(
        "x[0] has 6 examples, y has 5",
        trainer.step(&x, &labels(5)?),
    )?;
    says("x[0] has 6 examples, x[1] has 4", net.forward(&shorter))?;
    says(
        "x[0] has 6 examples, x[1] has 4",
        DataIter::of_tensors(&shorter, &y, 2, None),
    )?;
    says("x has no tensor", trainer.step(&(), &y))?;
    let two = (y.clone(), y.clone());
    let words = "is of 1 target, the minibatch has 2; Trainer::with";
    is(Error::StepRefused, words, trainer.step(&x, &two))?;
    let words = "is of 1 target, the minibatch has 0; Trainer::with";
    is(Error::StepRefused, words, trainer.step(&x, &()))?;
    let nan = (x.0.clone(), [x.1[0].clone(), (&x.1[1] / 0.0)?]);
    says("x[2] has the value", trainer.step(&nan, &y))?;
    let one = DataParallel::new(&cpus(2), Initializer::Layers, 0, |vb| Linear::new(2, 3, vb))?;
    let mut of_one = Trainer::new(&one, cross_entropy, Sgd::new(0.1));
    says(
        "the network has 1 input, the minibatch 3",
        of_one.step(&x, &y),
    )?;
    of_one.step(&x.0, &y)?;
    let module = |vb: VarBuilder<'_>| {
        let fc = candle_nn::linear(2, 3, vb)?;
        Ok(Sequential::new().add(candle(move |x: &Tensor| x.apply(&fc))))
    };
    let module = DataParallel::new(&cpus(2), Initializer::Layers, 0, module)?;
    let mut of_module = Trainer::new(&module, cross_entropy, Sgd::new(0.1));
    let two = (x.0.clone(), x.1[1].clone());
    let words = "the network has 1 input, the minibatch 2";
    says(words, of_module.step(&two, &y))?;
    says(words, module.forward(&two))?;
    let mean = |net: &Three, x: &[Value], _: &[Tensor]| net.forward_all(x, true)?.mean();
    let mut of_mean = Trainer::with(&net, mean, Sgd::new(0.1))?;
    says("the loss has shape [], expected [3]", of_mean.step(&x, &()))?;
    let of_classes = |net: &Three, x: &[Value], _: &[Tensor]| net.forward_all(x, true);
    let mut of_classes = Trainer::with(&net, of_classes, Sgd::new(0.1))?;
    says(
        "the loss has shape [3, 3], expected [3]",
        of_classes.step(&x, &()),
    )?;
    ensure!(parameters(&net)? == before && trainer.steps() == 0);
    trainer.step(&x, &y)?; // training goes on
    Ok(())
}

/// Triplets, and as many sums as there were minibatches. It does not know how to make none.
struct Triplets;

impl Examples<[Tensor; 3], ()> for Triplets {
    fn num_examples(&self) -> usize {
        10
    }

    fn minibatch(&self, numbers: &[u32], epoch: usize) -> candle_core::Result<([Tensor; 3], ())> {
        let one = |part: u32| -> candle_core::Result<Tensor> {
            let rows = numbers.iter().map(|i| {
                let row = [*i as f32, part as f32 - epoch as f32];
                Tensor::new(&row, &Device::Cpu)
            });
            Tensor::stack(&rows.collect::<candle_core::Result<Vec<_>>>()?, 0)
        };
        Ok(([one(0)?, one(1)?, one(2)?], ()))
    }
}

/// Makes fewer examples than it is asked for.
struct TooFew;

impl Examples for TooFew {
    fn num_examples(&self) -> usize {
        10
    }

    fn minibatch(&self, numbers: &[u32], _: usize) -> candle_core::Result<(Tensor, Tensor)> {
        let x = Tensor::zeros((numbers.len() - 1, 1), DType::F32, &Device::Cpu)?;
        Ok((x.clone(), x))
    }
}

#[test]
fn examples_of_ones_own_have_any_form() -> Result<()> {
    let mut one = None;
    // minibatches of 4, 4 and 2: of three processes one has none of the last
    for layout in [&[1][..], &[1, 1, 1], &[2, 1]] {
        let all = in_processes(layout, |world| {
            let net = DataParallel::new(world, Initializer::Layers, 0, |vb| {
                let fc = Linear::new(2, 2, vb)?;
                Ok(network_fn(move |x: &[Value], train| {
                    fc.forward(&x[0], train)
                }))
            })?;
            let data = net.part(DataIter::new(Triplets, 4, Some(0))?);
            ensure!(data.num_batches() == 3 && data.epoch(1).count() == 3);
            let [sum, examples] = evaluate(&net, &data, |y_hat, ()| {
                let sum = y_hat.sqr()?.sum_all()?.to_scalar::<f32>()?;
                Ok([f64::from(sum), y_hat.dim(0)? as f64])
            })?;
            ensure!(examples == 10.0, "{examples}");
            Ok(sum)
        })?;
        let one = *one.get_or_insert(all[0]);
        ensure!((all[0] - one).abs() < 1e-3 * one, "{} {one}", all[0]);
    }
    let on_device = DataIter::new(Triplets, 4, Some(0))?.on_device(&Device::Cpu)?;
    let ([a, _, c], ()) = on_device.in_order().next().context("none")??;
    ensure!(a.to_vec2::<f32>()?[3] == [3.0, -1.0] && c.to_vec2::<f32>()?[2] == [2.0, 1.0]);
    let mut short = DataIter::new(TooFew, 4, None)?.epoch(1);
    let words = "Examples::minibatch made 3 examples of 4 numbers";
    says(words, short.next().context("no minibatch")?)
}

/// What a run with a struct as its targets ends with, begun anew after so many epochs.
fn ends_with(folder: &std::path::Path, ends: &[usize]) -> Result<Vec<f32>> {
    let (mut end, mut losses) = (Vec::new(), Vec::new());
    for epochs in ends {
        let (tokens, targets) = tokens()?;
        let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, transformer)?;
        let mut trainer = over_tokens(&net, AdamW::default())?.accumulate(2)?;
        let data = DataIter::of_tensors(&tokens, &targets, 2, Some(3))?;
        let mut checkpoints = Checkpoints::open(folder, &mut trainer)?;
        for epoch in checkpoints.epochs(*epochs) {
            for batch in checkpoints.minibatches(&data, epoch) {
                let (x, y) = batch?;
                trainer.step(&x, &y)?;
            }
            trainer.flush()?;
            if let Some(epoch) = checkpoints.end_epoch(0.0, &mut trainer)? {
                losses.push(epoch.loss as f32);
            }
        }
        end = parameters(&net)?;
    }
    Ok([end, losses].concat())
}

#[test]
fn a_run_with_such_batches_goes_on() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let whole = ends_with(&folder.path().join("whole"), &[4])?;
    let resumed = ends_with(&folder.path().join("resumed"), &[1, 3, 4])?;
    ensure!(bits(&whole) == bits(&resumed));
    // over the examples it is another run, and so is the other way round
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, transformer)?;
    let of_examples = || Trainer::with(&net, losses_of_tokens, AdamW::default())?.accumulate(2);
    let opened = Checkpoints::open(folder.path().join("whole"), &mut of_examples()?);
    let words = "it has \"mean-over counts of the program\", this one \"mean-over examples\"";
    says(words, opened.map(drop))?;
    let other = folder.path().join("other");
    Checkpoints::open(&other, &mut of_examples()?)?;
    let mut of_tokens = over_tokens(&net, AdamW::default())?.accumulate(2)?;
    let words = "it has \"mean-over examples\", this one \"mean-over counts of the program\"";
    says(words, Checkpoints::open(&other, &mut of_tokens).map(drop))?;
    Ok(())
}

// ---- the mean over tokens

const TOKENS: usize = 6;
const VOCABULARY: usize = 9;

/// Seven sentences of different lengths, one of them empty, and what follows each token. Padding has a token that is none.
fn tokens() -> Result<(Tensor, Targets)> {
    let lengths = [6, 1, 4, 0, 2, 5, 3];
    let (mut ids, mut next, mut mask) = (Vec::new(), Vec::new(), Vec::new());
    for (row, length) in lengths.into_iter().enumerate() {
        let words = formula(row as u32, TOKENS + 1).map(|u| (u * VOCABULARY as f64) as u32);
        let words: Vec<u32> = words.collect();
        for i in 0..TOKENS {
            let is_there = i < length;
            ids.push(if is_there { words[i] } else { 0 });
            next.push(if is_there { words[i + 1] } else { 77 });
            mask.push(if is_there { 1f32 } else { 0.0 });
        }
    }
    let shape = (lengths.len(), TOKENS);
    let targets = Targets {
        labels: Tensor::from_vec(next, shape, &Device::Cpu)?,
        weights: Tensor::from_vec(mask, shape, &Device::Cpu)?,
    };
    Ok((Tensor::from_vec(ids, shape, &Device::Cpu)?, targets))
}

/// No transformer, but as one it has an output for each token.
fn transformer(vb: VarBuilder<'_>) -> candle_core::Result<Sequential> {
    Ok(Sequential::new()
        .add(Embedding::new(VOCABULARY, 5, vb.pp("embedding"))?)
        .add(Linear::new(5, VOCABULARY, vb.pp("scores"))?))
}

fn losses_of_tokens(net: &Sequential, x: &[Value], y: &[Tensor]) -> candle_core::Result<Value> {
    masked_cross_entropy(&net.forward(&x[0], true)?, &y[0], &y[1])
}

fn over_tokens(
    net: &DataParallel,
    optimizer: impl data_parallel::Optimizer + 'static,
) -> candle_core::Result<Trainer> {
    let trainer = Trainer::with(net, losses_of_tokens, optimizer)?;
    Ok(trainer.mean_over(|_, y| y[1].sum_all()?.to_scalar::<f32>()))
}

const STEPS: usize = 3;
const LR: f64 = 0.5;

/// The losses and the parameters of steps on all sentences at once, computed in f64 by candle.
fn in_float64() -> Result<(Vec<f64>, Vec<f32>)> {
    let net = DataParallel::new(&cpus(1), Initializer::Layers, 0, transformer)?;
    let f64 = |name: &str| Var::from_tensor(&net.parameter(name, 0)?.to_dtype(DType::F64)?);
    let params = net.state_dict()?.into_iter().map(|(name, _)| name);
    let params = params.map(|name| Ok((f64(&name)?, name)));
    let params: Vec<(Var, String)> = params.collect::<Result<_>>()?;
    let named = |name: &str| params.iter().find(|(_, of)| of == name).map(|(var, _)| var);
    let (ids, targets) = tokens()?;
    let mask = targets.weights.flatten_all()?.to_dtype(DType::F64)?;
    let labels = targets.labels.flatten_all()?;
    let labels = labels
        .ne(77u32)?
        .where_cond(&labels, &labels.zeros_like()?)?;
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let table = named("embedding.weight").context("no table")?;
        let rows = table.index_select(&ids.flatten_all()?, 0)?;
        let weight = named("scores.weight").context("no weight")?;
        let scores = rows.matmul(&weight.t()?)?;
        let scores = scores.broadcast_add(named("scores.bias").context("no bias")?)?;
        let scores = candle_nn::ops::log_softmax(&scores, 1)?;
        let at_label = scores.gather(&labels.unsqueeze(1)?, 1)?.squeeze(1)?;
        let loss = ((at_label * &mask)?.sum_all()?.neg()? / mask.sum_all()?)?;
        let gradients = loss.backward()?;
        for (var, name) in &params {
            let gradient = gradients.get(var).with_context(|| name.clone())?;
            var.set(&(var.as_tensor() - (gradient * LR)?)?.detach())?;
        }
        losses.push(loss.to_scalar()?);
    }
    let each = params.iter().map(|(var, _)| values(var));
    Ok((
        losses,
        each.collect::<candle_core::Result<Vec<_>>>()?.concat(),
    ))
}

/// On all sentences at once, and accumulated over minibatches of 3, 3 and 1, or of 5 and 2.
#[test]
fn the_mean_over_tokens_is_that_of_float64() -> Result<()> {
    let (expected_losses, expected) = in_float64()?;
    for layout in LAYOUTS {
        for batch_size in [7, 3, 5] {
            let what = format!("{layout:?}, minibatches of {batch_size}");
            let all = in_processes(layout, |world| {
                let net = DataParallel::new(world, Initializer::Layers, 0, transformer)?;
                let (x, y) = tokens()?;
                let data = net.part(DataIter::of_tensors(&x, &y, batch_size, None)?);
                let trainer = over_tokens(&net, Sgd::new(LR))?;
                let mut trainer = trainer.accumulate(data.num_batches())?;
                let mut losses = Vec::new();
                for epoch in 0..STEPS {
                    for batch in data.epoch(epoch) {
                        let (x, y) = batch?;
                        trainer.step(&x, &y)?;
                    }
                    losses.push(trainer.mean_loss()? as f32);
                }
                let sums = trainer.gradients()?;
                ensure!(sums.len() == 3);
                Ok((losses, parameters(&net)?))
            })?;
            for (losses, parameters) in &all {
                let expected_losses: Vec<f32> = expected_losses.iter().map(|l| *l as f32).collect();
                close(&format!("{what}: losses"), losses, &expected_losses, 2e-6)?;
                close(&what, parameters, &expected, 2e-6)?;
            }
        }
    }
    // the mean of the sentences' means is another one
    let net = DataParallel::new(&cpus(1), Initializer::Layers, 0, transformer)?;
    let mut of_examples = Trainer::with(&net, losses_of_tokens, Sgd::new(LR))?;
    let (x, y) = tokens()?;
    for _ in 0..STEPS {
        of_examples.step(&x, &y)?;
    }
    ensure!(close("", &parameters(&net)?, &expected, 1e-2).is_err());
    Ok(())
}

/// Counting the examples oneself is what happens without a count, in each bit.
#[test]
fn whole_counts_keep_the_bits() -> Result<()> {
    let run = |layout: &[usize], counts: bool| -> Result<Vec<u32>> {
        let all = in_processes(layout, |world| {
            let net = DataParallel::new(world, Initializer::Layers, 0, three)?;
            let mut trainer = Trainer::new(&net, cross_entropy, AdamW::default())
                .clip_norm(0.5)?
                .accumulate(2)?;
            if counts {
                trainer = trainer.mean_over(|x, _| Ok(x[0].dim(0)? as f64));
            }
            let data = net.part(DataIter::of_tensors(&inputs(7)?, &labels(7)?, 3, Some(1))?);
            let mut found = Vec::new();
            for epoch in 1..4 {
                for batch in data.epoch(epoch) {
                    let (x, y) = batch?;
                    found.push(trainer.step(&x, &y)?.loss.mean()?);
                }
                trainer.flush()?;
                found.push(trainer.mean_loss()? as f32);
            }
            Ok([parameters(&net)?, found].concat())
        })?;
        Ok(bits(&all[0]))
    };
    for layout in LAYOUTS {
        ensure!(run(layout, true)? == run(layout, false)?, "{layout:?}");
    }
    Ok(())
}

/// Half of the examples have the weight 0: the step is that on the others.
#[test]
fn a_weight_of_0_is_no_example() -> Result<()> {
    let (x, y) = (inputs(8)?, labels(8)?);
    let weights: Vec<f32> = (0..8).map(|i| (i % 2) as f32).collect();
    let weights = Tensor::new(weights, &Device::Cpu)?;
    let weighted = |net: &Three, x: &[Value], y: &[Tensor]| {
        &cross_entropy(&net.forward_all(x, true)?, &y[0])? * &Value::new(&y[1])?
    };
    let odd = Tensor::new(&[1u32, 3, 5, 7], &Device::Cpu)?;
    let mut rows = |tensor: &Tensor| tensor.index_select(&odd, 0);
    let (x_odd, y_odd) = (x.map(&mut rows)?, y.map(&mut rows)?);
    let expected = DataParallel::new(&cpus(1), Initializer::Layers, 0, three)?;
    let mut trainer = Trainer::new(&expected, cross_entropy, Sgd::new(0.5));
    let expected_loss = trainer.step(&x_odd, &y_odd)?.loss.mean()?;
    for k in 1..=4 {
        let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, three)?;
        let mut trainer = Trainer::with(&net, weighted, Sgd::new(0.5))?
            .mean_over(|_, y| y[1].sum_all()?.to_scalar::<f32>());
        let loss = trainer.step(&x, &(y.clone(), weights.clone()))?.loss;
        ensure!((loss.mean()? - expected_loss).abs() < 1e-6);
        ensure!((loss.examples(), loss.divisor()) == (8, 4.0));
        close(
            &format!("k = {k}"),
            &parameters(&net)?,
            &parameters(&expected)?,
            1e-6,
        )?;
    }
    Ok(())
}

/// A mask of u8, of which candle's sum would begin again at 256: 300 labels in all.
#[test]
fn a_mask_is_summed_in_f64() -> Result<()> {
    let n = 300;
    let (x, y) = (inputs(n)?, labels(n)?);
    let mask = Tensor::ones(n, DType::U8, &Device::Cpu)?;
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, three)?;
    let losses = |net: &Three, x: &[Value], y: &[Tensor]| {
        masked_cross_entropy(&net.forward_all(x, true)?, &y[0], &y[1])
    };
    let trainer = Trainer::with(&net, losses, Sgd::new(0.1))?;
    let mut trainer = trainer.mean_over(|_, y| Ok(y[1].clone()));
    let loss = trainer.step(&x, &(y, mask))?.loss;
    ensure!(
        loss.divisor() == 300.0 && (0.5..2.0).contains(&loss.mean()?),
        "{loss:?}"
    );
    Ok(())
}

/// Also where the sum of all is above 0.
#[test]
fn a_negative_count_is_refused() -> Result<()> {
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, three)?;
    let weights = Tensor::new(&[3f32, 3.0, 3.0, -1.0, -1.0, -1.0], &Device::Cpu)?;
    let step = weighted(&net)?.step(&inputs(6)?, &(labels(6)?, weights));
    says("mean_over gives -1; expected", step)
}

/// Gradients that count nothing are forgotten without another trainer's running statistics.
#[test]
fn what_counts_nothing_sets_nothing_back() -> Result<()> {
    let net = |vb: VarBuilder<'_>| {
        let norm = BatchNorm2d::new(2, vb.pp("norm"))?;
        let fc = Linear::new(2, 3, vb.pp("fc"))?;
        Ok(Sequential::new().add(norm).add(GlobalAvgPool2d).add(fc))
    };
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, net)?;
    let (x, y) = (formula_tensor(1, 1.0, &[6, 4, 4, 2])?, labels(6)?);
    let mut nothing = Trainer::new(&net, cross_entropy, Sgd::new(0.1)).mean_over(|_, _| Ok(0.0));
    let mut other = Trainer::new(&net, cross_entropy, Sgd::new(0.1));
    nothing.backward(&x, &y)?;
    other.step(&x, &y)?;
    let before = parameters(&net)?;
    says("the counts of mean_over add up to 0", nothing.flush())?;
    ensure!(parameters(&net)? == before);
    Ok(())
}

/// A count that is the weight of the targets.
fn weighted(net: &DataParallel) -> candle_core::Result<Trainer> {
    let losses =
        |net: &Three, x: &[Value], y: &[Tensor]| cross_entropy(&net.forward_all(x, true)?, &y[0]);
    let trainer = Trainer::with(net, losses, Sgd::new(0.5))?;
    Ok(trainer.mean_over(|_, y| Ok(y[1].clone())))
}

fn with_weights(weight: f32) -> Result<Targets> {
    Ok(Targets {
        labels: labels(6)?,
        weights: Tensor::full(weight, 6, &Device::Cpu)?,
    })
}

#[test]
fn a_step_without_a_count_is_an_error() -> Result<()> {
    for layout in [&[2][..], &[1, 1]] {
        in_processes(layout, |world| {
            let net = DataParallel::new(world, Initializer::Layers, 0, three)?;
            let mut trainer = weighted(&net)?.accumulate(2)?;
            let before = parameters(&net)?;
            let part = |weight: f32| -> Result<_> {
                let data = DataIter::of_tensors(&inputs(6)?, &with_weights(weight)?, 6, None)?;
                Ok(net.part(data).in_order().next().context("no minibatch")??)
            };
            let words = "step 1: the counts of mean_over add up to 0, so there is no mean. No step was taken";
            let (x, y) = part(0.0)?;
            trainer.step(&x, &y)?;
            is(Error::StepRefused, words, trainer.step(&x, &y))?;
            ensure!(parameters(&net)? == before && !trainer.is_between_steps());
            // alone the rest of an epoch cannot be a step either
            let lost =
                "No step was taken; the gradients of 1 minibatch that waited for the step are lost";
            says(lost, trainer.flush())?;
            ensure!(parameters(&net)? == before && trainer.is_between_steps());
            let (x, y) = part(1.0)?;
            trainer.step(&x, &y)?;
            trainer.flush()?;
            ensure!(trainer.steps() == 1 && parameters(&net)? != before);
            Ok(())
        })?;
    }
    Ok(())
}

/// Whichever of them has it: a number that is none, a negative one, an error.
#[test]
fn a_bad_count_is_an_error_in_all_processes() -> Result<()> {
    for (count, words) in [
        (
            Some(f64::NAN),
            "mean_over gives NaN; expected a finite number, 0 or more",
        ),
        (Some(f64::INFINITY), "mean_over gives inf"),
        (Some(-1.0), "mean_over gives -1"),
        (None, "mean_over: there is no count"),
        (Some(-7.0), "mean_over: it panicked: index out of bounds"),
    ] {
        for (layout, culprit) in [(&[2][..], 0), (&[1, 1], 0), (&[1, 1], 1)] {
            in_processes(layout, |world| {
                let net = DataParallel::new(world, Initializer::Layers, 0, three)?;
                let is_bad = world.processes().rank() == culprit;
                let (x, y) = (inputs(6)?, labels(6)?);
                let data = net.part(DataIter::of_tensors(&x, &y, 6, None)?);
                let (x, y) = data.in_order().next().context("no minibatch")??;
                let trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.5));
                let mut trainer = trainer.mean_over(move |_, y| match count {
                    _ if !is_bad => Ok(3.0),
                    Some(-7.0) => Ok([1.0, 2.0][y.len() + 1]),
                    Some(count) => Ok(count),
                    None => candle_core::bail!("there is no count"),
                });
                let before = parameters(&net)?;
                let of_another = format!("process {culprit}: {words}");
                let words = if is_bad { words } else { &of_another };
                is(Error::StepRefused, words, trainer.step(&x, &y))?;
                ensure!(parameters(&net)? == before);
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// All of it is padding: the step is that of the others, and no loss is NaN.
#[test]
fn a_minibatch_that_counts_nothing_may_wait() -> Result<()> {
    let one = |order: &[usize]| -> Result<(Vec<f32>, f64)> {
        let (x, y) = tokens()?;
        let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, transformer)?;
        let mut trainer = over_tokens(&net, Sgd::new(LR))?.accumulate(order.len())?;
        for row in order {
            let mut rows = |tensor: &Tensor| tensor.narrow(0, *row, 1);
            trainer.step(&x.map(&mut rows)?, &y.map(&mut rows)?)?;
        }
        ensure!(trainer.steps() == 1);
        Ok((parameters(&net)?, trainer.mean_loss()?))
    };
    let (expected, loss) = one(&[0, 2])?;
    for order in [[3, 0, 2], [0, 3, 2], [0, 2, 3]] {
        let (parameters, other) = one(&order)?;
        ensure!((other - loss).abs() < 1e-7, "{other} {loss}");
        close(&format!("{order:?}"), &parameters, &expected, 1e-7)?;
    }
    Ok(())
}

// ---- outputs in order

/// Outputs are the inputs.
fn nothing(_: VarBuilder<'_>) -> candle_core::Result<Sequential> {
    Ok(Sequential::new())
}

/// In each layout, for each minibatch size, whether or not the data is cut.
#[test]
fn outputs_come_once_and_in_order() -> Result<()> {
    let n = 11;
    let x = formula_tensor(1, 1.0, &[n, 2])?;
    let y = Targets {
        labels: Tensor::arange(0u32, n as u32, &Device::Cpu)?,
        weights: formula_tensor(2, 1.0, &[n, 3])?,
    };
    for layout in [&[1][..], &[2], &[3], &[1, 1], &[2, 1], &[1, 1, 1, 1]] {
        for batch_size in 1..=n + 1 {
            for (cut, shuffled) in [(false, false), (true, true)] {
                in_processes(layout, |world| {
                    let net = DataParallel::new(world, Initializer::Layers, 0, nothing)?;
                    let seed = shuffled.then_some(5);
                    let mut data = DataIter::of_tensors(&x, &y, batch_size, seed)?;
                    if cut {
                        data = net.part(data);
                    }
                    let (outputs, targets) = predict(&net, &data)?;
                    ensure!(largest_difference(&outputs, &x)? == 0.0);
                    let labels = targets.labels.to_vec1::<u32>()?;
                    ensure!(labels == (0..n as u32).collect::<Vec<_>>(), "{labels:?}");
                    ensure!(largest_difference(&targets.weights, &y.weights)? == 0.0);
                    let (again, ()) = predict(&net, mine(&net, &x, batch_size)?)?;
                    ensure!(largest_difference(&again, &x)? == 0.0);
                    Ok(())
                })?;
            }
        }
    }
    // in the order of the minibatches that it gets, with half of the outputs left out
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, nothing)?;
    let data = DataIter::of_tensors(&x, &y.labels, 3, Some(5))?;
    let (_, labels) = predict(&net, data.epoch(2).take(2))?;
    let expected = data.epoch(2).take(2).map(|batch| values(&batch?.1));
    let expected = expected.collect::<candle_core::Result<Vec<_>>>()?.concat();
    ensure!(values(&labels)? == expected && expected.len() == 6);
    Ok(())
}

/// An iterator of one's own over this process's part.
fn mine(
    net: &DataParallel,
    x: &Tensor,
    batch_size: usize,
) -> Result<impl Minibatches<X = Tensor, Y = ()> + use<>> {
    let data = net.part(DataIter::of_tensors(x, &(), batch_size, None)?);
    Ok(data.in_order().collect::<Vec<_>>())
}

#[test]
fn outputs_that_do_not_go_together_are_named() -> Result<()> {
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, nothing)?;
    let ones = |n: usize, width: usize| Tensor::ones((n, width), DType::F32, &Device::Cpu);
    let ragged = [Ok((ones(4, 2)?, ())), Ok((ones(4, 3)?, ()))];
    let words = "predict: outputs of minibatch 1 are F32 [4, 3], those of the first F32 [4, 2]; pad them to one shape";
    says(words, predict(&net, ragged).map(drop))?;
    let targets = [
        Ok((ones(2, 2)?, vec![ones(2, 1)?])),
        Ok((ones(2, 2)?, vec![ones(2, 1)?, ones(2, 1)?])),
    ];
    let words = "predict: minibatch 1 has 2 targets, the first has 1";
    says(words, predict(&net, targets).map(drop))?;
    let none = Vec::<candle_core::Result<(Tensor, ())>>::new();
    says("predict: no minibatch came", predict(&net, none).map(drop))?;
    let mean = |_: VarBuilder<'_>| {
        Ok(network_fn(|x: &[Value], _| x[0].mean())) // one number for all
    };
    let mean = DataParallel::new(&cpus(1), Initializer::Layers, 0, mean)?;
    let one = [Ok((ones(4, 2)?, ()))];
    let words = "the outputs have shape [], expected a first dimension of 4, the examples";
    says(words, predict(&mean, one).map(drop))?;
    says(words, mean.forward(&ones(4, 2)?))?;
    let turned = |_: VarBuilder<'_>| Ok(candle(|x: &Tensor| x.t()?.contiguous()));
    let turned = DataParallel::new(&cpus(2), Initializer::Layers, 0, turned)?;
    let words = "the outputs have shape [3, 2], expected a first dimension of 2, the examples";
    says(words, turned.forward(&ones(4, 3)?))?;
    says(words, turned.forward_shards(&ones(4, 3)?))?;
    says(words, predict(&turned, [Ok((ones(4, 3)?, ()))]))?;
    // an error in one process is one in all; so is the same minibatch in two
    in_processes(&[1, 1], |world| {
        let net = DataParallel::new(world, Initializer::Layers, 0, nothing)?;
        let is_first = world.processes().rank() == 0;
        let broken = if is_first {
            ones(4, 2)
        } else {
            Err(candle_core::Error::Msg("broken".into()))
        };
        let words = if is_first {
            "process 1: broken"
        } else {
            "broken"
        };
        says(words, predict(&net, [broken.map(|x| (x, ()))]).map(drop))?;
        let whole = || formula_tensor(1, 1.0, &[4, 2]).expect("a tensor");
        let words = "predict: processes 0 and 1 have the same minibatch";
        says(words, predict(&net, [Ok((whole(), ()))]).map(drop))?;
        let own = formula_tensor(world.processes().rank() as u32, 1.0, &[3, 2])?;
        ensure!(predict(&net, [Ok((own, ()))])?.0.dims() == [6, 2]); // training could go on
        // a part of data that is cut may be as that of another process
        let ones = DataIter::of_tensors(&ones_and_twos()?, &(), 2, None)?;
        let (rows, ()) = predict(&net, &ones)?;
        ensure!(rows.to_vec2::<f32>()? == [[1.0, 2.0]; 2]);
        let none = Vec::<candle_core::Result<(Tensor, ())>>::new();
        let words = if is_first {
            "no minibatch came"
        } else {
            "process 0: predict: no minibatch came"
        };
        if is_first {
            says(words, predict(&net, none).map(drop))?;
        } else {
            says(words, predict(&net, [Ok((whole(), ()))]).map(drop))?;
        }
        Ok(())
    })?;
    Ok(())
}

fn ones_and_twos() -> candle_core::Result<Tensor> {
    Tensor::new(&[[1f32, 2.0], [1.0, 2.0]], &Device::Cpu)
}

/// `roc_auc_score` of the formula's scores: `tests/pytorch/auc.py`.
const SKLEARN: f64 = 0.8530412164865946;

/// The part of pairs of a positive and a negative example in which the positive has the higher score.
#[test]
fn auc_is_sklearns() -> Result<()> {
    let n = 200;
    let scores = formula_tensor(1, 1.0, &[n, 1])?;
    let positive = formula(2, n)
        .zip(formula(1, n))
        .map(|(u, score)| u8::from(u < score));
    let positive = Tensor::from_iter(positive, &Device::Cpu)?;
    in_processes(&[2, 1], |world| {
        let net = DataParallel::new(world, Initializer::Layers, 0, nothing)?;
        let data = DataIter::of_tensors(&scores, &positive, 32, Some(0))?;
        let (scores, positive) = predict(&net, &data)?;
        let all = values(&scores)?.into_iter().zip(positive.to_vec1::<u8>()?);
        let (high, low): (Vec<_>, Vec<_>) = all.partition(|(_, positive)| *positive == 1);
        let pairs = high
            .iter()
            .flat_map(|(a, _)| low.iter().map(move |(b, _)| a > b));
        let wins = pairs.filter(|wins| *wins).count();
        let auc = wins as f64 / (high.len() * low.len()) as f64;
        ensure!((auc - SKLEARN).abs() < 1e-12, "{auc:?}");
        Ok(())
    })?;
    Ok(())
}

#[test]
fn forward_gives_the_outputs_in_order() -> Result<()> {
    for k in 1..=4 {
        let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, three)?;
        let x = inputs(7)?;
        let y_hat = net.forward(&x)?;
        ensure!(y_hat.dims() == [7, 3]);
        for i in 0..7 {
            let one = x.map(&mut |tensor: &Tensor| tensor.narrow(0, i, 1))?;
            ensure!(largest_difference(&net.forward(&one)?, &y_hat.narrow(0, i, 1)?)? < 1e-6);
        }
        let none = x.map(&mut |tensor: &Tensor| tensor.narrow(0, 0, 0))?;
        says("forward: x has 0 examples", net.forward(&none))?;
        ensure!(net.forward_shards(&none)?.is_empty());
    }
    Ok(())
}
