//! A program of a user's own with all that has a state: batch norm, dropout, augmentation, gradients of several minibatches,
//! momentum, a schedule, a rate that falls on a plateau, tensors of its own. Options are words like `epochs=4`.

use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use data_parallel::prelude::*;

/// The value of an option, or the default.
fn option<T: FromStr>(name: &str, default: T) -> T {
    let mut words = std::env::args().skip(1);
    let value = words.find_map(|word| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_owned()));
    value.map_or(default, |value| {
        value.parse().ok().expect("a value that can be read")
    })
}

/// Images whose first value is their number, moved by one pixel at random.
#[derive(Debug)]
struct Images(usize);

/// A minibatch with this example cannot be made in the second epoch, if `skips=true`.
const BROKEN: u32 = 30;

impl Examples for Images {
    fn num_examples(&self) -> usize {
        self.0
    }

    fn minibatch(&self, numbers: &[u32], epoch: usize) -> Result<(Tensor, Tensor)> {
        if epoch == 2 && numbers.contains(&BROKEN) && option("skips", false) {
            candle_core::bail!("example {BROKEN} is broken");
        }
        let image = |number: &u32| {
            let mut image = uniform(&mut rng(1000 + u64::from(*number)), 0.0, 1.0, (1, 8, 8))?;
            let moved =
                uniform(&mut example_rng(0, epoch, *number), 0.0, 2.0, 1)?.to_vec1::<f32>()?;
            if moved[0] < 1.0 {
                image = Tensor::cat(&[image.narrow(2, 1, 7)?, image.narrow(2, 0, 1)?], 2)?;
            }
            let number = Tensor::full(*number as f32 / 1000.0, (1, 1, 8), &Device::Cpu)?;
            Tensor::cat(&[number, image.narrow(1, 1, 7)?], 1)
        };
        let images = numbers.iter().map(image).collect::<Result<Vec<_>>>()?;
        let x = if images.is_empty() {
            Tensor::zeros((0, 1, 8, 8), DType::F32, &Device::Cpu)?
        } else {
            Tensor::stack(&images, 0)?
        };
        let y = numbers.iter().map(|number| number % 3);
        Ok((x, Tensor::from_iter(y, &Device::Cpu)?))
    }
}

fn network(vb: VarBuilder<'_>) -> Result<Sequential> {
    let width = option("width", 8);
    Ok(Sequential::new()
        .add(Nhwc)
        .add(Conv2d::new(1, width, 3, vb.pp("conv"))?)
        .add(BatchNorm2d::new(width, vb.pp("bn"))?)
        .add(Relu)
        .add(Flatten)
        .add(Dropout::new(option("dropout", 0.2), vb.pp("dropout"))?)
        .add(Linear::new(36 * width, 3, vb.pp("fc"))?))
}

/// Adds the numbers of the examples of a minibatch, from all processes.
fn count(seen: &mut [f64], x: &Tensor, world: &World) -> Result<()> {
    let mut counts = vec![0.0; seen.len()];
    for number in x
        .flatten_from(1)?
        .narrow(1, 0, 1)?
        .flatten_all()?
        .to_vec1::<f32>()?
    {
        counts[(1000.0 * number).round() as usize] += 1.0;
    }
    world.processes().sum(&mut counts)?;
    seen.iter_mut()
        .zip(counts)
        .for_each(|(seen, count)| *seen += count);
    Ok(())
}

/// A number that tells the bits of tensors apart.
fn hash(tensors: &[(String, Tensor)]) -> Result<u64> {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for (name, tensor) in tensors {
        let values = tensor
            .to_dtype(DType::F64)?
            .flatten_all()?
            .to_vec1::<f64>()?;
        let bytes = values
            .iter()
            .flat_map(|value| value.to_bits().to_le_bytes());
        for byte in name.bytes().chain(bytes) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    Ok(hash)
}

fn train(world: &World) -> Result<()> {
    let how = Replication {
        sync_bn: option("sync_bn", false),
        ..Replication::default()
    };
    let net = DataParallel::with(how, world, Initializer::Layers, option("seed", 0), network)?;
    if option("warns", false) {
        println!("{:?}", net.warnings());
        return Ok(());
    }
    let examples = option("examples", 112);
    let data = DataIter::new(
        Images(examples),
        option("batch", 16),
        Some(option("order", 0)),
    )?;
    if option("whole", false) {
        let mut trainer = Trainer::new(&net, cross_entropy, AdamW::default());
        for batch in data.epoch(1) {
            let (x, y) = batch?;
            trainer.step(&x, &y)?;
        }
        return Ok(());
    }
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGTERM, stop.clone())?;
    let (epochs, lr) = (option("epochs", 6), option("lr", 0.02));
    let adamw = AdamW {
        lr,
        weight_decay: option("decay", 0.01),
        ..AdamW::default()
    };
    let mut trainer = Trainer::new(&net, cross_entropy, adamw)
        .schedule(schedule::cosine(option("cosine", 3 * epochs)))
        .accumulate(option("accumulate", 3))?
        .clip_norm(option("clip", 1.0))?
        .rate("conv", option("rate", 0.5))?;
    let late = option("late", false);
    if !late {
        trainer = trainer.stop_when(stop.clone());
    }
    let folder: String = option("folder", "runs/own".to_owned());
    let mut checkpoints = Checkpoints::open(folder, &mut trainer)?
        .keep(option("keep", 3))
        .patience(option("patience", 100));
    if late {
        trainer = trainer.stop_when(stop);
    }
    for note in checkpoints.notes().iter().filter(|_| world.is_first()) {
        eprintln!("{note}");
    }
    if option("holds", false) {
        std::thread::sleep(Duration::from_secs(100)); // until it is killed
    }
    for epoch in checkpoints.epochs(epochs) {
        let mut by_hand = 0;
        for batch in checkpoints.minibatches(&data, epoch) {
            let (x, y) = match batch {
                Err(_) if option("skips", false) => continue,
                batch => batch?,
            };
            if world.processes().rank() == option("error", usize::MAX) {
                candle_core::bail!("it cannot go on");
            }
            assert!(
                world.processes().rank() != option("panic", usize::MAX),
                "it panics"
            );
            match option("by_hand", 0) {
                0 => _ = trainer.step(&x, &y)?,
                n => {
                    trainer.backward(&x, &y)?;
                    by_hand += 1;
                    if by_hand % n == 0 {
                        trainer.flush()?;
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(option("pause", 0)));
            let mut seen = match checkpoints.own.get("seen") {
                Some(seen) => seen.to_vec1()?,
                None => vec![0.0; examples],
            };
            count(&mut seen, &x, world)?;
            let seen = Tensor::new(seen, &Device::Cpu)?;
            checkpoints.own.insert("seen".to_owned(), seen);
            checkpoints.save_every(option("every", 2), &trainer)?;
        }
        trainer.flush()?;
        let accuracy = evaluate_accuracy(&net, &net.part(data.clone()))?;
        // a rate that falls on a plateau
        let last = checkpoints.history().last().copied();
        if last.is_some_and(|last| accuracy <= last.score) && !checkpoints.is_cut() {
            let rate = match checkpoints.own.get("rate") {
                Some(rate) => 0.95 * rate.to_scalar::<f64>()?,
                None => 0.95 * lr,
            };
            trainer.set_lr(rate);
            let rate = Tensor::new(rate, &Device::Cpu)?;
            checkpoints.own.insert("rate".to_owned(), rate);
        }
        let score = accuracy + option("spread", 0.0) * world.processes().rank() as f64;
        if let Some(line) = checkpoints.end_epoch(score, &mut trainer)? {
            println!("{line}");
        }
    }
    let (network, state) = (net.state_dict()?, trainer.state_dict()?);
    checkpoints.load_best()?;
    let best = hash(&net.state_dict()?)?;
    if world.is_first() {
        let seen = checkpoints
            .own
            .get("seen")
            .map(|seen| seen.to_vec1::<f64>());
        let seen = seen.transpose()?.unwrap_or_default();
        let (least, most) = (
            seen.iter().copied().fold(f64::INFINITY, f64::min),
            seen.iter().copied().fold(0.0, f64::max),
        );
        for epoch in checkpoints.history() {
            println!(
                "{} {:?} {:?} {}",
                epoch.epoch, epoch.loss, epoch.score, epoch.is_best
            );
        }
        println!("seen {least} to {most}");
        println!("bits {:x} {:x} {best:x}", hash(&network)?, hash(&state)?);
    }
    Ok(())
}

/// As `main` of such a program.
pub fn main() -> ExitCode {
    if option("thread", false) {
        std::thread::spawn(|| std::thread::sleep(Duration::from_secs(100)));
    }
    if option("candle", false) {
        // as programs do that scale their images first
        let images = Tensor::ones((2000, 784), DType::F32, &Device::Cpu).and_then(|x| x.exp());
        drop(images);
    }
    match launch(option("replicas", 2), train) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error}");
            ExitCode::FAILURE
        }
    }
}
