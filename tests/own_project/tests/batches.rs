//! Minibatches of other forms: triplets without labels, sentences of different lengths; and outputs in order.

use data_parallel::prelude::*;

/// Triplets: an example, one like it, one unlike it. The loss is 0 where the second is nearer than the third by 1.
fn loss_of_triplets(net: &Linear, x: &[Value], _: &[Tensor]) -> Result<Value> {
    let [one, like, unlike] = [0, 1, 2].map(|i| net.forward(&x[i], true));
    let margin = candle_fn(|x: &[Tensor]| {
        let distance = |i: usize| (&x[0] - &x[i])?.sqr()?.sum(1);
        ((distance(1)? - distance(2)?)? + 1.0)?.relu()
    });
    margin.forward_all(&[one?, like?, unlike?], true)
}

#[test]
fn triplets_need_no_labels() -> Result<()> {
    let x = normal(&mut rng(0), 1.0, (64, 3))?;
    let noise = |seed| normal(&mut rng(seed), 1.0, (64, 1));
    // alike in all but the last number
    let like = Tensor::cat(&[x.narrow(1, 0, 2)?, noise(1)?], 1)?;
    let unlike = Tensor::cat(&[x.narrow(1, 0, 2)?.neg()?, noise(2)?], 1)?;
    let triplets = DataIter::of_tensors(&[x, like, unlike], &(), 16, Some(0))?;

    let net = DataParallel::new(&devices(2)?, Initializer::Layers, 0, |vb| {
        Linear::new(3, 2, vb)
    })?;
    let mut trainer = Trainer::with(&net, loss_of_triplets, Sgd::new(0.05))?;
    let mut losses = Vec::new();
    for epoch in 1..=20 {
        for batch in triplets.epoch(epoch) {
            let (x, y) = batch?;
            trainer.step(&x, &y)?;
        }
        losses.push(trainer.mean_loss()?);
    }
    assert!(losses[19] < 0.5 * losses[0], "{losses:?}");
    Ok(())
}

/// Pairs: each first one is to be most like its own second one, among all second ones of the minibatch.
fn loss_of_pairs(net: &Linear, x: &[Value], _: &[Tensor]) -> Result<Value> {
    let first = all_examples(&net.forward(&x[0], true)?)?;
    let second = all_examples(&net.forward(&x[1], true)?)?;
    let own = Tensor::arange(0u32, first.dims()[0] as u32, first.device())?;
    let alike = candle_fn(|x: &[Tensor]| x[0].matmul(&x[1].t()?)); // (B, B)
    cross_entropy(&alike.forward_all(&[first, second], true)?, &own)
}

#[test]
fn pairs_are_compared_over_all_replicas() -> Result<()> {
    let first = normal(&mut rng(0), 1.0, (8, 3))?;
    let second = (&first + normal(&mut rng(1), 0.1, (8, 3))?)?;
    let losses = [1, 2].map(|k| {
        let net = DataParallel::new(&devices(k)?, Initializer::Layers, 0, |vb| {
            Linear::new(3, 2, vb)
        })?;
        let mut trainer = Trainer::with(&net, loss_of_pairs, Sgd::new(0.05))?.over_minibatch();
        for _ in 0..20 {
            trainer.step(&[first.clone(), second.clone()], &())?;
        }
        trainer.step(&[first.clone(), second.clone()], &())?.loss.mean()
    });
    let [one, two] = losses;
    let (one, two) = (one?, two?);
    assert!((one - two).abs() < 1e-4 && one < 2.0, "{one} and {two}");
    Ok(())
}

/// Sentences (B, T), what follows each word (B, T), and 1 where a word is no padding (B, T).
fn sentences(lengths: &[usize]) -> Result<(Tensor, (Tensor, Tensor))> {
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let (mut words, mut next, mut mask) = (Vec::new(), Vec::new(), Vec::new());
    for (first, length) in lengths.iter().enumerate() {
        for i in 0..longest {
            let is_word = i < *length;
            words.push(if is_word { (first + i) as u32 % 8 } else { 0 });
            next.push(if is_word {
                (first + i + 1) as u32 % 8
            } else {
                0
            });
            mask.push(if is_word { 1f32 } else { 0.0 });
        }
    }
    let shape = (lengths.len(), longest);
    let mask = Tensor::from_vec(mask, shape, &Device::Cpu)?;
    let tensor = |words| Tensor::from_vec(words, shape, &Device::Cpu);
    Ok((tensor(words)?, (tensor(next)?, mask)))
}

fn network(vb: VarBuilder<'_>) -> Result<Sequential> {
    let embedding = Embedding::new(8, 16, vb.pp("embedding"))?;
    let scores = Linear::new(16, 8, vb.pp("scores"))?;
    Ok(Sequential::new().add(embedding).add(scores))
}

/// The sum over the words of each sentence, of which `mean_over` makes the mean of all words.
fn loss_of_sentences(net: &Sequential, x: &[Value], y: &[Tensor]) -> Result<Value> {
    masked_cross_entropy(&net.forward(&x[0], true)?, &y[0], &y[1])
}

#[test]
fn each_word_counts_as_much_as_another() -> Result<()> {
    let (x, y) = sentences(&[7, 1, 4, 2, 9, 3, 5, 8])?;
    let data = DataIter::of_tensors(&x, &y, 4, Some(0))?;
    let net = DataParallel::new(&devices(2)?, Initializer::Layers, 0, network)?;
    let adamw = AdamW {
        lr: 0.05,
        ..AdamW::default()
    };
    let mut trainer =
        Trainer::with(&net, loss_of_sentences, adamw)?.mean_over(|_, y| Ok(y[1].clone())); // the mask
    for batch in (1..=20).flat_map(|epoch| data.epoch(epoch)) {
        let (x, y) = batch?;
        trainer.step(&x, &y)?;
    }
    // all outputs, in the order of the data
    let (scores, (next, mask)) = predict(&net, &data)?;
    let is_right = scores.argmax(2)?.eq(&next)?.to_dtype(DType::F32)?;
    let right = (is_right * &mask)?.sum_all()?.to_scalar::<f32>()?;
    assert!(
        right > 0.95 * mask.sum_all()?.to_scalar::<f32>()?,
        "{right}"
    );
    Ok(())
}
