//! Which keys a token sees.

use candle_core::{DType, Result, Tensor, bail};
use std::sync::Arc;

/// The keys that each token sees.
#[derive(Debug, Clone)]
pub(super) struct Mask {
    /// (B, T, S), of which the first two sizes may be 1.
    pub(super) tensor: Tensor,
    seen: Arc<[u8]>,
    examples: usize,
    tokens: usize,
    keys: usize,
}

impl Mask {
    pub(super) fn new(mask: &Tensor, tokens: usize, keys: usize) -> Result<Self> {
        let shape = mask.dims();
        match *shape {
            [examples, rows, columns] if [1, tokens].contains(&rows) && columns == keys => {
                if mask.dtype() != DType::U8 {
                    bail!(
                        "attention: the mask is {}, expected u8",
                        mask.dtype().as_str()
                    )
                }
                let seen: Vec<u8> = mask.flatten_all()?.to_vec1()?;
                Ok(Self {
                    tensor: mask.clone(),
                    seen: seen.into(),
                    examples,
                    tokens: rows,
                    keys,
                })
            }
            _ => bail!("attention: the mask has shape {shape:?}, expected (B, {tokens}, {keys})"),
        }
    }

    pub(super) fn check(&self, batch: usize) -> Result<()> {
        if ![1, batch].contains(&self.examples) {
            bail!(
                "attention: the mask is of {} examples, x of {batch}",
                self.examples
            )
        }
        Ok(())
    }

    /// For each key, whether a token of an example sees it.
    #[inline(always)]
    pub(super) fn of_token(&self, example: usize, token: usize) -> &[u8] {
        let example = if self.examples == 1 { 0 } else { example };
        let token = if self.tokens == 1 { 0 } else { token };
        &self.seen[(example * self.tokens + token) * self.keys..][..self.keys]
    }
}
