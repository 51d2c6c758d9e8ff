//! Times of convolutions, in layers of this library and in candle's: with groups, dilation, a rectangular kernel,
//! transposed. One with dilation is made of another layer. The page `notebooks-md/your-own-project.md` has the table. The claim
//! `layers_train_right` compares them with candle's.
//!
//! `cargo run --release -p data-parallel --example cost_of_convolutions`

use std::time::Instant;

use candle_nn::{Conv2dConfig, ConvTranspose2dConfig, Init};
use data_parallel::prelude::*;

const EXAMPLES: usize = 16;
/// Of the inputs and outputs of each layer.
pub const CHANNELS: usize = 32;
/// Rows and columns of an image.
pub const SIDE: usize = 28;

/// Images become (B, H, W, CHANNELS), so that the layer behind needs the gradient of its input; then the layer; then one
/// number for each channel.
fn around(
    vb: &VarBuilder<'_>,
    layer: impl Fn(VarBuilder<'_>) -> Result<Sequential>,
) -> Result<Sequential> {
    Ok(Sequential::new()
        .add(Nhwc)
        .add(Conv2d::new(1, CHANNELS, 1, vb.pp("stem"))?)
        .add(layer(vb.pp("layer"))?)
        .add(GlobalAvgPool2d))
}

/// A layer of candle's, which takes images (B, C, H, W).
fn in_candle(layer: impl Fn(&Tensor) -> Result<Tensor> + 'static) -> Sequential {
    Sequential::new().add(candle(move |x: &Tensor| {
        let y = layer(&x.permute((0, 3, 1, 2))?.contiguous()?)?;
        y.permute((0, 2, 3, 1))?.contiguous()
    }))
}

/// candle's 3 × 3, with as much padding as keeps the size.
pub fn conv2d(vb: VarBuilder<'_>, groups: usize, dilation: usize) -> Result<Sequential> {
    let config = Conv2dConfig {
        padding: dilation,
        groups,
        dilation,
        ..Conv2dConfig::default()
    };
    let conv = candle_nn::conv2d(CHANNELS, CHANNELS, 3, config, vb)?;
    Ok(in_candle(move |x| x.apply(&conv)))
}

/// 3 × 3 with dilation 2, for images with even sides: a layer on four images of half the size, those of the pixels in even
/// and odd rows and columns.
pub fn dilated(inputs: usize, outputs: usize, vb: VarBuilder<'_>) -> Result<Sequential> {
    let apart = candle(|x: &Tensor| {
        let (b, h, w, c) = x.dims4()?;
        let x = x.reshape(&[b, h / 2, 2, w / 2, 2, c][..])?;
        x.permute((0, 2, 4, 1, 3, 5))?
            .reshape((4 * b, h / 2, w / 2, c))
    });
    let together = candle(|x: &Tensor| {
        let (b, h, w, c) = x.dims4()?;
        let x = x.reshape(&[b / 4, 2, 2, h, w, c][..])?;
        x.permute((0, 3, 1, 4, 2, 5))?
            .reshape((b / 4, 2 * h, 2 * w, c))
    });
    let conv = Conv2d::new(inputs, outputs, 3, vb)?.padding(1);
    Ok(Sequential::new().add(apart).add(conv).add(together))
}

/// 3 × 3 in groups.
pub fn grouped(vb: VarBuilder<'_>, groups: usize) -> Result<Sequential> {
    let conv = Conv2d::grouped(CHANNELS, CHANNELS, 3, groups, vb)?;
    Ok(Sequential::new().add(conv.padding(1)))
}

/// Transposed 2 × 2 with stride 2.
pub fn enlarged(vb: VarBuilder<'_>) -> Result<Sequential> {
    let conv = ConvTranspose2d::new(CHANNELS, CHANNELS, 2, vb)?;
    Ok(Sequential::new().add(conv.stride(2)))
}

/// A kernel of `1 × width` without padding; candle's `conv1d` has a wrong gradient.
fn one_row(vb: VarBuilder<'_>, width: usize) -> Result<Sequential> {
    let weight = vb.get_with_hints((CHANNELS, CHANNELS, 1, width), "weight", Init::Const(0.01))?;
    Ok(in_candle(move |x| x.conv2d(&weight, 0, 1, 1, 1)))
}

/// candle's transposed 2 × 2 with stride 2.
pub fn transposed(vb: VarBuilder<'_>) -> Result<Sequential> {
    let config = ConvTranspose2dConfig {
        stride: 2,
        ..ConvTranspose2dConfig::default()
    };
    let conv = candle_nn::conv_transpose2d(CHANNELS, CHANNELS, 2, config, vb)?;
    Ok(in_candle(move |x| x.apply(&conv)))
}

type Layer = fn(VarBuilder<'_>) -> Result<Sequential>;

/// The layers, the first of which is none.
const LAYERS: [(&str, Layer); 14] = [
    ("none", |_| Ok(Sequential::new())),
    ("layers::Conv2d 3x3", |vb| {
        let conv = Conv2d::new(CHANNELS, CHANNELS, 3, vb)?.padding(1);
        Ok(Sequential::new().add(conv))
    }),
    ("candle 3x3", |vb| conv2d(vb, 1, 1)),
    ("candle 3x3, 2 groups", |vb| conv2d(vb, 2, 1)),
    ("layers::Conv2d 3x3, 2 groups", |vb| grouped(vb, 2)),
    ("candle 3x3, a group for each channel", |vb| {
        conv2d(vb, CHANNELS, 1)
    }),
    ("layers::Conv2d 3x3, a group for each channel", |vb| {
        grouped(vb, CHANNELS)
    }),
    ("candle 3x3, dilation 2", |vb| conv2d(vb, 1, 2)),
    ("the same as a layer on parts", |vb| {
        dilated(CHANNELS, CHANNELS, vb)
    }),
    ("layers::Conv2d 1x7", |vb| {
        let conv = Conv2d::rectangular(CHANNELS, CHANNELS, [1, 7], vb)?;
        Ok(Sequential::new().add(conv))
    }),
    ("candle 1x7", |vb| one_row(vb, 7)),
    ("candle transposed 2x2, stride 2", transposed),
    ("layers::ConvTranspose2d 2x2, stride 2", enlarged),
    ("none again", |_| Ok(Sequential::new())),
];

fn main() -> Result<()> {
    let x = uniform(&mut rng(0), 0.0, 1.0, (EXAMPLES, 1, SIDE, SIDE))?;
    let y = Tensor::zeros((EXAMPLES, CHANNELS), DType::F32, &Device::Cpu)?;
    let mut trainers = Vec::new();
    for (name, layer) in LAYERS {
        let build = move |vb: VarBuilder<'_>| around(&vb, layer);
        let net = DataParallel::new(&devices(2)?, Initializer::Layers, 0, build)?;
        let mut trainer = Trainer::new(&net, squared_error, Sgd::new(0.01));
        trainer.step(&x, &y)?; // compares gradients
        trainers.push((name, trainer, Vec::new()));
    }
    for _ in 0..15 {
        for (_, trainer, times) in &mut trainers {
            let since = Instant::now();
            trainer.step(&x, &y)?;
            times.push(1e3 * since.elapsed().as_secs_f64());
        }
    }
    let (mut none, mut first) = (0.0, true);
    println!(
        "milliseconds of a step on 2 devices, without those of a network that has no such layer:"
    );
    for (name, _, mut times) in trainers {
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        if std::mem::take(&mut first) {
            none = median;
        }
        let (least, most) = (times[0] - none, times[times.len() - 1] - none);
        println!("{name:45} {:7.2} ({least:.2} to {most:.2})", median - none);
    }
    Ok(())
}
