//! The embedding of tokens.

use candle_core::{Result, Tensor};
use candle_nn::{Init, VarBuilder};
use functional::{Network, Value};

use super::of_layer;

/// A vector for each token: u32 (…) to (…, features).
#[derive(Debug, Clone)]
pub struct Embedding {
    name: String,
    weight: Tensor,
}

impl Embedding {
    /// A layer for tokens below `tokens`, drawn from N(0, 1) under [`Initializer::Layers`](crate::Initializer), as
    /// PyTorch's.
    ///
    /// ```
    /// # use data_parallel::prelude::*;
    /// # let (varmap, cpu) = (candle_nn::VarMap::new(), Device::Cpu);
    /// # let vb = VarBuilder::from_varmap(&varmap, DType::F32, &cpu);
    /// let embedding = data_parallel::layers::Embedding::new(128, 64, vb)?;
    /// let tokens = Value::new(&Tensor::zeros((8, 32), DType::U32, &cpu)?)?;
    /// assert_eq!(embedding.forward(&tokens, true)?.dims(), [8, 32, 64]);
    /// # candle_core::Result::Ok(())
    /// ```
    pub fn new(tokens: usize, features: usize, vb: VarBuilder<'_>) -> Result<Self> {
        let mean = 0.0;
        let stdev = 1.0;
        Ok(Self {
            name: vb.prefix(),
            weight: vb.get_with_hints((tokens, features), "weight", Init::Randn { mean, stdev })?,
        })
    }
}

impl Network for Embedding {
    fn forward(&self, x: &Value, _train: bool) -> Result<Value> {
        of_layer(&self.name, x.embedding(&self.weight))
    }
}
