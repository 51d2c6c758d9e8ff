//! An expression in candle's graph: one operation, however many tensors it depends on.
//!
//! A candle operation has at most three inputs. So the tracked tensors come in by *gates*, each for two
//! or three of them, chained by a single element; the last gate is the input of the expression. On the way
//! back the expression leaves all gradients in a box, and each gate takes its tensors' from there.

use crate::buffer::Buffer;
use crate::chain::{self, Link, Next};
use crate::layer::{Backend, Cpu};
use crate::operation::Grad;
use crate::places::{self, Place};
use crate::storage::{read, tensor};
use crate::tape::{Kept, Leaf, Tape, View};
use candle_core::op::BackpropOp;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, Layout, Result, Shape, Storage,
    Tensor, bail,
};
use std::sync::{Arc, Mutex, MutexGuard};

/// A backend with tapes that candle's graph can hold.
pub(crate) trait Runs: Backend + Sized + 'static {
    /// What a forward pass leaves for backward.
    type Kept: Send + Sync;

    /// The memory of the result; where not `keep`, nothing is left for backward.
    fn forward(tape: &Tape<Self>, keep: bool) -> Result<(Storage, Self::Kept)>;

    /// The gradients of those leaves that are `tracked`, from the result `y` and its gradient; none where
    /// it went elsewhere.
    fn backward(ran: &Evaluated<Self>, y: &Tensor, dy: &Tensor) -> Result<Vec<Option<Tensor>>>;
}

impl Runs for Cpu {
    type Kept = Kept;

    fn forward(tape: &Tape<Self>, keep: bool) -> Result<(Storage, Kept)> {
        let (y, kept) = tape.forward(keep)?;
        Ok((Storage::Cpu(CpuStorage::F32(y)), kept))
    }

    fn backward(ran: &Evaluated<Self>, y: &Tensor, dy: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let dy = read([dy], |[dy]| Buffer::copy_of(dy))?;
        let grads = (0..ran.tape.leaves.len()).map(|i| {
            let len = ran.tape.leaves[i].source.elem_count();
            Ok(match (ran.tracked[i], ran.place(i)?) {
                (false, _) => Grad::Unwanted,
                (true, None) => Grad::Empty(len),
                (true, Some(place)) => Grad::Placed(place, len),
            })
        });
        let grads = grads.collect::<Result<_>>()?;
        let grads = read([y], |[y]| ran.tape.backward(&ran.kept, y, dy, grads))??;
        let own = ran.tape.leaves.iter().zip(grads);
        own.map(|(leaf, grad)| own_gradient(leaf, grad)).collect()
    }
}

/// The gradient as a tensor; none where it went elsewhere.
fn own_gradient(leaf: &Leaf, grad: Grad<'_>) -> Result<Option<Tensor>> {
    let grad = match grad {
        Grad::Buffer(grad) => tensor(grad.to_vec(), leaf.data.shape())?,
        Grad::Empty(_) => leaf.data.zeros_like()?,
        Grad::Unwanted | Grad::Placed(..) | Grad::Slice { .. } => return Ok(None),
    };
    leaf.as_seen(grad).map(Some)
}

impl Leaf {
    /// A gradient of [`Leaf::data`] as the one of [`Leaf::source`].
    pub(crate) fn as_seen(&self, grad: Tensor) -> Result<Tensor> {
        match self.view {
            View::Transposed => grad.t(),
            _ => Ok(grad),
        }
    }
}

/// A gradient for each leaf, between the expression's backward and the gates'.
type Gradients = Arc<Mutex<Vec<Option<Tensor>>>>;

/// Evaluates `tape`; the result depends on its tracked leaves, which `record` may forbid.
pub(crate) fn evaluate<B: Runs>(tape: Tape<B>, record: bool) -> Result<Tensor> {
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
    let (y, kept) = B::forward(&tape, keep)?;
    if !keep {
        return Ok(Tensor::from_storage(
            y,
            tape.dims(),
            BackpropOp::none(),
            false,
        ));
    }
    let gradients = Gradients::default();
    let gate = gates(&tape.leaves, &tracked, &gradients)?;
    let evaluated = Evaluated {
        result: Mutex::new(Some(y)),
        tape,
        tracked,
        kept,
        gradients,
    };
    chain::apply(&gate, evaluated)
}

/// The last of the gates through which the tracked leaves come.
fn gates(leaves: &[Leaf], tracked: &[bool], gradients: &Gradients) -> Result<Tensor> {
    let numbers: Vec<usize> = (0..leaves.len()).filter(|i| tracked[*i]).collect();
    let source = |i: usize| &leaves[i].source;
    let gate = |leaves: &[usize], after: bool| Gate {
        leaves: leaves.to_vec(),
        after,
        gradients: gradients.clone(),
    };
    let (first, others) = numbers.split_at(numbers.len().min(3));
    let op = gate(first, false);
    let mut last = match *first {
        [a] => source(a).apply_op1(op)?,
        [a, b] => source(a).apply_op2(source(b), op)?,
        [a, b, c] => source(a).apply_op3(source(b), source(c), op)?,
        _ => bail!("an expression without a tracked tensor has no gate"),
    };
    for pair in others.chunks(2) {
        let op = gate(pair, true);
        last = match *pair {
            [a] => last.apply_op2(source(a), op)?,
            [a, b] => last.apply_op3(source(a), source(b), op)?,
            _ => unreachable!("one or two"),
        };
    }
    Ok(last)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// One to three tensors come in; the first of them may be the gate before.
struct Gate {
    leaves: Vec<usize>,
    after: bool,
    gradients: Gradients,
}

impl Gate {
    const NAME: &'static str = "gate";

    fn forward(&self) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![0.]), 1.into()))
    }

    #[cfg(feature = "cuda")]
    fn forward_on(&self, leaf: &CudaStorage) -> Result<(CudaStorage, Shape)> {
        // Safety: the element is uninitialized, and no operation reads a gate's value.
        let element = unsafe { leaf.device.alloc::<f32>(1) }?;
        let storage = CudaStorage::wrap_cuda_slice(element, leaf.device.clone());
        Ok((storage, 1.into()))
    }

    #[cfg(not(feature = "cuda"))]
    fn forward_on(&self, _leaf: &CudaStorage) -> Result<(CudaStorage, Shape)> {
        bail!("this program was built without CUDA")
    }

    /// The gradient of input `i`; that of the gate before is zero, as that of this one.
    fn gradient(&self, i: usize, d_gate: &Tensor) -> Option<Tensor> {
        match i.checked_sub(usize::from(self.after)) {
            None => Some(d_gate.clone()),
            Some(i) => lock(&self.gradients).get_mut(self.leaves[i])?.take(),
        }
    }
}

impl CustomOp1 for Gate {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        self.forward()
    }

    fn cuda_fwd(&self, leaf: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        self.forward_on(leaf)
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, d_gate: &Tensor) -> Result<Option<Tensor>> {
        Ok(self.gradient(0, d_gate))
    }
}

impl CustomOp2 for Gate {
    fn name(&self) -> &'static str {
        Self::NAME
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

    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        leaf: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.forward_on(leaf)
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        d_gate: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        Ok((self.gradient(0, d_gate), self.gradient(1, d_gate)))
    }
}

impl CustomOp3 for Gate {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward()
    }

    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        leaf: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.forward_on(leaf)
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        d_gate: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let gradient = |i| self.gradient(i, d_gate);
        Ok((gradient(0), gradient(1), gradient(2)))
    }
}

/// A tape that ran forward.
pub(crate) struct Evaluated<B: Runs> {
    /// Until candle asks for it.
    result: Mutex<Option<Storage>>,
    pub tape: Tape<B>,
    /// For each leaf, whether its gradient is wanted.
    pub tracked: Vec<bool>,
    pub kept: B::Kept,
    gradients: Gradients,
}

impl<B: Runs> Evaluated<B> {
    /// Where a leaf's gradient belongs, if it is wanted in a place. A tensor that is there twice, seen in two
    /// ways, has one.
    pub(crate) fn place(&self, leaf: usize) -> Result<Option<Place>> {
        match self.tracked[leaf] && !self.tape.is_there_before(leaf) {
            true => places::of(self.tape.leaves[leaf].source.id()),
            false => Ok(None),
        }
    }

    fn result(&self) -> Result<(Storage, Shape)> {
        match lock(&self.result).take() {
            Some(result) => Ok((result, self.tape.dims().into())),
            None => bail!("an expression is evaluated once"),
        }
    }
}

impl<B: Runs> CustomOp1 for Evaluated<B> {
    fn name(&self) -> &'static str {
        "expression"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        match self.result()? {
            (Storage::Cpu(result), shape) => Ok((result, shape)),
            _ => bail!("the result is on a GPU"),
        }
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        match self.result()? {
            (Storage::Cuda(result), shape) => Ok((result, shape)),
            _ => bail!("the result is on the CPU"),
        }
    }

    fn bwd(&self, gate: &Tensor, y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        *lock(&self.gradients) = B::backward(self, y, dy)?;
        gate.zeros_like().map(Some)
    }
}

impl<B: Runs> Link for Evaluated<B> {
    fn next(&self) -> Result<Next<'_>> {
        for leaf in (0..self.tracked.len()).filter(|leaf| self.tracked[*leaf]) {
            if self.place(leaf)?.is_none() {
                return Ok(Next::Elsewhere);
            }
        }
        Ok(Next::Places)
    }

    fn back(&self, y: &Tensor, dy: Option<&Tensor>) -> Result<Option<Tensor>> {
        B::backward(self, y, &chain::or_ones(y, dy)?)?;
        Ok(None)
    }
}
