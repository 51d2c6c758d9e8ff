//! A step of one example, forward and backward.

use crate::cpu::exp::{sigmoid, tanh};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Cell {
    Lstm,
    Gru,
}

impl Cell {
    pub(super) fn gates(self) -> usize {
        match self {
            Self::Lstm => 4,
            Self::Gru => 3,
        }
    }

    /// Numbers that a step keeps for backward, in proportion to the hidden ones: of an LSTM the gates and the cell, of a GRU
    /// the gates and the hidden part of the new one.
    pub(super) fn kept(self) -> usize {
        match self {
            Self::Lstm => 5,
            Self::Gru => 4,
        }
    }
}

/// A row of a step forward.
pub(super) struct Step<'a> {
    /// The parts of the gates of the input, and of the hidden state before.
    pub of_input: &'a [f32],
    pub of_hidden: &'a [f32],
    pub bias_ih: &'a [f32],
    pub bias_hh: &'a [f32],
    /// The hidden state and the cell before; zeros in the first step.
    pub hidden: &'a [f32],
    pub cell: &'a [f32],
}

impl Step<'_> {
    /// The sum of both parts of gate number `i` of all.
    #[inline(always)]
    fn gate(&self, i: usize) -> f32 {
        self.of_input[i] + self.bias_ih[i] + (self.of_hidden[i] + self.bias_hh[i])
    }

    /// Writes what is kept and the hidden state.
    #[inline(always)]
    pub(super) fn lstm(&self, kept: &mut [f32], to: &mut [f32]) {
        let h = to.len();
        let (gates, cell) = kept.split_at_mut(4 * h);
        for (k, gate) in gates.iter_mut().enumerate() {
            *gate = self.gate(k);
        }
        let (sigmoids, others) = gates.split_at_mut(2 * h);
        let (new, output) = others.split_at_mut(h);
        sigmoids.iter_mut().for_each(|gate| *gate = sigmoid(*gate));
        new.iter_mut().for_each(|gate| *gate = tanh(*gate));
        output.iter_mut().for_each(|gate| *gate = sigmoid(*gate));
        for k in 0..h {
            cell[k] = gates[h + k] * self.cell[k] + gates[k] * gates[2 * h + k];
            to[k] = gates[3 * h + k] * tanh(cell[k]);
        }
    }

    /// Writes what is kept and the hidden state.
    #[inline(always)]
    pub(super) fn gru(&self, kept: &mut [f32], to: &mut [f32]) {
        let h = to.len();
        let (gates, of_hidden) = kept.split_at_mut(3 * h);
        for (k, gate) in gates[..2 * h].iter_mut().enumerate() {
            *gate = sigmoid(self.gate(k));
        }
        for k in 0..h {
            let n = 2 * h + k;
            of_hidden[k] = self.of_hidden[n] + self.bias_hh[n];
            gates[n] = tanh(self.of_input[n] + self.bias_ih[n] + gates[k] * of_hidden[k]);
            to[k] = gates[n] + gates[h + k] * (self.hidden[k] - gates[n]);
        }
    }
}

/// A row of a step backward.
pub(super) struct StepBack<'a> {
    /// The gradient of the hidden state by what comes after this layer.
    pub dy: &'a [f32],
    pub kept: &'a [f32],
    /// The hidden state and the cell before; zeros in the first step.
    pub hidden: &'a [f32],
    pub cell: &'a [f32],
}

/// The numbers that a row of a step backward changes.
pub(super) struct Changed<'a> {
    /// The gradients of the gates by the input, and by the hidden state before.
    pub of_input: &'a mut [f32],
    pub of_hidden: &'a mut [f32],
    /// The gradient of the hidden state by later steps; then that of the one before, as far as it goes through no gate.
    pub hidden: &'a mut [f32],
    /// The gradient of the cell by later steps; then that of the one before.
    pub cell: &'a mut [f32],
}

impl StepBack<'_> {
    #[inline(always)]
    pub(super) fn lstm(&self, to: Changed<'_>) {
        let h = self.dy.len();
        let (gates, cell) = self.kept.split_at(4 * h);
        for k in 0..h {
            let [i, f, g, o] = [0, 1, 2, 3].map(|gate| gates[gate * h + k]);
            let d_hidden = self.dy[k] + to.hidden[k];
            let out = tanh(cell[k]);
            let d_cell = to.cell[k] + d_hidden * o * (1. - out * out);
            to.of_input[k] = d_cell * g * i * (1. - i);
            to.of_input[h + k] = d_cell * self.cell[k] * f * (1. - f);
            to.of_input[2 * h + k] = d_cell * i * (1. - g * g);
            to.of_input[3 * h + k] = d_hidden * out * o * (1. - o);
            to.cell[k] = d_cell * f;
            to.hidden[k] = 0.;
        }
        to.of_hidden.copy_from_slice(to.of_input);
    }

    #[inline(always)]
    pub(super) fn gru(&self, to: Changed<'_>) {
        let h = self.dy.len();
        let (gates, of_hidden) = self.kept.split_at(3 * h);
        for k in 0..h {
            let [r, z, n] = [0, 1, 2].map(|gate| gates[gate * h + k]);
            let d_hidden = self.dy[k] + to.hidden[k];
            let d_new = d_hidden * (1. - z) * (1. - n * n);
            to.of_input[k] = d_new * of_hidden[k] * r * (1. - r);
            to.of_input[h + k] = d_hidden * (self.hidden[k] - n) * z * (1. - z);
            to.of_input[2 * h + k] = d_new;
            to.hidden[k] = d_hidden * z;
        }
        to.of_hidden.copy_from_slice(to.of_input);
        for (d, reset) in to.of_hidden[2 * h..].iter_mut().zip(gates) {
            *d *= reset;
        }
    }
}
