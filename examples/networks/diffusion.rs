//! U-Nets of diffusion models, as public programs have them. `tests/pytorch/public_networks.py` has the same,
//! and a test compares the losses.

use data_parallel::candle_core;
use data_parallel::prelude::*;

/// A U-Net that learns the noise in images (B, 1, 28, 28), which are its targets too: group norms, SiLU, and transposed
/// convolutions on the way up. It has 32, 64 and 128 channels.
pub fn unet(vb: VarBuilder<'_>) -> Result<impl Network + use<>> {
    let conv = |inputs, outputs, name| Conv2d::new(inputs, outputs, 3, vb.pp(name));
    let stem = conv(1, 32, "stem")?.padding(1);
    let down_1 = ResBlock::new(32, 32, vb.pp("down_1"))?;
    let shrink_1 = conv(32, 64, "shrink_1")?.stride(2).padding(1);
    let down_2 = ResBlock::new(64, 64, vb.pp("down_2"))?;
    let shrink_2 = conv(64, 128, "shrink_2")?.stride(2).padding(1);
    let middle = ResBlock::new(128, 128, vb.pp("middle"))?;
    let grow_2 = ConvTranspose2d::new(128, 64, 2, vb.pp("grow_2"))?.stride(2);
    let up_2 = ResBlock::new(128, 64, vb.pp("up_2"))?;
    let grow_1 = ConvTranspose2d::new(64, 32, 2, vb.pp("grow_1"))?.stride(2);
    let up_1 = ResBlock::new(64, 32, vb.pp("up_1"))?;
    let norm = GroupNorm::new(8, 32, vb.pp("norm"))?;
    let out = conv(32, 1, "out")?.padding(1);
    let time = TimeEmbedding::new(vb.pp("time"))?;
    Ok(move |x: &Value, train: bool| {
        let time = time.of(x, train)?;
        let h = stem.forward(&x.nhwc()?, train)?;
        let h1 = down_1.forward(&h, &time, train)?;
        let h2 = down_2.forward(&shrink_1.forward(&h1, train)?, &time, train)?;
        let h = middle.forward(&shrink_2.forward(&h2, train)?, &time, train)?;
        let h = Value::cat(&[&grow_2.forward(&h, train)?, &h2], 3)?;
        let h = up_2.forward(&h, &time, train)?;
        let h = Value::cat(&[&grow_1.forward(&h, train)?, &h1], 3)?;
        let h = up_1.forward(&h, &time, train)?;
        out.forward(&norm.forward(&h, train)?.silu()?, train)
    })
}

/// A small U-Net of the kind that Stable Diffusion has: 32 and 64 channels, with attention among all pixels, and with
/// attention to a context of four vectors, at 28 × 28.
pub fn sd_unet(vb: VarBuilder<'_>) -> Result<impl Network + use<>> {
    let conv = |inputs, outputs, name| Conv2d::new(inputs, outputs, 3, vb.pp(name));
    let stem = conv(1, 32, "stem")?.padding(1);
    let down_1 = ResBlock::new(32, 32, vb.pp("down_1"))?;
    let look_1 = SpatialTransformer::new(32, vb.pp("look_1"))?;
    let shrink = conv(32, 32, "shrink")?.stride(2).padding(1);
    let down_2 = ResBlock::new(32, 64, vb.pp("down_2"))?;
    let middle_1 = ResBlock::new(64, 64, vb.pp("middle_1"))?;
    let look_middle = SpatialTransformer::new(64, vb.pp("look_middle"))?;
    let middle_2 = ResBlock::new(64, 64, vb.pp("middle_2"))?;
    let up_2 = ResBlock::new(128, 64, vb.pp("up_2"))?;
    let grow = conv(64, 64, "grow")?.padding(1);
    let up_1 = ResBlock::new(96, 32, vb.pp("up_1"))?;
    let look_2 = SpatialTransformer::new(32, vb.pp("look_2"))?;
    let norm = GroupNorm::new(8, 32, vb.pp("norm"))?;
    let out = conv(32, 1, "out")?.padding(1);
    let time = TimeEmbedding::new(vb.pp("time"))?;
    Ok(move |x: &Value, train: bool| {
        let time = time.of(x, train)?;
        let h = stem.forward(&x.nhwc()?, train)?;
        let h1 = look_1.forward(&down_1.forward(&h, &time, train)?, train)?;
        let h2 = down_2.forward(&shrink.forward(&h1, train)?, &time, train)?;
        let h = middle_1.forward(&h2, &time, train)?;
        let h = middle_2.forward(&look_middle.forward(&h, train)?, &time, train)?;
        let h = up_2.forward(&Value::cat(&[&h, &h2], 3)?, &time, train)?;
        let h = grow.forward(&Upsample::nearest(2).forward(&h, train)?, train)?;
        let h = up_1.forward(&Value::cat(&[&h, &h1], 3)?, &time, train)?;
        let h = look_2.forward(&h, train)?;
        out.forward(&norm.forward(&h, train)?.silu()?, train)
    })
}

const TIME: usize = 128;
const MOMENT: f32 = 3.;

/// A vector (B, TIME) for the moment of the diffusion. Here it is the same for all examples; in a training it comes with
/// them, as a second input.
struct TimeEmbedding {
    up: Linear,
    down: Linear,
}

impl TimeEmbedding {
    fn new(vb: VarBuilder<'_>) -> Result<Self> {
        Ok(Self {
            up: Linear::new(32, TIME, vb.pp("up"))?,
            down: Linear::new(TIME, TIME, vb.pp("down"))?,
        })
    }

    fn of(&self, x: &Value, train: bool) -> Result<Value> {
        let frequency = |i: u32| 10_000f32.powf(-(i as f32) / 16.);
        let angles = Tensor::from_iter((0..16).map(|i| MOMENT * frequency(i)), x.device())?;
        let waves = Tensor::cat(&[angles.sin()?, angles.cos()?], 0)?;
        let of_each = waves.expand((x.dims()[0], 32))?.contiguous()?;
        let h = self.up.forward(&Value::new(&of_each)?, train)?.silu()?;
        self.down.forward(&h, train)
    }
}

/// Two convolutions behind group norms, with the time between them, around which the input goes.
struct ResBlock {
    norm_1: GroupNorm,
    conv_1: Conv2d,
    time: Linear,
    norm_2: GroupNorm,
    conv_2: Conv2d,
    shortcut: Option<Conv2d>,
}

impl ResBlock {
    fn new(inputs: usize, outputs: usize, vb: VarBuilder<'_>) -> Result<Self> {
        Ok(Self {
            norm_1: GroupNorm::new(8, inputs, vb.pp("norm_1"))?,
            conv_1: Conv2d::new(inputs, outputs, 3, vb.pp("conv_1"))?.padding(1),
            time: Linear::new(TIME, outputs, vb.pp("time"))?,
            norm_2: GroupNorm::new(8, outputs, vb.pp("norm_2"))?,
            conv_2: Conv2d::new(outputs, outputs, 3, vb.pp("conv_2"))?.padding(1),
            shortcut: if inputs == outputs {
                None
            } else {
                Some(Conv2d::new(inputs, outputs, 1, vb.pp("shortcut"))?)
            },
        })
    }

    fn forward(&self, x: &Value, time: &Value, train: bool) -> Result<Value> {
        let h = self.norm_1.forward(x, train)?.silu()?;
        let h = self.conv_1.forward(&h, train)?;
        let time = self.time.forward(&time.silu()?, train)?;
        let h = h.broadcast_add(&time.reshape((time.dims()[0], 1, 1, ()))?)?;
        let h = self.norm_2.forward(&h, train)?.silu()?;
        let h = self.conv_2.forward(&h, train)?;
        match &self.shortcut {
            Some(shortcut) => &shortcut.forward(x, train)? + &h,
            None => x + &h,
        }
    }
}

/// Attention among the pixels, attention to a context, and a gated network, each added to what comes in.
struct SpatialTransformer {
    norm: GroupNorm,
    project_in: Linear,
    norm_1: LayerNorm,
    own: CrossAttention,
    norm_2: LayerNorm,
    context: CrossAttention,
    norm_3: LayerNorm,
    up: Linear,
    down: Linear,
    project_out: Linear,
}

impl SpatialTransformer {
    fn new(channels: usize, vb: VarBuilder<'_>) -> Result<Self> {
        let linear = |inputs, outputs, name| Linear::new(inputs, outputs, vb.pp(name));
        let norm = |name| LayerNorm::new(channels, vb.pp(name));
        Ok(Self {
            norm: GroupNorm::new(8, channels, vb.pp("norm"))?,
            project_in: linear(channels, channels, "project_in")?,
            norm_1: norm("norm_1")?,
            own: CrossAttention::new(channels, channels, vb.pp("own"))?,
            norm_2: norm("norm_2")?,
            context: CrossAttention::new(channels, CONTEXT, vb.pp("context"))?,
            norm_3: norm("norm_3")?,
            up: linear(channels, 8 * channels, "up")?,
            down: linear(4 * channels, channels, "down")?,
            project_out: linear(channels, channels, "project_out")?,
        })
    }

    fn forward(&self, x: &Value, train: bool) -> Result<Value> {
        let &[examples, rows, columns, channels] = x.dims() else {
            candle_core::bail!("expected images, got {:?}", x.dims())
        };
        let numbers = Tensor::arange(0f32, 4. * CONTEXT as f32, x.device())?;
        let vectors = (numbers / 64.)?.reshape((1, 4, CONTEXT))?;
        let context = vectors.expand((examples, 4, CONTEXT))?.contiguous()?;
        let pixels = (examples, rows * columns, channels);
        let h = self.norm.forward(x, train)?.reshape(pixels)?;
        let h = self.project_in.forward(&h, train)?;
        let own = self.norm_1.forward(&h, train)?;
        let h = (&h + &self.own.forward(&own, &own, train)?)?;
        let own = self.norm_2.forward(&h, train)?;
        let h = (&h + &self.context.forward(&own, &Value::new(&context)?, train)?)?;
        let gated = self.up.forward(&self.norm_3.forward(&h, train)?, train)?;
        let gate = gated.narrow(2, 4 * channels, 4 * channels)?.gelu()?;
        let gated = (&gated.narrow(2, 0, 4 * channels)? * &gate)?;
        let h = (&h + &self.down.forward(&gated, train)?)?;
        let h = self.project_out.forward(&h, train)?;
        x + &h.reshape((examples, rows, columns, channels))?
    }
}

/// The numbers in a vector of the context.
const CONTEXT: usize = 32;

/// Attention with eight heads to a sequence with `context` features.
struct CrossAttention {
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
}

impl CrossAttention {
    fn new(channels: usize, context: usize, vb: VarBuilder<'_>) -> Result<Self> {
        Ok(Self {
            q: Linear::without_bias(channels, channels, vb.pp("q"))?,
            k: Linear::without_bias(context, channels, vb.pp("k"))?,
            v: Linear::without_bias(context, channels, vb.pp("v"))?,
            o: Linear::new(channels, channels, vb.pp("o"))?,
        })
    }

    fn forward(&self, x: &Value, context: &Value, train: bool) -> Result<Value> {
        let k = self.k.forward(context, train)?;
        let v = self.v.forward(context, train)?;
        let h = self
            .q
            .forward(x, train)?
            .attention(&k, &v, &Attention::new(8))?;
        self.o.forward(&h, train)
    }
}
