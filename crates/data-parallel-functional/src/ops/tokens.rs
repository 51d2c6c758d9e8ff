//! The operations of a transformer: their sizes, and each as a function of candle's operations, which a GPU runs.

use super::args;
use candle_core::{D, DType, Result, Tensor, bail};

/// x · Φ(x), where Φ is the distribution function of the normal distribution.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gelu;

/// A row of a weight for each token.
#[derive(Clone)]
pub(crate) struct Embedding {
    /// Of u32, contiguous.
    pub tokens: Tensor,
    pub width: usize,
}

impl Embedding {
    /// For tokens of any shape, and a weight (V, C). On the CPU the tokens are checked.
    pub fn new(tokens: &Tensor, weight: &[usize]) -> Result<Self> {
        let &[rows, width] = weight else {
            bail!("embedding: weight has shape {weight:?}, expected (V, C)")
        };
        if tokens.dtype() != DType::U32 {
            let dtype = tokens.dtype().as_str();
            bail!("embedding: the tokens are {dtype}, expected u32; convert them with to_dtype")
        }
        let mut tokens = tokens.flatten_all()?.contiguous()?.detach();
        if tokens.device().is_cpu() {
            let all = tokens.to_vec1::<u32>()?;
            if let Some(token) = all.iter().find(|token| **token as usize >= rows) {
                bail!("embedding: token {token} is too large, weight has {rows} rows")
            }
            tokens = Tensor::new(all, tokens.device())?; // what was checked is what is read
        }
        Ok(Self { tokens, width })
    }
}

/// Normalization of rows of so many features.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerNorm {
    pub features: usize,
}

/// What keeps a row of equal numbers from a division by zero; PyTorch's.
pub(crate) const EPS: f32 = 1e-5;

impl LayerNorm {
    /// From the shapes of x (…, C), weight and bias (C,).
    pub fn new([x, weight, bias]: [&[usize]; 3]) -> Result<Self> {
        let Some(features) = x.last().copied().filter(|features| *features > 0) else {
            bail!("layer_norm: x has shape {x:?}, expected (…, C)")
        };
        args::vector("layer_norm", "weight", weight, features, "features of x")?;
        args::vector("layer_norm", "bias", bias, features, "features of x")?;
        Ok(Self { features })
    }

    /// Of x, weight and bias.
    pub fn candle(x: &[Tensor]) -> Result<Tensor> {
        let centered = x[0].broadcast_sub(&x[0].mean_keepdim(D::Minus1)?)?;
        let variance = centered.sqr()?.mean_keepdim(D::Minus1)?;
        let y = centered.broadcast_div(&(variance + f64::from(EPS))?.sqrt()?)?;
        y.broadcast_mul(&x[1])?.broadcast_add(&x[2])
    }
}

/// Attention of each token to itself and to those before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attention {
    pub tokens: usize,
    /// Of all heads together.
    pub width: usize,
    pub heads: usize,
}

impl Attention {
    /// For queries, keys and values of shape (B, T, 3·C).
    pub fn new(x: &[usize], heads: usize) -> Result<Self> {
        match *x {
            [_, tokens, all] if heads > 0 && all % (3 * heads) == 0 && all > 0 => Ok(Self {
                tokens,
                width: all / 3,
                heads,
            }),
            _ => bail!(
                "causal_attention: x has shape {x:?}, expected (B, T, 3·C), where {heads} heads divide C"
            ),
        }
    }

    /// 1 / √(the width of a head).
    pub fn scale(&self) -> f32 {
        1. / ((self.width / self.heads) as f32).sqrt()
    }

    /// Of the queries, keys and values.
    pub fn candle(&self, x: &Tensor) -> Result<Tensor> {
        let (tokens, width, heads) = (self.tokens, self.width, self.heads);
        let batch = x.dim(0)?;
        let x = x
            .reshape((batch, tokens, 3, heads, width / heads))?
            .permute((2, 0, 3, 1, 4))?
            .contiguous()?;
        let scores = (x.get(0)?.matmul(&x.get(1)?.t()?)? * f64::from(self.scale()))?;
        let seen = Tensor::tril2(tokens, DType::F32, x.device())?;
        let scores = scores.broadcast_add(&((1. - seen)? * -1e9)?)?;
        let scores = scores
            .broadcast_sub(&scores.max_keepdim(D::Minus1)?.detach())?
            .exp()?;
        let weights = scores.broadcast_div(&scores.sum_keepdim(D::Minus1)?)?;
        let y = weights.matmul(&x.get(2)?)?.transpose(1, 2)?;
        y.reshape((batch, tokens, width))
    }
}
