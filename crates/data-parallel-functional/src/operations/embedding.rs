//! The embedding of tokens.

use super::SelfContained;
use crate::cpu::buffer::Buffer;
use crate::cpu::gradient::{At, Grad, Pass};
use crate::cpu::threads::for_each_chunk;
use crate::kernel::{Cpu, Kernel};
use candle_core::{DType, Result, Tensor, bail};

/// Rows of a block.
const BLOCK: usize = 64;

/// The most tasks of the gradient.
const TASKS: usize = 32;

/// A row of a weight for each token.
#[derive(Clone)]
pub(crate) struct Embedding {
    /// Of u32, contiguous.
    pub tokens: Tensor,
    pub width: usize,
    /// The shape of the result.
    pub dims: Vec<usize>,
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
    fn on_cpu(&self) -> Box<dyn Kernel<Cpu>> {
        Box::new(self.clone())
    }

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
