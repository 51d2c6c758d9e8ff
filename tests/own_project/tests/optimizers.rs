//! Momentum, a schedule, clipping, AdamW, rates by name, freezing, early stopping, and the best parameters.

use data_parallel::prelude::*;

#[test]
fn all_that_a_loop_may_want() -> Result<()> {
    let x = normal(&mut rng(0), 1.0, (400, 8))?;
    let y = x.sum(1)?.ge(0.0)?.to_dtype(DType::U32)?;
    let [train_iter, test_iter] = [(0, 300), (300, 100)].map(|(first, n)| {
        let (x, y) = (x.narrow(0, first, n)?, y.narrow(0, first, n)?);
        DataIter::of_tensors(&x, &y, 50, Some(0))
    });
    let (train_iter, test_iter) = (train_iter?, test_iter?);
    let net = DataParallel::new(&devices(2)?, Initializer::Layers, 0, |vb| {
        let stem = Linear::new(8, 16, vb.pp("stem"))?;
        let head = Linear::new(16, 2, vb.pp("head"))?;
        Ok(Sequential::new().add(stem).add(Relu).add(head))
    })?;
    let folder = std::env::temp_dir().join(format!("run-{}", std::process::id()));

    // the stem is frozen while the head begins
    let sgd = Sgd {
        momentum: 0.9,
        weight_decay: 1e-4,
        nesterov: true,
        ..Sgd::new(0.05)
    };
    let stem = net.parameter("stem.weight", 0)?;
    let mut trainer = Trainer::new(&net, cross_entropy, sgd).rate("stem", 0.0)?;
    for batch in train_iter.epoch(1) {
        let (x, y) = batch?;
        trainer.step(&x, &y)?;
    }
    assert_eq!(
        stem.to_vec2::<f32>()?,
        net.parameter("stem.weight", 1)?.to_vec2::<f32>()?
    );

    // then all of it, with another optimizer
    let steps = 10 * train_iter.num_batches();
    let adamw = AdamW {
        lr: 0.02,
        ..AdamW::default()
    };
    let mut trainer = Trainer::new(&net, cross_entropy, adamw)
        .schedule(schedule::warmup(5, schedule::cosine(steps)))
        .clip_norm(1.0)?
        .rate("stem", 0.5)?;
    let mut checkpoints = Checkpoints::open(&folder, &mut trainer)?.patience(3);
    for epoch in checkpoints.epochs(10) {
        for batch in checkpoints.minibatches(&train_iter, epoch) {
            let (x, y) = batch?;
            trainer.step(&x, &y)?;
        }
        checkpoints.end_epoch(evaluate_accuracy(&net, &test_iter)?, &mut trainer)?;
    }
    let gradients = trainer.gradients()?;
    assert_eq!(
        (&gradients[0].0[..], gradients[0].1.dims()),
        ("stem.weight", &[16, 8][..])
    );
    checkpoints.load_best()?;
    let scores = checkpoints.history().into_iter().map(|epoch| epoch.score);
    let best = scores.fold(0.0, f64::max);
    assert_eq!(evaluate_accuracy(&net, &test_iter)?, best);
    assert!(best > 0.9, "{best}");
    Ok(std::fs::remove_dir_all(folder)?)
}
