//! A small transformer on two devices. It learns to predict the next character of a text, and then writes some.
//!
//! `cargo run --example 17_transformer [-- --gpus 2 --steps 300]`

use std::time::Instant;

use clap::Parser;
use data_parallel::prelude::*;

/// The characters that the network sees at once.
pub const CONTEXT: usize = 32;
/// The numbers that stand for a character inside the network.
const WIDTH: usize = 64;
/// The parts of the width that look for different things.
const HEADS: usize = 4;
/// The text is ASCII.
const CHARACTERS: usize = 128;
const TEXT: &str = include_str!("../LICENSE-APACHE");

/// Attention and two linear layers, each added to what comes in: (B, T, WIDTH) to the same shape.
fn block(vb: VarBuilder<'_>) -> Result<impl Network + use<>> {
    let norm_1 = LayerNorm::new(WIDTH, vb.pp("norm_1"))?;
    let qkv = Linear::new(WIDTH, 3 * WIDTH, vb.pp("qkv"))?; // queries, keys and values
    let project = Linear::new(WIDTH, WIDTH, vb.pp("project"))?;
    let norm_2 = LayerNorm::new(WIDTH, vb.pp("norm_2"))?;
    let up = Linear::new(WIDTH, 4 * WIDTH, vb.pp("up"))?;
    let down = Linear::new(4 * WIDTH, WIDTH, vb.pp("down"))?;
    Ok(move |x: &Value, train: bool| {
        let h = qkv.forward(&norm_1.forward(x, train)?, train)?;
        let h = project.forward(&h.causal_attention(HEADS)?, train)?;
        let x = (x + &h)?;
        let h = up.forward(&norm_2.forward(&x, train)?, train)?;
        let h = down.forward(&h.gelu()?, train)?;
        &x + &h
    })
}

/// Characters (B, T) to the scores of the next ones, (B, T, CHARACTERS).
pub fn network(vb: VarBuilder<'_>) -> Result<impl Network + use<>> {
    let characters = Embedding::new(CHARACTERS, WIDTH, vb.pp("characters"))?;
    let places = Embedding::new(CONTEXT, WIDTH, vb.pp("places"))?;
    let blocks = [block(vb.pp("block_1"))?, block(vb.pp("block_2"))?];
    let norm = LayerNorm::new(WIDTH, vb.pp("norm"))?;
    let scores = Linear::new(WIDTH, CHARACTERS, vb.pp("scores"))?;
    Ok(move |x: &Value, train: bool| {
        let numbers = Tensor::arange(0, x.dims()[1] as u32, x.device())?.expand(x.dims())?;
        let places = places.forward(&Value::new(&numbers)?, train)?;
        let mut h = (characters.forward(x, train)? + places)?;
        for block in &blocks {
            h = block.forward(&h, train)?;
        }
        scores.forward(&norm.forward(&h, train)?, train)
    })
}

/// Minibatch `step`: parts of the text (B, CONTEXT), and the same parts one character later.
pub fn batch(step: usize, batch_size: usize) -> Result<(Tensor, Tensor)> {
    let part = |example: usize| {
        // they seem to come in any order: 7,919 is a prime number
        let start = (step * batch_size + example) * 7_919 % (TEXT.len() - CONTEXT);
        TEXT.as_bytes()[start..start + CONTEXT + 1].iter()
    };
    let bytes = (0..batch_size).flat_map(part).map(|byte| u32::from(*byte));
    let both = Tensor::from_iter(bytes, &Device::Cpu)?.reshape((batch_size, CONTEXT + 1))?;
    Ok((both.narrow(1, 0, CONTEXT)?, both.narrow(1, 1, CONTEXT)?))
}

/// `text`, continued by the most probable characters.
fn continued(net: &DataParallel, text: &str, count: usize) -> anyhow::Result<String> {
    let mut text: Vec<u32> = text.bytes().map(u32::from).collect();
    for _ in 0..count {
        let seen = &text[text.len().saturating_sub(CONTEXT)..];
        let scores = net.forward(&Tensor::new(seen, &Device::Cpu)?.unsqueeze(0)?)?;
        let next = scores.get(0)?.argmax(1)?.get(seen.len() - 1)?;
        text.push(next.to_scalar()?);
    }
    Ok(text.into_iter().filter_map(char::from_u32).collect())
}

#[derive(Parser)]
struct Args {
    /// Devices: GPUs, or shares of the CPU's cores
    #[arg(long, default_value_t = 2)]
    gpus: usize,
    #[arg(long, default_value_t = 300)]
    steps: usize,
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let net = DataParallel::new(&devices(args.gpus)?, Initializer::Layers, 0, network)?;
    let adamw = AdamW {
        lr: 3e-3,
        ..AdamW::default()
    };
    let mut trainer = Trainer::new(&net, cross_entropy, adamw);
    let mut since = Instant::now();
    for step in 1..=args.steps {
        let (x, y) = batch(step, args.batch_size)?;
        let loss = trainer.step(&x, &y)?.loss;
        if step % 50 == 0 {
            let tokens = (50 * args.batch_size * CONTEXT) as f64 / since.elapsed().as_secs_f64();
            println!(
                "step {step}, loss {:.3}, {tokens:.0} tokens/sec",
                loss.mean()?
            );
            since = Instant::now();
        }
    }
    println!("{}", continued(&net, "You may", 200)?);
    Ok(())
}
