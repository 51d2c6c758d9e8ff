//! Two models of candle-transformers, whose code is not changed, train on one device and on two.

use std::collections::HashMap;

use candle_transformers::models::{llama2_c, vit};
use data_parallel::candle_nn::Activation;
use data_parallel::prelude::*;

/// Characters (B, T) to the scores of the next ones, (B, T, 128).
fn llama(vb: VarBuilder<'_>) -> Result<Sequential> {
    let config = llama2_c::Config {
        dim: 64,
        hidden_dim: 172,
        n_layers: 2,
        n_heads: 4,
        n_kv_heads: 2,
        vocab_size: 128,
        seq_len: 32,
        norm_eps: 1e-5,
    };
    // it asks for its rotations as weights that may be missing: `vb` would give variables of zeros
    let none = VarBuilder::from_tensors(HashMap::new(), DType::F32, vb.device());
    let cache = llama2_c::Cache::new(false, &config, none)?;
    let llama = llama2_c::Llama::load(vb, config)?;
    let llama = candle(move |x: &Tensor| llama.forward(x, 0, &mut cache.clone()));
    Ok(Sequential::new().add(llama))
}

/// Images (B, 1, 28, 28) to the scores of ten classes.
fn vision_transformer(vb: VarBuilder<'_>) -> Result<Sequential> {
    let config = vit::Config {
        hidden_size: 64,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        intermediate_size: 128,
        hidden_act: Activation::Gelu,
        layer_norm_eps: 1e-5,
        image_size: 28,
        patch_size: 7,
        num_channels: 1,
        qkv_bias: true,
    };
    let vit = vit::Model::new(&config, 10, vb)?;
    Ok(Sequential::new().add(candle(move |x: &Tensor| vit.forward(x))))
}

/// The losses of ten steps on k devices.
fn losses(
    k: usize,
    network: fn(VarBuilder<'_>) -> Result<Sequential>,
    x: &Tensor,
    y: &Tensor,
) -> Result<Vec<f32>> {
    let net = DataParallel::new(&devices(k)?, Initializer::Layers, 0, network)?;
    let mut trainer = Trainer::new(&net, cross_entropy, AdamW::default());
    let step = |_| trainer.step(x, y)?.loss.mean();
    (0..10).map(step).collect()
}

fn main() -> Result<()> {
    let mut numbers = rng(0);
    let mut classes = |high, shape: &[usize]| uniform(&mut numbers, 0., high, shape)?.to_dtype(DType::U32);
    let (x, y) = (classes(128., &[8, 32])?, classes(128., &[8, 32])?);
    let labels = classes(10., &[8])?;
    let images = uniform(&mut numbers, 0., 1., (8, 1, 28, 28))?;
    for (name, network, x, y) in [
        ("llama2_c", llama as fn(VarBuilder<'_>) -> Result<Sequential>, x, y),
        ("vit", vision_transformer, images, labels),
    ] {
        let (one, two) = (losses(1, network, &x, &y)?, losses(2, network, &x, &y)?);
        println!("{name}: {one:?}, on two devices {two:?}");
        let apart = one.iter().zip(&two).map(|(one, two)| (one - two).abs());
        assert!(apart.fold(0., f32::max) < 1e-4, "{name}");
        assert!(two[9] < 0.9 * two[0], "{name} does not learn");
    }
    Ok(())
}
