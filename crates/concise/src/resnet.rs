//! ResNet-18 for small images, as in the section's "A Toy Network".

use candle_core::Result;
use candle_nn::VarBuilder;
use functional::{Network, Value};

use data_parallel::layers::{BatchNorm2d, Conv2d, Linear};

/// A residual block ("Residual Networks (ResNet)"): two 3×3 convolutions with batch norm, and
/// the input added to their output; where the block changes the shape, through a 1×1
/// convolution.
#[derive(Debug, Clone)]
pub struct Residual {
    conv1: Conv2d,
    conv2: Conv2d,
    conv3: Option<Conv2d>,
    bn1: BatchNorm2d,
    bn2: BatchNorm2d,
}

impl Residual {
    /// A block from `inputs` to `outputs` channels.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use data_parallel_functional::{Network, Value};
    /// # use candle_nn::{VarBuilder, VarMap};
    /// # let (varmap, cpu) = (VarMap::new(), Device::Cpu);
    /// # let vb = VarBuilder::from_varmap(&varmap, DType::F32, &cpu);
    /// let block = concise::Residual::new(3, 6, true, 2, vb)?; // the book's example
    /// let x = Value::new(&Tensor::zeros((4, 6, 6, 3), DType::F32, &cpu)?)?;
    /// assert_eq!(block.forward(&x, false)?.dims(), [4, 3, 3, 6]);
    /// # candle_core::Result::Ok(())
    /// ```
    pub fn new(
        inputs: usize,
        outputs: usize,
        use_1x1conv: bool,
        strides: usize,
        vb: VarBuilder<'_>,
    ) -> Result<Self> {
        let conv1 = Conv2d::new(inputs, outputs, 3, vb.pp("conv1"))?;
        let conv2 = Conv2d::new(outputs, outputs, 3, vb.pp("conv2"))?;
        let conv3 = || Conv2d::new(inputs, outputs, 1, vb.pp("conv3"));
        let conv3 = use_1x1conv.then(conv3).transpose()?;
        Ok(Self {
            conv1: conv1.padding(1).stride(strides),
            conv2: conv2.padding(1),
            conv3: conv3.map(|conv| conv.stride(strides)),
            bn1: BatchNorm2d::new(outputs, vb.pp("bn1"))?,
            bn2: BatchNorm2d::new(outputs, vb.pp("bn2"))?,
        })
    }
}

impl Network for Residual {
    fn forward(&self, x: &Value, train: bool) -> Result<Value> {
        let y = self.conv1.forward(x, train)?;
        let y = self.bn1.forward(&y, train)?.relu()?;
        let y = self.conv2.forward(&y, train)?;
        let y = self.bn2.forward(&y, train)?;
        let x = match &self.conv3 {
            Some(conv3) => conv3.forward(x, train)?,
            None => x.clone(),
        };
        (y + x)?.relu()
    }
}

/// A slightly modified ResNet-18: images (B, 1, 28, 28) to (B, classes).
#[derive(Debug, Clone)]
pub struct Resnet18 {
    conv: Conv2d,
    bn: BatchNorm2d,
    blocks: Vec<Residual>,
    fc: Linear,
}

/// Builds ResNet-18 with `num_classes` outputs: a smaller convolution kernel, stride and padding
/// at the beginning than the original, and no max-pooling layer. 11,175,818 parameters for 10
/// classes.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// use data_parallel_functional::{Network, Value};
///
/// let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
/// let net = concise::resnet18(10, vb)?;
/// let x = Value::new(&Tensor::zeros((1, 1, 28, 28), DType::F32, &Device::Cpu)?)?;
/// assert_eq!(net.forward(&x, false)?.dims(), [1, 10]);
/// # candle_core::Result::Ok(())
/// ```
pub fn resnet18(num_classes: usize, vb: VarBuilder<'_>) -> Result<Resnet18> {
    let conv = Conv2d::new(1, 64, 3, vb.pp("0"))?.padding(1);
    let bn = BatchNorm2d::new(64, vb.pp("1"))?;
    let mut blocks = Vec::new();
    for (i, channels) in [64, 128, 256, 512].into_iter().enumerate() {
        let vb = vb.pp(format!("resnet_block{}", i + 1));
        let shrinks = i > 0;
        let inputs = if shrinks { channels / 2 } else { channels };
        let strides = if shrinks { 2 } else { 1 };
        blocks.push(Residual::new(inputs, channels, shrinks, strides, vb.pp(0))?);
        blocks.push(Residual::new(channels, channels, false, 1, vb.pp(1))?);
    }
    let fc = Linear::new(512, num_classes, vb.pp("fc.1"))?;
    Ok(Resnet18 {
        conv,
        bn,
        blocks,
        fc,
    })
}

impl Network for Resnet18 {
    fn forward(&self, x: &Value, train: bool) -> Result<Value> {
        let x = self.conv.forward(&x.nhwc()?, train)?; // (B, 28, 28, 64)
        let mut x = self.bn.forward(&x, train)?.relu()?;
        for block in &self.blocks {
            x = block.forward(&x, train)?; // after the last block (B, 4, 4, 512)
        }
        self.fc.forward(&x.global_avg_pool2d()?, train)
    }
}
