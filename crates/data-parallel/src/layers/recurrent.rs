//! Recurrent layers.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use functional::{Network, Value};

use super::{evenly, of_layer};

/// Weights and biases under PyTorch's names.
#[derive(Debug, Clone)]
struct Parameters {
    name: String,
    /// Of the inputs, and of the hidden state.
    weights: [Tensor; 2],
    biases: [Tensor; 2],
}

impl Parameters {
    fn new(gates: usize, inputs: usize, hidden: usize, vb: VarBuilder<'_>) -> Result<Self> {
        let rows = gates * hidden;
        let weight = |name, columns| vb.get_with_hints((rows, columns), name, evenly(hidden));
        let bias = |name| vb.get_with_hints(rows, name, evenly(hidden));
        Ok(Self {
            name: vb.prefix(),
            weights: [
                weight("weight_ih_l0", inputs)?,
                weight("weight_hh_l0", hidden)?,
            ],
            biases: [bias("bias_ih_l0")?, bias("bias_hh_l0")?],
        })
    }
}

/// A layer of long short-term memory: sequences (B, T, inputs) to hidden states (B, T, hidden), from a state of zeros.
/// Several layers are several of these.
#[derive(Debug, Clone)]
pub struct Lstm(Parameters);

impl Lstm {
    /// A layer with PyTorch's names of a first layer, such as `weight_ih_l0`.
    ///
    /// ```
    /// # use data_parallel::prelude::*;
    /// # let (varmap, cpu) = (candle_nn::VarMap::new(), Device::Cpu);
    /// # let vb = VarBuilder::from_varmap(&varmap, DType::F32, &cpu);
    /// let lstm = data_parallel::layers::Lstm::new(32, 64, vb)?;
    /// let states = lstm.forward(&Value::new(&Tensor::zeros((4, 20, 32), DType::F32, &cpu)?)?, true)?;
    /// let last = states.narrow(1, 19, 1)?.reshape((4, 64))?;
    /// # assert_eq!(last.dims(), [4, 64]);
    /// # candle_core::Result::Ok(())
    /// ```
    pub fn new(inputs: usize, hidden: usize, vb: VarBuilder<'_>) -> Result<Self> {
        Ok(Self(Parameters::new(4, inputs, hidden, vb)?))
    }
}

impl Network for Lstm {
    fn forward(&self, x: &Value, _train: bool) -> Result<Value> {
        let Parameters {
            name,
            weights,
            biases,
        } = &self.0;
        of_layer(name, x.lstm(weights.each_ref(), biases.each_ref()))
    }
}

/// A layer of gated recurrent units: sequences (B, T, inputs) to hidden states (B, T, hidden), from a state of zeros.
/// Several layers are several of these.
#[derive(Debug, Clone)]
pub struct Gru(Parameters);

impl Gru {
    /// A layer with PyTorch's names of a first layer, such as `weight_ih_l0`.
    ///
    /// ```
    /// # use data_parallel::prelude::*;
    /// # let (varmap, cpu) = (candle_nn::VarMap::new(), Device::Cpu);
    /// # let vb = VarBuilder::from_varmap(&varmap, DType::F32, &cpu);
    /// let gru = data_parallel::layers::Gru::new(32, 64, vb)?;
    /// let states = gru.forward(&Value::new(&Tensor::zeros((4, 20, 32), DType::F32, &cpu)?)?, true)?;
    /// assert_eq!(states.dims(), [4, 20, 64]);
    /// # candle_core::Result::Ok(())
    /// ```
    pub fn new(inputs: usize, hidden: usize, vb: VarBuilder<'_>) -> Result<Self> {
        Ok(Self(Parameters::new(3, inputs, hidden, vb)?))
    }
}

impl Network for Gru {
    fn forward(&self, x: &Value, _train: bool) -> Result<Value> {
        let Parameters {
            name,
            weights,
            biases,
        } = &self.0;
        of_layer(name, x.gru(weights.each_ref(), biases.each_ref()))
    }
}
