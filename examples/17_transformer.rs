//! A small transformer on text, on two devices: it learns to predict the next character.
//!
//! `cargo run --example 17_transformer`

use std::time::Instant;

use clap::Parser;
use concise::prelude::*;

/// The characters that the network sees at once, its width, and its heads.
const CONTEXT: usize = 32;
const WIDTH: usize = 64;
const HEADS: usize = 4;
/// The text has this many different bytes at most.
const BYTES: usize = 128;

const TEXT: &str = include_str!("../LICENSE-APACHE");

fn block(vb: VarBuilder<'_>) -> Result<impl Network + use<>> {
    let [norm_1, norm_2] = ["norm_1", "norm_2"].map(|name| LayerNorm::new(WIDTH, vb.pp(name)));
    let (norm_1, norm_2) = (norm_1?, norm_2?);
    let qkv = Linear::new(WIDTH, 3 * WIDTH, vb.pp("qkv"))?;
    let project = Linear::new(WIDTH, WIDTH, vb.pp("project"))?;
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

/// Characters (B, CONTEXT) to the scores of the next ones, (B, CONTEXT, BYTES).
fn network(vb: VarBuilder<'_>) -> Result<impl Network + use<>> {
    let characters = Embedding::new(BYTES, WIDTH, vb.pp("characters"))?;
    let places = Embedding::new(CONTEXT, WIDTH, vb.pp("places"))?;
    let blocks = [block(vb.pp("block_1"))?, block(vb.pp("block_2"))?];
    let norm = LayerNorm::new(WIDTH, vb.pp("norm"))?;
    let scores = Linear::new(WIDTH, BYTES, vb.pp("scores"))?;
    Ok(move |x: &Value, train: bool| {
        let numbers = Tensor::arange(0, CONTEXT as u32, x.device())?.expand(x.dims())?;
        let places = places.forward(&Value::new(&numbers)?, train)?;
        let x = (characters.forward(x, train)? + places)?;
        let x = blocks[1].forward(&blocks[0].forward(&x, train)?, train)?;
        scores.forward(&norm.forward(&x, train)?, train)
    })
}

#[derive(Parser)]
struct Args {
    #[arg(long, default_value_t = 2)]
    gpus: usize,
    #[arg(long, default_value_t = 100)]
    steps: usize,
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let text: Vec<u32> = TEXT.bytes().map(u32::from).collect();
    let text = Tensor::new(text, &Device::Cpu)?;
    let net = DataParallel::new(&devices(args.gpus)?, Initializer::Layers, 0, network)?;
    let mut trainer = Trainer::new(
        &net,
        cross_entropy,
        AdamW {
            lr: 3e-3,
            ..AdamW::default()
        },
    );
    let starts = text.dim(0)? - CONTEXT;
    let mut times = vec![];
    for step in 0..args.steps {
        // an order without a generator: 7,919 is a prime number
        let start = |example: usize| (step * args.batch_size + example) * 7919 % starts;
        let rows = |shift: usize| {
            let row = |example| text.narrow(0, start(example) + shift, CONTEXT);
            let rows: Result<Vec<Tensor>> = (0..args.batch_size).map(row).collect();
            Tensor::stack(&rows?, 0)
        };
        let begin = Instant::now();
        let l = trainer.step(&rows(0)?, &rows(1)?)?.loss.mean()?;
        times.push(begin.elapsed().as_secs_f64() * 1e3);
        if step % 10 == 0 {
            println!("step {step}, loss {l:.4}");
        }
    }
    times.sort_by(f64::total_cmp);
    println!("{:.1} ms", times[times.len() / 2]);
    Ok(())
}
