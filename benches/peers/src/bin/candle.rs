//! The two networks as candle alone has them: candle's convolution, pooling and ReLU, the layers,
//! loss and optimizer of candle-nn, images (B, C, H, W) all the way.

use anyhow::Result;
use candle_core::{DType, Device, Module, ModuleT, Tensor};
use candle_nn::{BatchNorm, Conv2d, Conv2dConfig, Linear, Optimizer, SGD, VarBuilder, VarMap};
use peers::{Job, LR, Network};

type Net = Box<dyn Fn(&Tensor) -> candle_core::Result<Tensor>>;

fn main() -> Result<()> {
    let job = Job::from_args()?;
    let device = &Device::Cpu;
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, device);
    let net = match job.network {
        Network::Lenet => lenet(vb)?,
        Network::Resnet18 => resnet18(vb)?,
    };
    let x = Tensor::randn(0f32, 1.0, (job.batch, 1, 28, 28), device)?;
    let y: Vec<u32> = (0..job.batch as u32).map(|i| i * 7 % 10).collect();
    let y = Tensor::from_vec(y, job.batch, device)?;
    let mut sgd = SGD::new(variables.all_vars(), LR)?;
    job.serve("candle", "candle-core", || {
        let loss = candle_nn::loss::cross_entropy(&net(&x)?, &y)?;
        sgd.backward_step(&loss)?;
        Ok(loss.to_scalar()?)
    })
}

fn lenet(vb: VarBuilder<'_>) -> candle_core::Result<Net> {
    let conv1 = candle_nn::conv2d(1, 20, 3, Conv2dConfig::default(), vb.pp("conv1"))?;
    let conv2 = candle_nn::conv2d(20, 50, 5, Conv2dConfig::default(), vb.pp("conv2"))?;
    let fc1 = candle_nn::linear(800, 128, vb.pp("fc1"))?;
    let fc2 = candle_nn::linear(128, 10, vb.pp("fc2"))?;
    Ok(Box::new(move |x| {
        let x = conv1.forward(x)?.relu()?.avg_pool2d(2)?;
        let x = conv2.forward(&x)?.relu()?.avg_pool2d(2)?;
        fc2.forward(&fc1.forward(&x.flatten_from(1)?)?.relu()?)
    }))
}

struct Residual {
    conv1: Conv2d,
    conv2: Conv2d,
    conv3: Option<Conv2d>,
    bn1: BatchNorm,
    bn2: BatchNorm,
}

fn conv3x3(
    inputs: usize,
    outputs: usize,
    stride: usize,
    vb: VarBuilder<'_>,
) -> candle_core::Result<Conv2d> {
    let config = Conv2dConfig {
        padding: 1,
        stride,
        ..Default::default()
    };
    candle_nn::conv2d(inputs, outputs, 3, config, vb)
}

impl Residual {
    fn new(inputs: usize, outputs: usize, vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        let stride = outputs / inputs; // a block that doubles the channels halves the image
        let config = Conv2dConfig {
            stride,
            ..Default::default()
        };
        let conv3 = || candle_nn::conv2d(inputs, outputs, 1, config, vb.pp("conv3"));
        Ok(Self {
            conv1: conv3x3(inputs, outputs, stride, vb.pp("conv1"))?,
            conv2: conv3x3(outputs, outputs, 1, vb.pp("conv2"))?,
            conv3: (stride > 1).then(conv3).transpose()?,
            bn1: candle_nn::batch_norm(outputs, 1e-5, vb.pp("bn1"))?,
            bn2: candle_nn::batch_norm(outputs, 1e-5, vb.pp("bn2"))?,
        })
    }

    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let y = self.bn1.forward_t(&self.conv1.forward(x)?, true)?.relu()?;
        let y = self.bn2.forward_t(&self.conv2.forward(&y)?, true)?;
        let x = match &self.conv3 {
            Some(conv3) => &conv3.forward(x)?,
            None => x,
        };
        (y + x)?.relu()
    }
}

fn resnet18(vb: VarBuilder<'_>) -> candle_core::Result<Net> {
    let conv = conv3x3(1, 64, 1, vb.pp("0"))?;
    let bn = candle_nn::batch_norm(64, 1e-5, vb.pp("1"))?;
    let mut blocks = Vec::new();
    let widths = [(64, 64), (64, 128), (128, 256), (256, 512)];
    for (i, (inputs, outputs)) in widths.into_iter().enumerate() {
        let vb = vb.pp(format!("resnet_block{}", i + 1));
        blocks.push(Residual::new(inputs, outputs, vb.pp(0))?);
        blocks.push(Residual::new(outputs, outputs, vb.pp(1))?);
    }
    let fc: Linear = candle_nn::linear(512, 10, vb.pp("fc"))?;
    Ok(Box::new(move |x| {
        let mut x = bn.forward_t(&conv.forward(x)?, true)?.relu()?;
        for block in &blocks {
            x = block.forward(&x)?;
        }
        fc.forward(&x.flatten_from(2)?.mean(2)?)
    }))
}
