//! Networks with depthwise convolutions, as public programs have them.
//! `tests/pytorch/public_networks.py` has the same,
//! and a test compares the losses.

use data_parallel::candle_nn::Init;
use data_parallel::prelude::*;

/// MobileNetV2 with ten classes: images (B, 3, H, W) to scores (B, 10).
pub fn mobilenet_v2(vb: VarBuilder<'_>) -> Result<Sequential> {
    // times as many channels inside, channels, blocks, stride of the first one
    let stages = [
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ];
    let stem = Conv2d::without_bias(3, 32, 3, vb.pp("stem"))?;
    let mut net = Sequential::new()
        .add(Nhwc)
        .add(stem.stride(2).padding(1))
        .add(BatchNorm2d::new(32, vb.pp("stem_norm"))?)
        .add(Relu6);
    let mut inputs = 32;
    for (stage, (times, outputs, blocks, stride)) in stages.into_iter().enumerate() {
        for i in 0..blocks {
            let stride = if i == 0 { stride } else { 1 };
            let vb = vb.pp(format!("stage_{stage}.{i}"));
            net = net.add(inverted_residual(
                inputs,
                times * inputs,
                outputs,
                stride,
                vb,
            )?);
            inputs = outputs;
        }
    }
    Ok(net
        .add(Conv2d::without_bias(inputs, 1280, 1, vb.pp("last"))?)
        .add(BatchNorm2d::new(1280, vb.pp("last_norm"))?)
        .add(Relu6)
        .add(GlobalAvgPool2d)
        .add(Linear::new(1280, 10, vb.pp("fc"))?))
}

fn inverted_residual(
    inputs: usize,
    inside: usize,
    outputs: usize,
    stride: usize,
    vb: VarBuilder<'_>,
) -> Result<impl Network + use<>> {
    let mut net = Sequential::new();
    if inside > inputs {
        net = net
            .add(Conv2d::without_bias(inputs, inside, 1, vb.pp("expand"))?)
            .add(BatchNorm2d::new(inside, vb.pp("expand_norm"))?)
            .add(Relu6);
    }
    let depthwise = Conv2d::grouped_without_bias(inside, inside, 3, inside, vb.pp("depthwise"))?;
    net = net
        .add(depthwise.stride(stride).padding(1))
        .add(BatchNorm2d::new(inside, vb.pp("depthwise_norm"))?)
        .add(Relu6)
        .add(Conv2d::without_bias(inside, outputs, 1, vb.pp("project"))?)
        .add(BatchNorm2d::new(outputs, vb.pp("project_norm"))?);
    let is_residual = stride == 1 && inputs == outputs;
    Ok(move |x: &Value, train: bool| {
        let y = net.forward(x, train)?;
        if is_residual { x + &y } else { Ok(y) }
    })
}

/// ConvNeXt "atto" with ten classes: images (B, 3, H, W) to scores (B, 10).
pub fn convnext(vb: VarBuilder<'_>) -> Result<Sequential> {
    let mut net = Sequential::new()
        .add(Nhwc)
        .add(Conv2d::new(3, 40, 4, vb.pp("stem"))?.stride(4))
        .add(LayerNorm::new(40, vb.pp("stem_norm"))?.eps(1e-6));
    let mut inputs = 40;
    for (stage, (channels, blocks)) in [(40, 2), (80, 2), (160, 6), (320, 2)]
        .into_iter()
        .enumerate()
    {
        let vb = vb.pp(format!("stage_{stage}"));
        if channels != inputs {
            net = net
                .add(LayerNorm::new(inputs, vb.pp("norm"))?.eps(1e-6))
                .add(Conv2d::new(inputs, channels, 2, vb.pp("conv"))?.stride(2));
        }
        for i in 0..blocks {
            net = net.add(convnext_block(channels, vb.pp(i))?);
        }
        inputs = channels;
    }
    Ok(net
        .add(GlobalAvgPool2d)
        .add(LayerNorm::new(inputs, vb.pp("norm"))?.eps(1e-6))
        .add(Linear::new(inputs, 10, vb.pp("fc"))?))
}

fn convnext_block(channels: usize, vb: VarBuilder<'_>) -> Result<impl Network + use<>> {
    let gamma = vb.get_with_hints(channels, "gamma", Init::Const(1e-6))?;
    let depthwise =
        Conv2d::grouped(channels, channels, 7, channels, vb.pp("depthwise"))?.padding(3);
    let norm = LayerNorm::new(channels, vb.pp("norm"))?.eps(1e-6);
    let up = Linear::new(channels, 4 * channels, vb.pp("up"))?;
    let down = Linear::new(4 * channels, channels, vb.pp("down"))?;
    Ok(move |x: &Value, train: bool| {
        let h = norm.forward(&depthwise.forward(x, train)?, train)?;
        let h = down.forward(&up.forward(&h, train)?.gelu()?, train)?;
        x + &h.broadcast_mul(&Value::new(&gamma)?)?
    })
}
