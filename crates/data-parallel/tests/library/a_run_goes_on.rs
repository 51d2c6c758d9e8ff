//! A program that is killed after any step, and started again, ends with the bits of one that was not: however it takes
//! its minibatches, and whatever it changes during the run. Where that cannot be, it gets an error that says what to do.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, Result, bail, ensure};
use data_parallel::Place;
use data_parallel::prelude::*;

use crate::kit::{cpus, formula_tensor, says, sgd};
use crate::own_optimizer::own;
use crate::where_replicas_are::in_processes;

const BATCH: usize = 2;
/// Of each data, in an epoch.
const MINIBATCHES: usize = 4;
const EPOCHS: usize = 2;

/// How a program ends before its last step.
#[derive(Debug, Clone, Copy)]
enum Early {
    Killed,
    /// By the flag of `stop_when`.
    Asked,
}

/// A program while it runs.
struct Run {
    net: DataParallel,
    /// None while the program changes it.
    trainer: Option<Trainer>,
    /// Takes turns with the first one, if the program wants that.
    second: Trainer,
    checkpoints: Checkpoints,
    /// How many more steps it takes before its early end.
    left: usize,
    early: Early,
    stop: Arc<AtomicBool>,
}

type Program = fn(&mut Run) -> Result<()>;

const KILLED: &str = "it is killed";

impl Run {
    fn open(place: &impl Place, folder: &Path, early: Early, left: usize) -> Result<Self> {
        let net = network(place)?;
        let stop = Arc::new(AtomicBool::new(false));
        let trainer = Trainer::new(&net, squared_error, sgd(0.05, 0.9));
        let mut trainer = trainer.stop_when(stop.clone());
        let mut second = Trainer::new(&net, squared_error, sgd(0.02, 0.5));
        let checkpoints = Checkpoints::open(folder, [&mut trainer, &mut second])?;
        Ok(Self {
            net,
            trainer: Some(trainer),
            second,
            checkpoints,
            left,
            early,
            stop,
        })
    }

    /// On two replicas, without an early end.
    fn here(folder: &Path) -> Result<Self> {
        Self::open(&cpus(2), folder, Early::Killed, usize::MAX)
    }

    fn trainer(&mut self) -> &mut Trainer {
        self.trainer.as_mut().expect("a trainer")
    }

    /// Changes a setting of the trainer.
    fn set(&mut self, change: impl FnOnce(Trainer) -> candle_core::Result<Trainer>) -> Result<()> {
        let trainer = self.trainer.take().context("a trainer")?;
        self.trainer = Some(change(trainer)?);
        Ok(())
    }

    /// A step without a checkpoint.
    fn train(&mut self, x: &impl Batch, y: &impl Batch) -> Result<()> {
        if self.left == 0 {
            match self.early {
                Early::Killed => bail!(KILLED),
                Early::Asked => self.stop.store(true, Relaxed),
            }
        }
        self.left = self.left.saturating_sub(1);
        self.trainer().step(x, y)?;
        Ok(())
    }

    fn save_every(&mut self, minibatches: usize) -> Result<()> {
        let trainer = self.trainer.as_ref().context("a trainer")?;
        let trainers = [trainer, &self.second];
        Ok(self.checkpoints.save_every(minibatches, trainers)?)
    }

    /// A checkpoint in any case.
    fn save(&mut self) -> Result<()> {
        let trainer = self.trainer.as_ref().context("a trainer")?;
        Ok(self.checkpoints.save([trainer, &self.second])?)
    }

    fn step(&mut self, x: &impl Batch, y: &impl Batch) -> Result<()> {
        self.train(x, y)?;
        self.save_every(1)
    }

    fn end_epoch(&mut self) -> Result<()> {
        self.trainer().flush()?;
        let trainer = self.trainer.as_mut().context("a trainer")?;
        self.checkpoints
            .end_epoch(0.0, [trainer, &mut self.second])?;
        Ok(())
    }
}

fn network(place: &impl Place) -> Result<DataParallel> {
    let net = DataParallel::new(place, Initializer::Layers, 0, |vb| {
        let net = Sequential::new().add(Linear::new(4, 3, vb.pp("body"))?);
        Ok(net.add(Linear::new(3, 1, vb.pp("head"))?))
    })?;
    Ok(net)
}

/// Data number `s`, in another order in each epoch. Numbers 3 and 5 have the same settings.
fn data(s: u32) -> Result<DataIter> {
    let n = BATCH * MINIBATCHES;
    let x = formula_tensor(s, 1.0, &[n, 4])?;
    let y = formula_tensor(s + 1, 1.0, &[n, 1])?;
    Ok(DataIter::of_tensors(&x, &y, BATCH, Some(u64::from(s / 3)))?)
}

/// The first minibatch of a data.
fn first_of(s: u32) -> Result<(Tensor, Tensor)> {
    let first = data(s)?.in_order().next();
    Ok(first.context("a minibatch")??)
}

/// What a run has at its end.
#[derive(Debug, PartialEq)]
struct End {
    steps: usize,
    /// Of the parameters.
    bits: Vec<u32>,
}

/// The end of a program; none if it was killed.
fn end(mut run: Run, program: Program) -> Result<Option<End>> {
    match program(&mut run) {
        Err(error) if error.to_string() == KILLED => return Ok(None),
        ended => ended?,
    }
    let mut bits = Vec::new();
    for (_, tensor) in run.net.state_dict()? {
        let values = tensor.flatten_all()?.to_vec1::<f32>()?;
        bits.extend(values.into_iter().map(f32::to_bits));
    }
    let steps = run.trainer().steps();
    Ok(Some(End { steps, bits }))
}

/// Ends the program early after each of its calls of `train`, and starts it again, each in these processes.
fn goes_on_in(layout: &[usize], name: &str, program: Program) -> Result<()> {
    let place = tempfile::tempdir()?;
    let run = |folder: &Path, early, left| {
        let ended = in_processes(layout, |world| {
            end(Run::open(world, folder, early, left)?, program)
        });
        ended?.pop().context("there is a process")
    };
    let whole = run(&place.path().join("whole"), Early::Killed, usize::MAX)?;
    for early in [Early::Killed, Early::Asked] {
        for left in 1.. {
            let folder = place.path().join(format!("{early:?} {left}"));
            let says = || format!("{name}, {early:?} after {left} minibatches");
            if run(&folder, early, left).with_context(says)? == whole {
                ensure!(left > EPOCHS, "{}: to its end", says());
                break;
            }
            let again = run(&folder, early, usize::MAX).with_context(says)?;
            ensure!(again == whole, "{}: {again:?}, expected {whole:?}", says());
        }
    }
    Ok(())
}

fn goes_on(name: &str, program: Program) -> Result<()> {
    goes_on_in(&[2], name, program)
}

/// The program ends with an error that has these words.
fn fails(words: &str, program: Program) -> Result<()> {
    let place = tempfile::tempdir()?;
    says(words, end(Run::here(place.path())?, program))
}

/// In each epoch, `step` on each minibatch of data 1.
fn each(run: &mut Run, step: impl Fn(&mut Run, &Tensor, &Tensor) -> Result<()>) -> Result<()> {
    let data = data(1)?;
    for epoch in run.checkpoints.epochs(EPOCHS) {
        for batch in run.checkpoints.minibatches(&data, epoch) {
            let (x, y) = batch?;
            step(run, &x, &y)?;
        }
        run.end_epoch()?;
    }
    Ok(())
}

/// In each epoch, `steps` on all minibatches of data 1, which are taken first.
fn all_of_epoch(
    run: &mut Run,
    steps: impl Fn(&mut Run, Vec<(Tensor, Tensor)>) -> Result<()>,
) -> Result<()> {
    let data = data(1)?;
    for epoch in run.checkpoints.epochs(EPOCHS) {
        let minibatches = run.checkpoints.minibatches(&data, epoch);
        steps(run, minibatches.collect::<candle_core::Result<_>>()?)?;
        run.end_epoch()?;
    }
    Ok(())
}

fn two_data_at_once(run: &mut Run) -> Result<()> {
    let (a, b) = (data(3)?, data(5)?);
    for epoch in run.checkpoints.epochs(EPOCHS) {
        let of_b = run.checkpoints.minibatches(&b, epoch);
        for (a, b) in run.checkpoints.minibatches(&a, epoch).zip(of_b) {
            let (a, b) = (a?, b?);
            run.step(
                &Tensor::cat(&[&a.0, &b.0], 0)?,
                &Tensor::cat(&[&a.1, &b.1], 0)?,
            )?;
        }
        run.end_epoch()?;
    }
    Ok(())
}

fn two_data_in_turn(run: &mut Run) -> Result<()> {
    let (a, b) = (data(1)?, data(3)?);
    for epoch in run.checkpoints.epochs(EPOCHS) {
        for data in [&a, &b] {
            for batch in run.checkpoints.minibatches(data, epoch) {
                let (x, y) = batch?;
                run.step(&x, &y)?;
            }
        }
        run.end_epoch()?;
    }
    Ok(())
}

#[test]
fn each_data_of_an_epoch_has_a_position() -> Result<()> {
    goes_on("at once", two_data_at_once)?;
    goes_on("in turn", two_data_in_turn)
}

/// One minibatch is taken before the step on the one before it.
fn ahead(run: &mut Run) -> Result<()> {
    let data = data(1)?;
    for epoch in run.checkpoints.epochs(EPOCHS) {
        let mut minibatches = run.checkpoints.minibatches(&data, epoch);
        let mut next = minibatches.next();
        while let Some(batch) = next {
            next = minibatches.next();
            let (x, y) = batch?;
            run.step(&(x * 2.0)?, &y)?; // the targets tell which minibatch it is
        }
        run.end_epoch()?;
    }
    Ok(())
}

fn all_at_once(run: &mut Run) -> Result<()> {
    all_of_epoch(run, |run, all| {
        all.iter().try_for_each(|(x, y)| run.step(x, y))
    })
}

fn two_data_ahead(run: &mut Run) -> Result<()> {
    let (a, b) = (data(1)?, data(3)?);
    for epoch in run.checkpoints.epochs(EPOCHS) {
        let of_b = run.checkpoints.minibatches(&b, epoch);
        let mut pairs = run.checkpoints.minibatches(&a, epoch).zip(of_b);
        let mut next = pairs.next();
        while let Some((a, b)) = next {
            next = pairs.next();
            let (a, b) = (a?, b?);
            run.train(&a.0, &a.1)?;
            run.step(&b.0, &b.1)?;
        }
        run.end_epoch()?;
    }
    Ok(())
}

/// Minibatches are left out, and others come between the steps.
fn some_left_out(run: &mut Run) -> Result<()> {
    each(run, |run, x, y| {
        let first = x.get(0)?.get(0)?.to_scalar::<f32>()?;
        if first > 0.5 {
            return Ok(());
        }
        if first < 0.0 {
            let (x, y) = first_of(5)?;
            run.train(&x, &y)?;
        }
        run.step(x, y)
    })
}

/// A checkpoint before the step on a minibatch does not count it.
fn saved_before_each_step(run: &mut Run) -> Result<()> {
    each(run, |run, x, y| {
        run.save()?;
        run.train(&(x * 2.0)?, &(y * 2.0)?)
    })
}

fn ahead_with_accumulation(run: &mut Run) -> Result<()> {
    run.set(|trainer| trainer.accumulate(3))?;
    ahead(run)
}

/// As a GAN's.
fn two_trainers(run: &mut Run) -> Result<()> {
    each(run, |run, x, y| {
        run.train(x, y)?;
        run.train(x, &(y * 3.0)?)?;
        run.second.step(&(x * 2.0)?, &(y * 2.0)?)?;
        run.save_every(1)
    })
}

#[test]
fn a_position_is_what_steps_have_taken() -> Result<()> {
    for (name, program) in [
        ("ahead", ahead as Program),
        ("ahead with accumulation", ahead_with_accumulation),
        ("two trainers", two_trainers),
        ("all at once", all_at_once),
        ("two data ahead", two_data_ahead),
        ("some left out", some_left_out),
        ("saved before", saved_before_each_step),
    ] {
        goes_on(name, program)?;
    }
    Ok(())
}

#[test]
fn so_it_is_in_several_processes() -> Result<()> {
    goes_on_in(&[1, 1], "at once", two_data_at_once)?;
    goes_on_in(&[1, 1], "ahead", ahead)?;
    goes_on_in(&[1, 1], "by epoch", by_epoch)
}

/// Which of the minibatches that were taken a step on new tensors has had is not known.
fn ahead_and_changed(run: &mut Run) -> Result<()> {
    all_of_epoch(run, |run, all| {
        let mut all = all.iter();
        all.try_for_each(|(x, y)| run.step(&(x * 2.0)?, &(y * 2.0)?))
    })
}

fn in_another_order(run: &mut Run) -> Result<()> {
    all_of_epoch(run, |run, all| {
        all.chunks(2).try_for_each(|pair| {
            run.train(&pair[1].0, &pair[1].1)?;
            run.step(&pair[0].0, &pair[0].1)
        })
    })
}

fn backwards(run: &mut Run) -> Result<()> {
    all_of_epoch(run, |run, all| {
        all.iter().rev().try_for_each(|(x, y)| run.step(x, y))
    })
}

/// A checkpoint between the steps of two trainers.
fn between_two_trainers(run: &mut Run) -> Result<()> {
    each(run, |run, x, y| {
        run.step(x, y)?;
        run.second.step(x, y)?;
        Ok(())
    })
}

/// As between two trainers, of which the second one has no tensor of the minibatch.
fn between_two_trainers_on_noise(run: &mut Run) -> Result<()> {
    let (noise, targets) = first_of(5)?;
    each(run, |run, x, y| {
        run.step(x, y)?;
        run.second.step(&noise, &targets)?;
        Ok(())
    })
}

fn twice_on_each(run: &mut Run) -> Result<()> {
    each(run, |run, x, y| {
        run.step(x, y)?;
        run.step(x, y)
    })
}

#[test]
fn a_position_that_is_not_known_is_in_no_checkpoint() -> Result<()> {
    fails(
        "4 minibatches of epoch 1 were taken before",
        ahead_and_changed,
    )?;
    fails("in another order", in_another_order)?;
    let words = "a step on a minibatch that the checkpoint counts already";
    fails(words, backwards)?;
    fails(words, twice_on_each)?;
    fails(words, between_two_trainers)?;
    fails(words, between_two_trainers_on_noise)?;
    // without a checkpoint inside of an epoch they train
    let place = tempfile::tempdir()?;
    let net = network(&cpus(2))?;
    let mut trainer = Trainer::new(&net, squared_error, sgd(0.05, 0.9));
    let mut checkpoints = Checkpoints::open(place.path(), &mut trainer)?;
    let data = data(1)?;
    for epoch in checkpoints.epochs(EPOCHS) {
        let all: candle_core::Result<Vec<_>> = checkpoints.minibatches(&data, epoch).collect();
        for (x, y) in all?.into_iter().rev() {
            trainer.step(&(x * 2.0)?, &(y * 2.0)?)?;
            checkpoints.save_every(100, &trainer)?;
        }
        checkpoints.end_epoch(0.0, &mut trainer)?;
    }
    ensure!(trainer.steps() == EPOCHS * MINIBATCHES);
    Ok(())
}

#[test]
fn an_epoch_gives_each_minibatch_once() -> Result<()> {
    let place = tempfile::tempdir()?;
    let mut run = Run::here(place.path())?;
    let data = data(1)?;
    let mut first = run.checkpoints.minibatches(&data, 1);
    first.next().context("a minibatch")??;
    let mut second = run.checkpoints.minibatches(&data.clone(), 1);
    let words = "are being given already";
    says(words, second.next().context("a minibatch")?)?;
    ensure!(second.next().is_none());
    drop(first);
    // what is left
    for batch in run.checkpoints.minibatches(&data, 1) {
        let (x, y) = batch?;
        run.train(&x, &y)?;
    }
    ensure!(run.trainer().steps() == MINIBATCHES - 1);
    let mut third = run.checkpoints.minibatches(&data, 1);
    let words = "the minibatches of epoch 1 of this data were given already";
    says(words, third.next().context("an error")?)?;
    // a data of its own has them again
    ensure!(run.checkpoints.minibatches(&self::data(1)?, 1).count() == MINIBATCHES);
    Ok(())
}

/// Each setting as it is in an epoch.
fn by_epoch(run: &mut Run) -> Result<()> {
    let data = data(1)?;
    for epoch in run.checkpoints.epochs(EPOCHS) {
        run.set(|trainer| {
            trainer
                .rate("body", [0.0, 0.5][epoch - 1])?
                .rate("head", [1.0, 0.0][epoch - 1])?
                .accumulate([3, 2][epoch - 1])?
                .clip_norm([0.1, 0.2][epoch - 1])
        })?;
        run.net.set_split(&[epoch as f64, 1.0])?;
        for batch in run.checkpoints.minibatches(&data, epoch) {
            let (x, y) = batch?;
            run.step(&x, &y)?;
        }
        run.end_epoch()?;
    }
    Ok(())
}

/// Each setting once, in the second epoch.
fn once(run: &mut Run) -> Result<()> {
    let data = data(1)?;
    for epoch in run.checkpoints.epochs(EPOCHS) {
        for (i, batch) in run.checkpoints.minibatches(&data, epoch).enumerate() {
            let (x, y) = batch?;
            run.step(&x, &y)?;
            if epoch == 2 && i == 0 && run.trainer().settings().contains("accumulate 1") {
                run.set(|trainer| trainer.rate("body", 0.0)?.accumulate(2)?.clip_norm(0.1))?;
                run.net.set_split(&[3.0, 1.0])?;
                run.trainer().set_lr(0.01);
                run.save()?;
            }
        }
        run.end_epoch()?;
    }
    Ok(())
}

#[test]
fn what_a_program_changes_during_a_run_comes_back() -> Result<()> {
    goes_on("by epoch", by_epoch)?;
    goes_on("once", once)
}

/// What is said before `open` is compared with what the run began with, and not with what it has become.
#[test]
fn a_run_is_known_by_what_it_began_with() -> Result<()> {
    let place = tempfile::tempdir()?;
    let net = network(&cpus(2))?;
    let trainer = || Trainer::new(&net, squared_error, sgd(0.05, 0.9));
    let open = |mut trainer: Trainer| {
        let checkpoints = Checkpoints::open(place.path(), &mut trainer)?;
        candle_core::Result::Ok((checkpoints, trainer))
    };
    let (mut checkpoints, changed) = open(trainer().clip_norm(1.0)?)?;
    let changed = changed.clip_norm(0.5)?.accumulate(3)?.rate("body", 0.0)?;
    checkpoints.save(&changed)?;
    drop(checkpoints);
    let words = "it has \"clip-norm Some(1.0)\", this one \"clip-norm Some(0.5)\"";
    says(words, open(trainer().clip_norm(0.5)?).map(drop))?;
    for _ in 0..2 {
        // also after a second start
        let (mut checkpoints, trainer) = open(trainer().clip_norm(1.0)?)?;
        let settings = trainer.settings();
        for line in ["clip-norm Some(0.5)", "accumulate 3", "body.weight 0"] {
            ensure!(settings.contains(line), "{settings}");
        }
        checkpoints.save(&trainer)?;
    }
    Ok(())
}

/// No checkpoint could bring it back.
#[test]
fn what_is_no_state_may_not_change() -> Result<()> {
    type Change = fn(Trainer) -> Trainer;
    let changes: [(&str, Change); 3] = [
        ("the schedule is 0.5 at step 0", |trainer| {
            trainer.schedule(|_| 0.5)
        }),
        ("mean-over counts", |trainer| {
            trainer.mean_over(|_, _| Ok(2.0))
        }),
        ("\"data new\"", |trainer| trainer.depends_on("data new")),
    ];
    let (x, y) = first_of(1)?;
    for (words, change) in changes {
        let place = tempfile::tempdir()?;
        let net = network(&cpus(2))?;
        let as_begun = |trainer: Trainer| trainer.schedule(|_| 1.0).depends_on("data old");
        let mut trainer = as_begun(Trainer::new(&net, squared_error, sgd(0.05, 0.9)));
        let mut checkpoints = Checkpoints::open(place.path(), &mut trainer)?;
        trainer = as_begun(trainer); // the same once more
        trainer.step(&x, &y)?;
        checkpoints.save(&trainer)?;
        trainer = change(trainer);
        says(words, checkpoints.save(&trainer))?;
        says("before Checkpoints::open", checkpoints.save(&trainer))?;
    }
    // a schedule of ones takes the same steps as none, but its checkpoint would be of another run
    let place = tempfile::tempdir()?;
    let net = network(&cpus(2))?;
    let mut trainer = Trainer::new(&net, squared_error, sgd(0.05, 0.9));
    let mut checkpoints = Checkpoints::open(place.path(), &mut trainer)?;
    trainer = trainer.schedule(|_| 1.0);
    trainer.step(&x, &y)?;
    let words = "the trainer has a schedule now, and the run began with no schedule";
    says(words, checkpoints.save(&trainer))
}

/// An optimizer whose state has these names.
fn named(names: &'static [&'static str]) -> impl Optimizer {
    own(names, move |slice| {
        let (lr, n) = (slice.lr as f32, slice.examples as f32);
        match names.len() {
            1 => slice.each(|p, sum, [m]| {
                *m = 0.9 * *m + sum / n;
                *p -= lr * *m;
            }),
            _ => slice.each(|p, sum, [m, v]| {
                *m = 0.9 * *m + sum / n;
                *v += sum;
                *p -= lr * *m;
            }),
        }
    })
}

/// The weights after `steps` steps in a folder.
fn with_names(
    folder: &Path,
    names: &'static [&'static str],
    layers: [&'static str; 2],
    steps: usize,
) -> Result<Vec<f32>> {
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, move |vb| {
        let net = Sequential::new().add(Linear::new(4, 3, vb.pp(layers[0]))?);
        Ok(net.add(Linear::new(3, 1, vb.pp(layers[1]))?))
    })?;
    let (x, y) = (
        formula_tensor(1, 1.0, &[4, 4])?,
        formula_tensor(2, 1.0, &[4, 1])?,
    );
    let mut trainer = Trainer::new(&net, squared_error, named(names));
    let mut checkpoints = Checkpoints::open(folder, &mut trainer)?;
    for _ in trainer.steps()..steps {
        trainer.step(&x, &y)?;
        checkpoints.save_every(1, &trainer)?;
    }
    let weight = net.parameter(&format!("{}.weight", layers[0]), 0)?;
    Ok(weight.flatten_all()?.to_vec1()?)
}

#[test]
fn states_may_have_any_names_that_can_be_told_apart() -> Result<()> {
    for names in [
        &["m"][..],
        &["second moment"],
        &["steps"],
        &["replica"],
        &["replica 1"],
        &[""],
        &["a", "a b"],
    ] {
        for layers in [["fc", "head"], ["my layer", "steps"], ["b", "replica 1"]] {
            let place = tempfile::tempdir()?;
            let whole = with_names(&place.path().join("whole"), names, layers, 4)?;
            let cut = place.path().join("cut");
            with_names(&cut, names, layers, 2)?;
            let resumed = with_names(&cut, names, layers, 4);
            let resumed = resumed.with_context(|| format!("{names:?} {layers:?}"))?;
            ensure!(resumed == whole, "{names:?} {layers:?}");
        }
    }
    for (names, layers, words) in [
        (&["a", "a"][..], ["fc", "head"], "two are called \"a\""),
        (&["a", "a b"], ["b c", "c"], "\"a b c.weight\""),
    ] {
        let place = tempfile::tempdir()?;
        says(words, with_names(place.path(), names, layers, 1))?;
    }
    // also without a checkpoint
    let net = network(&cpus(2))?;
    let (x, y) = first_of(1)?;
    let mut trainer = Trainer::new(&net, squared_error, named(&["a", "a"]));
    says("two are called \"a\"", trainer.step(&x, &y))?;
    Ok(())
}

#[test]
fn an_epoch_without_a_minibatch_does_not_end() -> Result<()> {
    let place = tempfile::tempdir()?;
    let mut run = Run::here(place.path())?;
    says("no minibatch was trained in epoch 1", run.end_epoch())?;
    ensure!(run.checkpoints.history().is_empty());
    Ok(())
}

#[test]
fn parameters_that_are_loaded_too_late_are_an_error() -> Result<()> {
    let place = tempfile::tempdir()?;
    let pretrained = place.path().join("pretrained.safetensors");
    network(&cpus(2))?.save(&pretrained)?;
    let folder = place.path().join("run");
    let (x, y) = first_of(1)?;
    // before the first step nothing is undone
    for _ in 0..2 {
        let run = Run::here(&folder)?;
        run.net.load(&pretrained)?;
    }
    Run::here(&folder)?.step(&x, &y)?;
    let mut run = Run::here(&folder)?;
    run.net.load(&pretrained)?;
    let words = "load parameters before Checkpoints::open";
    says(words, run.step(&x, &y))?;
    drop(run);
    // parameters that are changed and set back are those of the run
    let mut run = Run::here(&folder)?;
    let own = run.net.state_dict()?;
    run.net.load(&pretrained)?;
    run.net.load_state_dict(&own)?;
    run.step(&x, &y)?;
    run.net.load(&pretrained)?; // on purpose, such as a restart
    run.step(&x, &y)
}
