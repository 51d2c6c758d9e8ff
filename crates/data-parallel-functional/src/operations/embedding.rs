//! The embedding of tokens.

use crate::cpu::buffer::Buffer;
use crate::cpu::gradient::{At, Grad, Pass};
use crate::cpu::threads::for_each_chunk;
use crate::descriptors::args;
use crate::graph::value::Value;
use crate::kernel::{Cpu, Kernel, SelfContained};
use candle_core::{DType, Result, Tensor, bail};

/// Rows of a block.
const BLOCK: usize = 64;

/// The most tasks of the gradient.
const TASKS: usize = 32;

impl Value {
    /// A row of `weight` (V, C) for each token: u32 of any shape (…) → (…, C). In PyTorch: `nn.Embedding`.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let weight = Tensor::new(&[[0f32, 1.], [2., 3.], [4., 5.]], &Device::Cpu)?;
    /// let tokens = Value::new(&Tensor::new(&[2u32, 0], &Device::Cpu)?)?;
    /// assert_eq!(tokens.embedding(&weight)?.eval()?.to_vec2::<f32>()?, [[4., 5.], [0., 1.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where it is computed, not u32, or has a token that is too large, which a GPU does not check; and where `weight` does
    /// not fit.
    pub fn embedding(&self, weight: &Tensor) -> Result<Self> {
        let Some(tokens) = self.tensor() else {
            bail!("embedding: the tokens are computed; expected a tensor of u32")
        };
        args::check_float("embedding", "weight", weight.dtype())?;
        args::check_device("embedding", self.device(), "weight", weight.device())?;
        let op = Embedding::new(tokens, weight.dims())?;
        let dims = op.dims.clone();
        Self::new(weight)?.self_contained("embedding", op, &[], &dims)
    }
}

/// A row of a weight for each token.
#[derive(Clone)]
struct Embedding {
    /// Of u32, contiguous.
    tokens: Tensor,
    width: usize,
    /// The shape of the result.
    dims: Vec<usize>,
}

impl Embedding {
    /// For tokens of any shape, and a weight (V, C). On the CPU the tokens are checked.
    fn new(tokens: &Tensor, weight: &[usize]) -> Result<Self> {
        let &[rows, width] = weight else {
            bail!("embedding: weight has shape {weight:?}, expected (V, C)")
        };
        if tokens.dtype() != DType::U32 {
            let dtype = tokens.dtype().as_str();
            bail!("embedding: the tokens are {dtype}, expected u32; convert them with to_dtype")
        }
        let dims = [tokens.dims(), &[width]].concat();
        let mut tokens = tokens.flatten_all()?.contiguous()?.detach();
        if tokens.device().is_cpu() {
            let all = tokens.to_vec1::<u32>()?;
            if let Some(token) = all.iter().find(|token| **token as usize >= rows) {
                bail!("embedding: token {token} is too large, weight has {rows} rows")
            }
            tokens = Tensor::new(all, tokens.device())?; // what was checked is what is read
        }
        Ok(Self {
            tokens,
            width,
            dims,
        })
    }
}

impl SelfContained for Embedding {
    fn with_candle(&self, x: &[Tensor]) -> Result<Tensor> {
        x[0].embedding(&self.tokens)?.reshape(&self.dims[..])
    }
}

impl Kernel<Cpu> for Embedding {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let tokens = self.tokens.to_vec1::<u32>()?;
        let width = self.width.max(1);
        for_each_chunk(y, BLOCK * width, |i, y| {
            for (y, token) in y.chunks_exact_mut(width).zip(&tokens[i * BLOCK..]) {
                y.copy_from_slice(&x[0][*token as usize * width..][..width]);
            }
        });
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, _: At<'_, '_>, dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        if let Some((to, add)) = dx[0].target() {
            let tokens = self.tokens.to_vec1::<u32>()?;
            let width = self.width.max(1);
            // each task looks for its own rows among all tokens
            let rows = (to.len() / width).div_ceil(TASKS).max(1);
            for_each_chunk(to, rows * width, |i, to| {
                if !add {
                    to.fill(0.);
                }
                for (dy, token) in dy.chunks_exact(width).zip(&tokens) {
                    let row = (*token as usize).checked_sub(i * rows);
                    if let Some(row) = row.filter(|row| row * width < to.len()) {
                        let to = &mut to[row * width..][..width];
                        to.iter_mut().zip(dy).for_each(|(to, dy)| *to += dy);
                    }
                }
            });
        }
        Ok(())
    }
}
