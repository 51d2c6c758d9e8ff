//! Recurrent layers over a sequence: LSTM and GRU.
//!
//! One product makes the gates' parts of all inputs. Then a task takes some examples through all steps: what a step
//! computes stays in its cache, and tasks never wait for each other. The gradients of the weights are products over all
//! steps, at the end.

mod cell;

use super::activations::sigmoid_of;
use crate::cpu::buffer::Buffer;
use crate::cpu::gemm::{Matrix, multiply, product};
use crate::cpu::gradient::{At, Grad, Pass};
use crate::cpu::sums::column_sums;
use crate::cpu::threads::{for_each_chunk, for_each_chunk_with};
use crate::graph::value::Value;
use crate::kernel::{Cpu, Kernel, SelfContained};
use candle_core::{D, Result, Tensor, bail};
use cell::{Cell, Changed, Step, StepBack};

/// The fewest examples of a task, for which a product with the recurrent weight pays.
const EXAMPLES: usize = 8;

/// The most tasks.
const TASKS: usize = 16;

/// Rows of a block of a sum over all steps.
const BLOCK: usize = 64;

impl Value {
    /// A layer of long short-term memory over sequences (B, T, I), from a state of zeros: the hidden states (B, T, H). The
    /// weights are `weight_ih` (4·H, I) and `weight_hh` (4·H, H), the biases `bias_ih` and `bias_hh` (4·H,), in PyTorch's
    /// order of gates: input, forget, cell, output. In PyTorch: the first result of `nn.LSTM(…, batch_first=True)`.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu);
    /// let (x, weights, bias) = (zeros(&[2, 5, 3])?, [zeros(&[16, 3])?, zeros(&[16, 4])?], zeros(&[16])?);
    /// let y = Value::new(&x)?.lstm([&weights[0], &weights[1]], [&bias, &bias])?;
    /// assert_eq!(y.dims(), [2, 5, 4]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where a tensor is not f32, or the sizes do not match.
    pub fn lstm(&self, weights: [&Tensor; 2], biases: [&Tensor; 2]) -> Result<Self> {
        self.recurrent("lstm", Cell::Lstm, weights, biases)
    }

    /// A layer of gated recurrent units over sequences (B, T, I), from a state of zeros: the hidden states (B, T, H). The
    /// weights are `weight_ih` (3·H, I) and `weight_hh` (3·H, H), the biases `bias_ih` and `bias_hh` (3·H,), in PyTorch's
    /// order of gates: reset, update, new. In PyTorch: the first result of `nn.GRU(…, batch_first=True)`.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu);
    /// let (x, weights, bias) = (zeros(&[2, 5, 3])?, [zeros(&[12, 3])?, zeros(&[12, 4])?], zeros(&[12])?);
    /// let y = Value::new(&x)?.gru([&weights[0], &weights[1]], [&bias, &bias])?;
    /// assert_eq!(y.dims(), [2, 5, 4]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where a tensor is not f32, or the sizes do not match.
    pub fn gru(&self, weights: [&Tensor; 2], biases: [&Tensor; 2]) -> Result<Self> {
        self.recurrent("gru", Cell::Gru, weights, biases)
    }

    fn recurrent(
        &self,
        name: &str,
        cell: Cell,
        [weight_ih, weight_hh]: [&Tensor; 2],
        [bias_ih, bias_hh]: [&Tensor; 2],
    ) -> Result<Self> {
        let x = self.dims();
        let &[batch, steps, inputs] = x else {
            bail!("{name}: x has shape {x:?}, expected (B, T, I)")
        };
        let hidden = weight_hh.dims().last().copied().unwrap_or(0);
        let gates = cell.gates() * hidden;
        let expected = [
            vec![gates, inputs],
            vec![gates, hidden],
            vec![gates],
            vec![gates],
        ];
        let names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"];
        let all = [weight_ih, weight_hh, bias_ih, bias_hh];
        for ((of, tensor), expected) in names.iter().zip(all).zip(expected) {
            let shape = tensor.dims();
            if shape != expected || gates == 0 {
                bail!(
                    "{name}: {of} has shape {shape:?}, expected {expected:?} for x {x:?} and {hidden} hidden"
                )
            }
        }
        let op = Recurrent {
            cell,
            steps,
            inputs,
            hidden,
        };
        let others: Vec<_> = names.into_iter().zip(all).collect();
        self.self_contained(name, op, &others, &[batch, steps, hidden])
    }
}

/// A recurrent layer of some sizes.
#[derive(Debug, Clone, Copy)]
struct Recurrent {
    cell: Cell,
    steps: usize,
    inputs: usize,
    hidden: usize,
}

impl SelfContained for Recurrent {
    fn with_candle(&self, x: &[Tensor]) -> Result<Tensor> {
        let (batch, steps, _) = x[0].dims3()?;
        let linear = |x: &Tensor, weight: &Tensor, bias: &Tensor| {
            x.matmul(&weight.t()?)?.broadcast_add(bias)
        };
        let rows = x[0].reshape((batch * steps, self.inputs))?;
        let of_inputs = linear(&rows, &x[1], &x[3])?.reshape((batch, steps, ()))?;
        let mut h = Tensor::zeros((batch, self.hidden), x[0].dtype(), x[0].device())?;
        let mut c = h.clone();
        let mut states = Vec::new();
        for step in 0..steps {
            let of_input = of_inputs.narrow(1, step, 1)?.squeeze(1)?;
            let of_hidden = linear(&h, &x[2], &x[4])?;
            let gate = |of: &Tensor, i: usize| of.narrow(D::Minus1, i * self.hidden, self.hidden);
            let sum = |i: usize| gate(&of_input, i)? + gate(&of_hidden, i)?;
            if self.cell == Cell::Lstm {
                c = ((sigmoid_of(&sum(1)?)? * c)? + (sigmoid_of(&sum(0)?)? * sum(2)?.tanh()?)?)?;
                h = (sigmoid_of(&sum(3)?)? * c.tanh()?)?;
            } else {
                let reset = (sigmoid_of(&sum(0)?)? * gate(&of_hidden, 2)?)?;
                let new = (gate(&of_input, 2)? + reset)?.tanh()?;
                h = (&new + (sigmoid_of(&sum(1)?)? * (h - &new)?)?)?;
            }
            states.push(h.clone());
        }
        Tensor::stack(&states, 1)
    }
}

impl Recurrent {
    /// The numbers of all gates.
    fn gates(&self) -> usize {
        self.cell.gates() * self.hidden
    }

    /// Examples of a task.
    fn examples(&self, batch: usize) -> usize {
        batch.div_ceil(TASKS).max(EXAMPLES)
    }

    /// Takes some examples through all steps.
    #[inline(always)]
    fn forward_of(
        &self,
        x: &[&[f32]],
        of_inputs: &[f32],
        weight: &[f32],
        y: &mut [f32],
        kept: &mut [f32],
    ) {
        let h = self.hidden;
        let gates = self.gates();
        let each = self.cell.kept() * h;
        let examples = y.len() / (self.steps * h);
        let mut of_hidden = vec![0.; examples * gates];
        let zeros = vec![0.; h];
        for step in 0..self.steps {
            if step > 0 {
                let before = &y[(step - 1) * h..];
                let before = Matrix::strided(before, (examples, h), (self.steps * h, 1));
                multiply(&mut of_hidden, false, before, Matrix::new(weight, h, gates));
            }
            for (example, of_hidden) in of_hidden.chunks_exact(gates).enumerate() {
                let row = example * self.steps + step;
                let (before, to) = y.split_at_mut(row * h);
                let (kept_before, kept) = kept.split_at_mut(row * each);
                let cell = self.cell == Cell::Lstm && step > 0;
                let of_row = Step {
                    of_input: &of_inputs[row * gates..][..gates],
                    of_hidden,
                    bias_ih: x[3],
                    bias_hh: x[4],
                    hidden: if step > 0 {
                        &before[(row - 1) * h..]
                    } else {
                        &zeros
                    },
                    cell: if cell {
                        &kept_before[row * each - h..]
                    } else {
                        &zeros
                    },
                };
                if self.cell == Cell::Lstm {
                    of_row.lstm(&mut kept[..each], &mut to[..h]);
                } else {
                    of_row.gru(&mut kept[..each], &mut to[..h]);
                }
            }
        }
    }

    /// Takes the gradients of some examples, which begin at row `first` of all, back through all steps.
    #[inline(always)]
    fn backward_of(
        &self,
        at: &At<'_, '_>,
        first: usize,
        dy: &[f32],
        of_input: &mut [f32],
        of_hidden: &mut [f32],
    ) {
        let h = self.hidden;
        let gates = self.gates();
        let each = self.cell.kept() * h;
        let y = &at.y[first * h..];
        let kept = &at.saved[0][first * each..];
        let dy = &dy[first * h..];
        let examples = of_input.len() / (self.steps * gates);
        let zeros = vec![0.; h];
        let mut hidden = vec![0.; examples * h];
        let mut cell = vec![0.; examples * h];
        for step in (0..self.steps).rev() {
            let rows = hidden.chunks_exact_mut(h).zip(cell.chunks_exact_mut(h));
            for (example, (hidden, cell)) in rows.enumerate() {
                let row = example * self.steps + step;
                let has_cell = self.cell == Cell::Lstm && step > 0;
                let of_row = StepBack {
                    dy: &dy[row * h..][..h],
                    kept: &kept[row * each..][..each],
                    hidden: if step > 0 {
                        &y[(row - 1) * h..][..h]
                    } else {
                        &zeros
                    },
                    cell: if has_cell {
                        &kept[row * each - h..][..h]
                    } else {
                        &zeros
                    },
                };
                let changed = Changed {
                    of_input: &mut of_input[row * gates..][..gates],
                    of_hidden: &mut of_hidden[row * gates..][..gates],
                    hidden,
                    cell,
                };
                if self.cell == Cell::Lstm {
                    of_row.lstm(changed);
                } else {
                    of_row.gru(changed);
                }
            }
            let d_gates = &of_hidden[step * gates..];
            let d_gates = Matrix::strided(d_gates, (examples, gates), (self.steps * gates, 1));
            multiply(&mut hidden, true, d_gates, Matrix::new(at.x[2], gates, h));
        }
    }

    /// The hidden state before each step; zeros before the first one.
    fn before(&self, y: &[f32]) -> Buffer {
        let h = self.hidden;
        let mut before = Buffer::new(y.len());
        for_each_chunk(&mut before, self.steps * h, |i, before| {
            let y = &y[i * self.steps * h..][..self.steps * h];
            before[..h].fill(0.);
            before[h..].copy_from_slice(&y[..(self.steps - 1) * h]);
        });
        before
    }
}

/// A matrix of `columns` columns, with its columns as rows.
fn transposed(matrix: &[f32], columns: usize) -> Buffer {
    let rows = matrix.len() / columns;
    let mut to = Buffer::new(matrix.len());
    for_each_chunk(&mut to, rows, |column, to| {
        for (to, row) in to.iter_mut().zip(matrix.chunks_exact(columns)) {
            *to = row[column];
        }
    });
    to
}

impl Kernel<Cpu> for Recurrent {
    /// Saves what each step keeps.
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let h = self.hidden;
        let gates = self.gates();
        let rows = y.len() / h;
        let mut of_inputs = Buffer::new(rows * gates);
        let inputs = Matrix::new(x[0], rows, self.inputs);
        product(
            &mut of_inputs,
            false,
            inputs,
            Matrix::new(x[1], gates, self.inputs).t(),
        );
        let weight = transposed(x[2], h);
        let mut kept = Buffer::new(rows * self.cell.kept() * h);
        let of_task = self.examples(rows / self.steps.max(1)) * self.steps;
        for_each_chunk_with(
            y,
            of_task * h,
            [(&mut kept, of_task * self.cell.kept() * h)],
            #[inline(always)]
            |i, y, [kept]| self.forward_of(x, &of_inputs[i * of_task * gates..], &weight, y, kept),
        );
        Ok(vec![kept])
    }

    fn backward(&self, _: &Pass, at: At<'_, '_>, dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        let h = self.hidden;
        let gates = self.gates();
        let rows = dy.len() / h;
        let mut of_inputs = Buffer::new(rows * gates);
        let mut of_hidden = Buffer::new(rows * gates);
        let of_task = self.examples(rows / self.steps.max(1)) * self.steps;
        for_each_chunk_with(
            &mut of_inputs,
            of_task * gates,
            [(&mut of_hidden, of_task * gates)],
            #[inline(always)]
            |i, of_inputs, [of_hidden]| {
                self.backward_of(&at, i * of_task, &dy, of_inputs, of_hidden);
            },
        );
        let d_inputs = Matrix::new(&of_inputs, rows, gates);
        let d_hidden = Matrix::new(&of_hidden, rows, gates);
        if let Some((to, add)) = dx[0].target() {
            product(to, add, d_inputs, Matrix::new(at.x[1], gates, self.inputs));
        }
        if let Some((to, add)) = dx[1].target() {
            product(
                to,
                add,
                d_inputs.t(),
                Matrix::new(at.x[0], rows, self.inputs),
            );
        }
        if let Some((to, add)) = dx[2].target() {
            let before = self.before(at.y);
            product(to, add, d_hidden.t(), Matrix::new(&before, rows, h));
        }
        for (dx, d_gates) in dx[3..].iter_mut().zip([&of_inputs, &of_hidden]) {
            if dx.wanted() {
                dx.put(column_sums(d_gates, gates, BLOCK).into_iter());
            }
        }
        Ok(())
    }
}
