//! Networks of attention and of recurrent layers, as public programs have them. `tests/pytorch/public_networks.py` has the same,
//! and a test compares the losses.

use data_parallel::candle_nn::Init;
use data_parallel::prelude::*;

const WIDTH: usize = 64;
const HEADS: usize = 4;

/// Llama: RMSNorm, rotary embeddings, two heads of keys and values for four of queries, SwiGLU. Characters (B, T) to
/// scores (B, T, 128).
pub fn llama(vb: VarBuilder<'_>) -> Result<impl Network + use<>> {
    let tokens = Embedding::new(128, WIDTH, vb.pp("embed_tokens"))?;
    let (cos, sin) = rotations(64, WIDTH / HEADS, 10_000.)?;
    let layer = |i: usize| llama_layer(vb.pp("layers").pp(i), &cos, &sin);
    let layers = (0..3).map(layer).collect::<Result<Vec<_>>>()?;
    let norm = RmsNorm::new(WIDTH, vb.pp("norm"))?;
    let head = Linear::without_bias(WIDTH, 128, vb.pp("lm_head"))?;
    Ok(move |x: &Value, train: bool| {
        let mut h = tokens.forward(x, train)?;
        for layer in &layers {
            h = layer.forward(&h, train)?;
        }
        head.forward(&norm.forward(&h, train)?, train)
    })
}

/// The cosines and sines of the angles by which pairs of a head's numbers turn, (T, head / 2) each.
fn rotations(places: u32, head: usize, base: f32) -> Result<(Tensor, Tensor)> {
    let frequency = |i: usize| base.powf(-2. * i as f32 / head as f32);
    let frequencies = Tensor::from_iter((0..head / 2).map(frequency), &Device::Cpu)?;
    let places = Tensor::arange(0, places, &Device::Cpu)?.to_dtype(DType::F32)?;
    let angles = places.unsqueeze(1)?.broadcast_mul(&frequencies)?;
    Ok((angles.cos()?, angles.sin()?))
}

fn llama_layer(vb: VarBuilder<'_>, cos: &Tensor, sin: &Tensor) -> Result<impl Network + use<>> {
    let cos = cos.clone();
    let sin = sin.clone();
    let kv_heads = HEADS / 2;
    let linear = |inputs, outputs, name| Linear::without_bias(inputs, outputs, vb.pp(name));
    let norm_1 = RmsNorm::new(WIDTH, vb.pp("input_layernorm"))?;
    let q = linear(WIDTH, WIDTH, "self_attn.q_proj")?;
    let k = linear(WIDTH, WIDTH / 2, "self_attn.k_proj")?;
    let v = linear(WIDTH, WIDTH / 2, "self_attn.v_proj")?;
    let o = linear(WIDTH, WIDTH, "self_attn.o_proj")?;
    let norm_2 = RmsNorm::new(WIDTH, vb.pp("post_attention_layernorm"))?;
    let gate = linear(WIDTH, 172, "mlp.gate_proj")?;
    let up = linear(WIDTH, 172, "mlp.up_proj")?;
    let down = linear(172, WIDTH, "mlp.down_proj")?;
    let attention = Attention::new(HEADS).kv_heads(kv_heads).causal();
    Ok(move |x: &Value, train: bool| {
        let h = norm_1.forward(x, train)?;
        let q = q.forward(&h, train)?.rotary(HEADS, &cos, &sin)?;
        let k = k.forward(&h, train)?.rotary(kv_heads, &cos, &sin)?;
        let v = v.forward(&h, train)?;
        let x = (x + &o.forward(&q.attention(&k, &v, &attention)?, train)?)?;
        let h = norm_2.forward(&x, train)?;
        let gate = gate.forward(&h, train)?.silu()?;
        &x + &down.forward(&(&gate * &up.forward(&h, train)?)?, train)?
    })
}

/// Vision transformer: patches of 4 × 4 and a class token. Images (B, 1, 28, 28) to scores (B, 10).
pub fn vit(vb: VarBuilder<'_>) -> Result<impl Network + use<>> {
    let small = Init::Randn {
        mean: 0.,
        stdev: 0.02,
    };
    let class = vb.get_with_hints((1, 1, WIDTH), "class", small)?;
    let places = vb.get_with_hints((50, WIDTH), "places", small)?;
    let patches = Conv2d::new(1, WIDTH, 4, vb.pp("patches"))?.stride(4);
    let block = |i: usize| vit_block(vb.pp("blocks").pp(i));
    let blocks = (0..4).map(block).collect::<Result<Vec<_>>>()?;
    let norm = LayerNorm::new(WIDTH, vb.pp("norm"))?;
    let head = Linear::new(WIDTH, 10, vb.pp("head"))?;
    Ok(move |x: &Value, train: bool| {
        let examples = x.dims()[0];
        let patches = patches.forward(&x.nhwc()?, train)?;
        let zeros = Tensor::zeros((examples, 1, WIDTH), DType::F32, x.device())?;
        let class = Value::new(&zeros)?.broadcast_add(&Value::new(&class)?)?; // one for each example
        let mut h = Value::cat(&[&class, &patches.reshape((examples, (), WIDTH))?], 1)?;
        h = h.broadcast_add(&Value::new(&places)?)?;
        for block in &blocks {
            h = block.forward(&h, train)?;
        }
        let class = norm.forward(&h, train)?.narrow(1, 0, 1)?;
        head.forward(&class.reshape((examples, WIDTH))?, train)
    })
}

fn vit_block(vb: VarBuilder<'_>) -> Result<impl Network + use<>> {
    let norm_1 = LayerNorm::new(WIDTH, vb.pp("norm_1"))?;
    let linear = |name| Linear::new(WIDTH, WIDTH, vb.pp(name));
    let q = linear("q")?;
    let k = linear("k")?;
    let v = linear("v")?;
    let o = linear("o")?;
    let norm_2 = LayerNorm::new(WIDTH, vb.pp("norm_2"))?;
    let up = Linear::new(WIDTH, 4 * WIDTH, vb.pp("up"))?;
    let down = Linear::new(4 * WIDTH, WIDTH, vb.pp("down"))?;
    Ok(move |x: &Value, train: bool| {
        let h = norm_1.forward(x, train)?;
        let k = k.forward(&h, train)?;
        let v = v.forward(&h, train)?;
        let h = q
            .forward(&h, train)?
            .attention(&k, &v, &Attention::new(HEADS))?;
        let x = (x + &o.forward(&h, train)?)?;
        let h = up.forward(&norm_2.forward(&x, train)?, train)?.gelu()?;
        &x + &down.forward(&h, train)?
    })
}

/// A recurrent network on characters (B, T), with scores (B, T, 128).
pub fn lstm(vb: VarBuilder<'_>) -> Result<Sequential> {
    Ok(Sequential::new()
        .add(Embedding::new(128, 128, vb.pp("characters"))?)
        .add(Lstm::new(128, 128, vb.pp("lstm"))?)
        .add(Linear::new(128, 128, vb.pp("scores"))?))
}
