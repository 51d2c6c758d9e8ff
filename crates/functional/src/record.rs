//! An expression in candle's graph: one operation, however many tensors it depends on.
//!
//! A candle operation has at most three inputs. So the tracked tensors come in by *gates*, one for
//! each, chained by a single element; the last gate is the input of the expression. On the way back
//! the expression leaves all gradients in a box, and each gate takes its tensor's from there.

use crate::buffer::Buffer;
use crate::gradients;
use crate::operation::Grad;
use crate::storage::{read, tensor};
use crate::tape::{Kept, Leaf, Tape, View};
use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor, bail};
use std::sync::{Arc, Mutex, MutexGuard};

/// A gradient for each leaf, between the expression's backward and the gates'.
type Gradients = Arc<Mutex<Vec<Option<Tensor>>>>;

/// Evaluates `tape`; the result depends on its tracked leaves, which `record` may forbid.
pub(crate) fn evaluate(tape: Tape, record: bool) -> Result<Tensor> {
    if tape.steps.is_empty() {
        // one tensor in another shape
        let leaf = &tape.leaves[0];
        let source = match record {
            true => leaf.source.clone(),
            false => leaf.source.detach(),
        };
        return source.reshape(&leaf.dims[..]);
    }
    let tracked = |leaf: &Leaf| record && leaf.source.track_op();
    let tracked: Vec<bool> = tape.leaves.iter().map(tracked).collect();
    let keep = tracked.contains(&true);
    let (y, kept) = tape.forward(keep)?;
    if !keep {
        return tensor(y, tape.dims());
    }
    let gradients = Gradients::default();
    let mut gate: Option<Tensor> = None;
    for (i, leaf) in tape.leaves.iter().enumerate().filter(|(i, _)| tracked[*i]) {
        let next = Gate {
            leaf: i,
            gradients: gradients.clone(),
        };
        gate = Some(match gate {
            None => leaf.source.apply_op1(next)?,
            Some(gate) => gate.apply_op2(&leaf.source, next)?,
        });
    }
    let gate = gate.expect("a tracked leaf has a gate");
    gate.apply_op1(Evaluated {
        result: Mutex::new(Some(y)),
        tape,
        tracked,
        kept,
        gradients,
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

struct Gate {
    leaf: usize,
    gradients: Gradients,
}

impl Gate {
    fn forward(&self) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![0.]), 1.into()))
    }

    fn gradient(&self) -> Option<Tensor> {
        lock(&self.gradients).get_mut(self.leaf)?.take()
    }
}

impl CustomOp1 for Gate {
    fn name(&self) -> &'static str {
        "gate"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        self.forward()
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> Result<Option<Tensor>> {
        Ok(self.gradient())
    }
}

impl CustomOp2 for Gate {
    fn name(&self) -> &'static str {
        "gate"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward()
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        d_gate: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        Ok((Some(d_gate.clone()), self.gradient()))
    }
}

/// A tape that ran forward.
struct Evaluated {
    /// Until candle asks for it.
    result: Mutex<Option<Vec<f32>>>,
    tape: Tape,
    tracked: Vec<bool>,
    kept: Kept,
    gradients: Gradients,
}

impl CustomOp1 for Evaluated {
    fn name(&self) -> &'static str {
        "expression"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        match lock(&self.result).take() {
            Some(result) => Ok((CpuStorage::F32(result), self.tape.dims().into())),
            None => bail!("an expression is evaluated once"),
        }
    }

    fn bwd(&self, gate: &Tensor, y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        let dy = read([dy], |[dy]| Buffer::copy_of(dy))?;
        let leaves = &self.tape.leaves;
        let gradients = gradients::with_flat(|flat| {
            let grad = |(leaf, tracked): (&Leaf, &bool)| match tracked {
                false => Grad::Unwanted,
                true => flat
                    .take(leaf.source.id())
                    .unwrap_or(Grad::Empty(leaf.source.elem_count())),
            };
            let grads = leaves.iter().zip(&self.tracked).map(grad).collect();
            let grads = read([y], |[y]| self.tape.backward(&self.kept, y, dy, grads))??;
            let gradient = |(leaf, grad)| own(leaf, grad);
            leaves
                .iter()
                .zip(grads)
                .map(gradient)
                .collect::<Result<_>>()
        })?;
        *lock(&self.gradients) = gradients;
        gate.zeros_like().map(Some)
    }
}

/// The gradient as a tensor; none where it went elsewhere.
fn own(leaf: &Leaf, grad: Grad<'_>) -> Result<Option<Tensor>> {
    let grad = match grad {
        Grad::Buffer(grad) => tensor(grad.to_vec(), leaf.data.shape())?,
        Grad::Empty(_) => leaf.data.zeros_like()?,
        Grad::Slice { to, written: false } => {
            to.fill(0.);
            return Ok(None);
        }
        Grad::Unwanted | Grad::Slice { .. } => return Ok(None),
    };
    Ok(Some(match leaf.view {
        View::Transposed => grad.t()?,
        _ => grad,
    }))
}
