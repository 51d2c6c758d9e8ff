//! The networks of layers, as a user of the library writes them. `benches/pytorch_step.py` has the same.

use concise::{Residual, resnet18};
use data_parallel::prelude::*;

use super::work::Network;

#[path = "../../../../examples/networks/diffusion.rs"]
mod diffusion;
#[path = "../../../../examples/17_transformer.rs"]
#[expect(dead_code, reason = "it is an example")]
mod example;
#[path = "../../../../examples/networks/images.rs"]
mod images;
#[path = "../../../../examples/networks/sequences.rs"]
mod sequences;

/// The layers of a network.
///
/// # Errors
/// If a layer cannot be made.
pub fn layers(network: Network, vb: VarBuilder<'_>) -> Result<Sequential> {
    match network {
        Network::Lenet => lenet(vb),
        Network::Resnet18 => Ok(Sequential::new().add(resnet18(10, vb)?)),
        Network::Vgg => vgg(vb),
        Network::Mnist => mnist(vb),
        Network::Resnet20 => resnet20(vb),
        Network::Mlp512 => mlp(&[784, 512, 512, 10], vb),
        Network::Mlp128 => mlp(&[784, 128, 10], vb),
        Network::Transformer => Ok(Sequential::new().add(example::network(vb)?)),
        Network::Llama => Ok(Sequential::new().add(sequences::llama(vb)?)),
        Network::Vit => Ok(Sequential::new().add(sequences::vit(vb)?)),
        Network::Lstm => sequences::lstm(vb),
        Network::MobilenetV2 => images::mobilenet_v2(vb),
        Network::Convnext => images::convnext(vb),
        Network::Unet => Ok(Sequential::new().add(diffusion::unet(vb)?)),
        Network::SdUnet => Ok(Sequential::new().add(diffusion::sd_unet(vb)?)),
    }
}

fn lenet(vb: VarBuilder<'_>) -> Result<Sequential> {
    Ok(Sequential::new()
        .add(Nhwc)
        .add(Conv2d::new(1, 20, 3, vb.pp("conv1"))?)
        .add(Relu)
        .add(AvgPool2d::new(2))
        .add(Conv2d::new(20, 50, 5, vb.pp("conv2"))?)
        .add(Relu)
        .add(AvgPool2d::new(2))
        .add(Flatten)
        .add(Linear::new(800, 128, vb.pp("fc1"))?)
        .add(Relu)
        .add(Linear::new(128, 10, vb.pp("fc2"))?))
}

fn vgg(vb: VarBuilder<'_>) -> Result<Sequential> {
    let mut net = Sequential::new().add(Nhwc);
    let convolutions = [(3, 64), (64, 128), (128, 256), (256, 256)];
    for (i, (inputs, outputs)) in convolutions.into_iter().enumerate() {
        net = net.add(Conv2d::new(inputs, outputs, 3, vb.pp(i))?.padding(1));
        net = net.add(Relu);
        if i != 2 {
            net = net.add(MaxPool2d::new(2));
        }
    }
    let fc = Linear::new(256, 10, vb.pp("fc"))?;
    Ok(net.add(GlobalAvgPool2d).add(fc))
}

fn mnist(vb: VarBuilder<'_>) -> Result<Sequential> {
    Ok(Sequential::new()
        .add(Nhwc)
        .add(Conv2d::new(1, 32, 3, vb.pp("conv1"))?)
        .add(Relu)
        .add(Conv2d::new(32, 64, 3, vb.pp("conv2"))?)
        .add(Relu)
        .add(MaxPool2d::new(2))
        .add(Dropout::new(0.25, vb.pp("dropout1"))?)
        .add(Flatten)
        .add(Linear::new(9216, 128, vb.pp("fc1"))?)
        .add(Relu)
        .add(Dropout::new(0.5, vb.pp("dropout2"))?)
        .add(Linear::new(128, 10, vb.pp("fc2"))?))
}

fn resnet20(vb: VarBuilder<'_>) -> Result<Sequential> {
    let mut net = Sequential::new()
        .add(Nhwc)
        .add(Conv2d::new(3, 16, 3, vb.pp("conv"))?.padding(1))
        .add(BatchNorm2d::new(16, vb.pp("bn"))?)
        .add(Relu);
    let mut inputs = 16;
    for channels in [16, 32, 64] {
        for i in 0..3 {
            let shrinks = channels != inputs;
            let strides = if shrinks { 2 } else { 1 };
            let vb = vb.pp(channels).pp(i);
            net = net.add(Residual::new(inputs, channels, shrinks, strides, vb)?);
            inputs = channels;
        }
    }
    let fc = Linear::new(64, 10, vb.pp("fc"))?;
    Ok(net.add(GlobalAvgPool2d).add(fc))
}

fn mlp(sizes: &[usize], vb: VarBuilder<'_>) -> Result<Sequential> {
    let mut net = Sequential::new().add(Flatten);
    for (i, pair) in sizes.windows(2).enumerate() {
        if i > 0 {
            net = net.add(Relu);
        }
        net = net.add(Linear::new(pair[0], pair[1], vb.pp(i))?);
    }
    Ok(net)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;
    use concise::{Initializer, Sgd};

    use super::*;
    use crate::bench::ours::minibatch;

    #[test]
    fn all_train_and_have_as_many_parameters_as_in_pytorch() -> anyhow::Result<()> {
        let expected = [
            129_068, 11_175_818, 963_466, 1_199_882, 273_066, 669_706, 101_770, 118_656, 152_768,
            205_066, 164_992, 2_236_682, 3_377_730, 733_857, 626_849,
        ];
        assert_eq!(expected.len(), Network::value_variants().len());
        for (&network, parameters) in Network::value_variants().iter().zip(expected) {
            let make = move |vb: VarBuilder<'_>| layers(network, vb);
            let net = DataParallel::new(&devices(1)?, Initializer::Layers, 0, make)?;
            assert_eq!(net.num_parameters(), parameters, "{network}");
            let (x, y) = minibatch(network, 2)?;
            let mut trainer = Trainer::new(&net, network.loss(), Sgd::new(0.01));
            assert!(trainer.step(&x, &y)?.loss.mean()? > 1.0, "{network}");
        }
        Ok(())
    }
}
