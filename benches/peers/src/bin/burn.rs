//! The two networks in Burn, with its own layers, loss and optimizer, on the CPU backend that the
//! feature names.

use anyhow::Result;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::{CrossEntropyLoss, CrossEntropyLossConfig};
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, AvgPool2d, AvgPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use peers::{Job, LR, Network};

#[cfg(feature = "burn-flex")]
const NAME: &str = "Burn, flex backend,";
#[cfg(feature = "burn-ndarray")]
const NAME: &str = "Burn, ndarray backend,";

fn device() -> Device {
    #[cfg(feature = "burn-flex")]
    return Device::flex();
    #[cfg(feature = "burn-ndarray")]
    return Device::ndarray();
}

fn main() -> Result<()> {
    let job = Job::from_args()?;
    let device = device().autodiff();
    match job.network {
        Network::Lenet => train(Lenet::new(&device), Lenet::forward, &job, &device),
        Network::Resnet18 => train(Resnet18::new(&device), Resnet18::forward, &job, &device),
    }
}

fn train<M: Module>(
    net: M,
    forward: fn(&M, Tensor<4>) -> Tensor<2>,
    job: &Job,
    device: &Device,
) -> Result<()> {
    // the data is no part of the graph, or the first layer would compute its input's gradient
    let x = Tensor::<4>::random(
        [job.batch, 1, 28, 28],
        Distribution::Normal(0.0, 1.0),
        device,
    );
    let y: Vec<i64> = (0..job.batch as i64).map(|i| i * 7 % 10).collect();
    let y = Tensor::<1, Int>::from_data(TensorData::new(y, [job.batch]), device);
    let loss: CrossEntropyLoss = CrossEntropyLossConfig::new().init(device);
    let mut sgd = SgdConfig::new().init();
    let mut net = Some(net);
    job.serve(NAME, "burn", || {
        let before = net.take().expect("a step leaves a network");
        let l = loss.forward(forward(&before, x.clone()), y.clone());
        let gradients = GradientsParams::from_grads(l.backward(), &before);
        net = Some(sgd.step(LR, before, gradients));
        Ok(l.into_scalar())
    })
}

#[derive(Module, Debug)]
struct Lenet {
    conv1: Conv2d,
    conv2: Conv2d,
    pool: AvgPool2d,
    fc1: Linear,
    fc2: Linear,
}

impl Lenet {
    fn new(device: &Device) -> Self {
        Self {
            conv1: Conv2dConfig::new([1, 20], [3, 3]).init(device),
            conv2: Conv2dConfig::new([20, 50], [5, 5]).init(device),
            pool: AvgPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            fc1: LinearConfig::new(800, 128).init(device),
            fc2: LinearConfig::new(128, 10).init(device),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let x = self.pool.forward(relu(self.conv1.forward(x)));
        let x = self.pool.forward(relu(self.conv2.forward(x)));
        let x = relu(self.fc1.forward(x.flatten(1, 3)));
        self.fc2.forward(x)
    }
}

#[derive(Module, Debug)]
struct Residual {
    conv1: Conv2d,
    conv2: Conv2d,
    conv3: Option<Conv2d>,
    bn1: BatchNorm,
    bn2: BatchNorm,
}

fn conv3x3(inputs: usize, outputs: usize, stride: usize, device: &Device) -> Conv2d {
    Conv2dConfig::new([inputs, outputs], [3, 3])
        .with_stride([stride, stride])
        .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
        .init(device)
}

impl Residual {
    fn new(inputs: usize, outputs: usize, device: &Device) -> Self {
        let stride = outputs / inputs; // a block that doubles the channels halves the image
        let conv3 = Conv2dConfig::new([inputs, outputs], [1, 1]).with_stride([stride, stride]);
        Self {
            conv1: conv3x3(inputs, outputs, stride, device),
            conv2: conv3x3(outputs, outputs, 1, device),
            conv3: (stride > 1).then(|| conv3.init(device)),
            bn1: BatchNormConfig::new(outputs).init(device),
            bn2: BatchNormConfig::new(outputs).init(device),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let y = relu(self.bn1.forward(self.conv1.forward(x.clone())));
        let y = self.bn2.forward(self.conv2.forward(y));
        let x = match &self.conv3 {
            Some(conv3) => conv3.forward(x),
            None => x,
        };
        relu(y + x)
    }
}

#[derive(Module, Debug)]
struct Resnet18 {
    conv: Conv2d,
    bn: BatchNorm,
    blocks: Vec<Residual>,
    pool: AdaptiveAvgPool2d,
    fc: Linear,
}

impl Resnet18 {
    fn new(device: &Device) -> Self {
        let widths = [(64, 64), (64, 128), (128, 256), (256, 512)];
        let two = |(inputs, outputs)| {
            [
                Residual::new(inputs, outputs, device),
                Residual::new(outputs, outputs, device),
            ]
        };
        Self {
            conv: conv3x3(1, 64, 1, device),
            bn: BatchNormConfig::new(64).init(device),
            blocks: widths.into_iter().flat_map(two).collect(),
            pool: AdaptiveAvgPool2dConfig::new([1, 1]).init(),
            fc: LinearConfig::new(512, 10).init(device),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let x = relu(self.bn.forward(self.conv.forward(x)));
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        self.fc.forward(self.pool.forward(x).flatten(1, 3))
    }
}
