//! Work that is measured: a training step of a network on a minibatch, and how much there is to
//! compute in it.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Error, Result, ensure};
use candle_core::Tensor;
use clap::ValueEnum;
use functional::{Value, cross_entropy, squared_error};

/// The book's two networks, and others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Network {
    /// "Training on Multiple GPUs".
    Lenet,
    /// "Concise Implementation for Multiple GPUs".
    Resnet18,
    /// Four convolutions in the style of VGG, with 64 to 256 channels.
    Vgg,
    /// That of PyTorch's example "mnist".
    Mnist,
    /// ResNet-20 for CIFAR-10, with the book's blocks.
    Resnet20,
    /// Linear layers from 784 over 512 and 512 to 10 values.
    Mlp512,
    /// Linear layers from 784 over 128 to 10 values.
    Mlp128,
    /// That of the example `17_transformer`: two blocks of width 64 on 32 characters.
    Transformer,
    /// Llama: 3 layers of width 64 on 64 characters.
    Llama,
    /// Vision transformer: 4 layers of width 64, patches of 4 × 4.
    Vit,
    /// 128 numbers wide, on 20 characters.
    Lstm,
    /// On images of 64 × 64.
    MobilenetV2,
    /// Its smallest size, "atto", on images of 64 × 64.
    Convnext,
    /// With group norms and transposed convolutions, 32 to 128 channels.
    Unet,
    /// With attention, as Stable Diffusion has it, 32 and 64 channels.
    SdUnet,
}

/// Input of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Example {
    /// Channels, rows and columns of an image; the label is one of ten classes.
    Image(usize, usize, usize),
    /// Number of characters, of 128; the label of each is the next one.
    Characters(usize),
    /// A grey image of 28 × 28; the target is another one.
    Noise,
}

/// One training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Of this network.
    pub network: Network,
    /// Number of examples.
    pub batch: usize,
}

impl Network {
    /// The multiply-adds of each layer's forward pass of one example, first layer first.
    /// Convolutions, linear layers and attention only: the rest is less than one in a hundred. They are not counted for
    /// the networks of which the rest is more.
    fn multiply_adds(self) -> Option<Vec<u64>> {
        let layers = match self {
            Network::Lenet => vec![conv(1, 20, 3, 26), conv(20, 50, 5, 9), 800 * 128, 128 * 10],
            Network::Resnet18 => residual(1, 2, &[(64, 28), (128, 14), (256, 7), (512, 4)]),
            Network::Vgg => vec![
                conv(3, 64, 3, 32),
                conv(64, 128, 3, 16),
                conv(128, 256, 3, 8),
                conv(256, 256, 3, 8),
                256 * 10,
            ],
            Network::Mnist => vec![
                conv(1, 32, 3, 26),
                conv(32, 64, 3, 24),
                9216 * 128,
                128 * 10,
            ],
            Network::Resnet20 => residual(3, 3, &[(16, 32), (32, 16), (64, 8)]),
            Network::Mlp512 => vec![784 * 512, 512 * 512, 512 * 10],
            Network::Mlp128 => vec![784 * 128, 128 * 10],
            Network::Transformer => {
                let pairs = 32 * 33 / 2; // of a character with one that is not after it
                let attention = 2 * pairs * 64;
                let block = [
                    32 * 64 * 192,
                    attention,
                    32 * 64 * 64,
                    32 * 64 * 256,
                    32 * 256 * 64,
                ];
                // the embeddings only copy
                [&[0][..], &block, &block, &[32 * 64 * 128]].concat()
            }
            _ => return None,
        };
        Some(layers)
    }

    /// Kind of its examples.
    pub fn example(self) -> Example {
        match self {
            Network::Vgg | Network::Resnet20 => Example::Image(3, 32, 32),
            Network::MobilenetV2 | Network::Convnext => Example::Image(3, 64, 64),
            Network::Transformer => Example::Characters(32),
            Network::Llama => Example::Characters(64),
            Network::Lstm => Example::Characters(20),
            Network::Unet | Network::SdUnet => Example::Noise,
            _ => Example::Image(1, 28, 28),
        }
    }

    /// The loss that it is trained with.
    pub fn loss(self) -> fn(&Value, &Tensor) -> candle_core::Result<Value> {
        match self.example() {
            Example::Noise => squared_error,
            _ => cross_entropy,
        }
    }
}

/// The multiply-adds of a convolution with square kernels and an output of `side` × `side`.
fn conv(inputs: u64, outputs: u64, kernel: u64, side: u64) -> u64 {
    inputs * outputs * (kernel * side).pow(2)
}

/// The multiply-adds of residual blocks, two convolutions each: as many in each stage, which is given by its channels
/// and its side.
fn residual(image_channels: u64, blocks: usize, stages: &[(u64, u64)]) -> Vec<u64> {
    let mut layers = Vec::new();
    for (i, &(channels, side)) in stages.iter().enumerate() {
        let inputs = if i == 0 { image_channels } else { channels / 2 };
        layers.push(conv(inputs, channels, 3, side));
        if i > 0 {
            layers.push(conv(inputs, channels, 1, side));
        }
        let rest = 2 * blocks - usize::from(i > 0);
        layers.extend(vec![conv(channels, channels, 3, side); rest]);
    }
    layers.extend(stages.last().map(|(channels, _)| channels * 10));
    layers
}

/// Says how [`Work::flops`] counts.
pub const COUNTED: &str = "FLOPs are those of the convolutions, linear layers and attention: two for each \
    multiply-add of the forward pass and of both gradients, without the input gradient of the first \
    layer. An algorithm with fewer multiply-adds (Winograd) is counted as if it did them all.";

impl Work {
    /// The FLOPs of one step, if they are counted for this network.
    pub fn flops(&self) -> Option<f64> {
        let layers = self.network.multiply_adds()?;
        let passes = 3 * layers.iter().sum::<u64>() - layers[0];
        Some((2 * passes * self.batch as u64) as f64)
    }

    /// The arguments of a contender's program.
    pub fn args(&self) -> [String; 2] {
        let network = self.network.to_possible_value().expect("none is hidden");
        [network.get_name().to_owned(), self.batch.to_string()]
    }

    /// True if contenders take so much memory that they cannot live side by side.
    pub fn is_large(&self) -> bool {
        self.network == Network::Resnet18 && self.batch > 128
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Network::Lenet => "LeNet",
            Network::Resnet18 => "ResNet-18",
            Network::Vgg => "VGG, 64 to 256 channels",
            Network::Mnist => "PyTorch's MNIST example",
            Network::Resnet20 => "ResNet-20",
            Network::Mlp512 => "MLP 784–512–512–10",
            Network::Mlp128 => "MLP 784–128–10",
            Network::Transformer => "transformer, 2 blocks of width 64",
            Network::Llama => "Llama, 3 layers of width 64",
            Network::Vit => "ViT, 4 layers of width 64",
            Network::Lstm => "LSTM, 128 wide, 20 characters",
            Network::MobilenetV2 => "MobileNetV2, 64 × 64",
            Network::Convnext => "ConvNeXt atto, 64 × 64",
            Network::Unet => "U-Net, 28 × 28",
            Network::SdUnet => "Stable Diffusion's U-Net, small, 28 × 28",
        })
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, batch {}", self.network, self.batch)
    }
}

impl FromStr for Work {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let (network, batch) = name.rsplit_once('-').context("a step is NETWORK-BATCH")?;
        let batch = batch.parse().context("BATCH is a number")?;
        ensure!(batch > 0, "a step needs at least 1 example");
        let network = Network::from_str(network, false).map_err(Error::msg)?;
        Ok(Self { network, batch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flops_are_counted_by_hand() -> Result<()> {
        // 26²·20·9 + 9²·50·500 + 800·128 + 128·10 = 2,250,360; three times, less the first 121,680
        let lenet: Work = "lenet-1".parse()?;
        assert_eq!(lenet.flops(), Some(2.0 * 6_629_400.0));
        let resnet18 = "resnet18-2".parse::<Work>()?.flops();
        assert!(
            resnet18.is_some_and(|flops| (5.44e9..5.48e9).contains(&flops)),
            "{resnet18:?}"
        );
        // 4·4·(3,380 + 800 + 138) and 5·4·129,068
        // 2·(32·64·(192 + 64 + 256 + 256) + 2·528·64) + 32·64·128 = 3,543,040; three times
        let transformer: Work = "transformer-1".parse()?;
        assert_eq!(transformer.flops(), Some(2.0 * 10_629_120.0));
        assert_eq!("lstm-1".parse::<Work>()?.flops(), None);
        let params = scratch::init_params(0)?;
        let parameters: usize = params.iter().map(|p| p.elem_count()).sum();
        assert_eq!(parameters, 129_068);
        Ok(())
    }

    #[test]
    fn a_step_is_read_from_its_name() {
        let work = "resnet18-64".parse::<Work>().unwrap();
        assert_eq!(work.to_string(), "ResNet-18, batch 64");
        for wrong in ["lenet", "alexnet-8", "lenet-0", "lenet-many"] {
            assert!(wrong.parse::<Work>().is_err(), "{wrong}");
        }
    }
}
