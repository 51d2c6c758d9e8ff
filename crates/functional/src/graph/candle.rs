//! Networks of candle's own operations as one operation of the tape, whose inside candle differentiates.

use super::difference;
use super::network::Network;
use super::value::Value;
use crate::kernel::{At, Backend, Grad, Kernel, Pass};
use crate::ops::candle::CandleOp;
use candle_core::{DType, Device, ModuleT, Result, Tensor, Var, bail};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// A network of candle's operations, such as a layer of candle-nn, as an operation among those of [`Value`]. Its
/// parameters are the variables that its result depends on. candle computes their gradients.
///
/// The shape of the result has to follow from that of the input. It is found once for each shape: the module runs on
/// zeros, with `train` false. The module itself runs when its result is computed.
///
/// The module may change variables of its own, such as running statistics. It must not change the parameters of other
/// layers: a GPU may have read them before the module runs.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use functional::{Gradients, Network, Value, candle};
/// let w = Var::new(&[2f32, 3.], &Device::Cpu)?;
/// let weight = w.as_tensor().clone();
/// let scale = candle(move |x: &Tensor| x * &weight);
/// let x = Value::new(&Tensor::new(&[-1f32, 10.], &Device::Cpu)?)?;
/// let y = scale.forward(&x.relu()?, true)?; // between operations of ours
/// let mut gradients = Gradients::new([("w", &w)], usize::MAX)?;
/// assert_eq!(gradients.backward(&y.sum()?)?.to_scalar::<f32>()?, 30.);
/// assert_eq!(gradients.values()?[0].to_vec1::<f32>()?, [0., 10.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn candle<M: ModuleT + 'static>(module: M) -> Candle<M> {
    Candle {
        module: Rc::new(module),
        shapes: RefCell::default(),
    }
}

/// A module of candle's as a network: [`candle`] makes it.
pub struct Candle<M> {
    module: Rc<M>,
    /// The shape of the result for each shape of the input that was there.
    shapes: RefCell<HashMap<Vec<usize>, Vec<usize>>>,
}

thread_local! {
    /// Whether the modules that run compare their gradients first.
    static CHECKS: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`. Each network of [`candle()`] that computes in it compares candle's gradients with finite differences
/// first, on numbers between 0.1 and 1.1 and with `train` false: some of candle's operations have wrong gradients.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use functional::{Network, Value, candle, check_gradients};
/// let pool = candle(|x: &Tensor| x.max_pool2d(2));
/// let x = Value::new(&Tensor::rand(0f32, 1., (1, 1, 4, 4), &Device::Cpu)?)?;
/// let error = check_gradients(|| pool.forward(&x, true)).map(drop).unwrap_err().to_string();
/// assert!(error.contains("for its input is wrong: 0.25 times a finite difference"), "{error}");
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn check_gradients<R>(f: impl FnOnce() -> R) -> R {
    /// Ends also with a panic.
    struct Until;
    impl Drop for Until {
        fn drop(&mut self) {
            CHECKS.set(false);
        }
    }
    CHECKS.set(true);
    let _until = Until;
    f()
}

impl<M: ModuleT + 'static> Network for Candle<M> {
    fn forward(&self, x: &Value, train: bool) -> Result<Value> {
        if CHECKS.get() && x.dims().first().is_some_and(|examples| *examples > 0) {
            let (name, module) = (std::any::type_name::<M>(), &self.module);
            difference::check(name, |x| module.forward_t(x, false), x.dims(), x.device())?;
        }
        let (dims, module) = (self.shape(x)?, self.module.clone());
        Ok(x.candle(move |x| module.forward_t(x, train), &dims))
    }
}

impl<M: ModuleT> Candle<M> {
    fn shape(&self, x: &Value) -> Result<Vec<usize>> {
        if let Some(dims) = self.shapes.borrow().get(x.dims()) {
            return Ok(dims.clone());
        }
        let dtype = x.tensor().map_or(DType::F32, Tensor::dtype);
        let zeros = Tensor::zeros(x.dims(), dtype, x.device())?;
        let y = self.module.forward_t(&zeros, false)?;
        if y.dtype() != DType::F32 {
            bail!("candle: the module gives {:?}, expected f32", y.dtype())
        }
        let (from, to) = (x.dims().to_vec(), y.dims().to_vec());
        self.shapes.borrow_mut().insert(from, to.clone());
        Ok(to)
    }
}

/// The kernel of a candle op, with the shapes of its input and result. Without an input the function has its tensor
/// already: one that the caller gave, or one that candle has computed.
pub(crate) fn kernel<B: Backend>(
    op: CandleOp,
    input: Option<Vec<usize>>,
    dims: Vec<usize>,
) -> Box<dyn Kernel<B>> {
    Box::new(CandleKernel {
        op,
        input,
        dims,
        ran: RefCell::default(),
    })
}

struct CandleKernel {
    op: CandleOp,
    input: Option<Vec<usize>>,
    dims: Vec<usize>,
    ran: RefCell<Option<Ran>>,
}

/// The saved tensors of candle's, from forward to backward.
struct Ran {
    x: Option<Var>,
    y: Tensor,
    parameters: Vec<Tensor>,
}

impl<B: Backend> Kernel<B> for CandleKernel {
    fn forward(
        &self,
        pass: &Pass<B>,
        x: &[B::View<'_>],
        y: B::ViewMut<'_>,
    ) -> Result<Vec<B::Buffer>> {
        let (x, variable) = match &self.input {
            None => (Tensor::zeros(0, DType::F32, &Device::Cpu)?, None), // it is not read
            Some(dims) => {
                let copy = B::copy(&pass.stream, x[0])?;
                let x = B::tensor(&pass.stream, copy, dims)?;
                let variable = pass.keep.then(|| Var::from_tensor(&x)).transpose()?;
                (
                    variable.as_ref().map_or(x, |v| v.as_tensor().clone()),
                    variable,
                )
            }
        };
        let result = (self.op.0)(&x)?;
        if result.dims() != self.dims {
            bail!(
                "candle: the module gave shape {:?}, and {:?} for zeros of the same shape: the shape \
                 must follow from that of x",
                result.dims(),
                self.dims
            )
        }
        B::write(&pass.stream, &result.contiguous()?, y)?;
        if pass.keep {
            let is_parameter =
                |t: &&Tensor| t.is_variable() && variable.as_ref().is_none_or(|x| x.id() != t.id());
            let nodes = result.sorted_nodes().into_iter();
            let parameters = nodes.filter(is_parameter).cloned().collect();
            *self.ran.borrow_mut() = Some(Ran {
                x: variable,
                y: result,
                parameters,
            });
        }
        Ok(Vec::new())
    }

    fn backward(
        &self,
        pass: &Pass<B>,
        _at: At<'_, '_, B>,
        dy: B::Buffer,
        dx: &mut [Grad<'_, B>],
    ) -> Result<()> {
        let ran = self.ran.borrow();
        let ran = ran.as_ref().expect("forward ran");
        let dy = B::tensor(&pass.stream, dy, &self.dims)?;
        let gradients = (&ran.y * dy)?.backward()?; // of the sum: candle begins with ones
        let x = ran.x.as_ref().map(|x| x.as_tensor());
        for (tensor, to) in x.into_iter().chain(&ran.parameters).zip(dx) {
            if let (true, Some(gradient)) = (to.wanted(), gradients.get(tensor)) {
                let len = gradient.elem_count();
                let mut part = B::alloc(&pass.stream, B::Element::default(), len)?;
                let gradient = gradient.contiguous()?;
                B::write(&pass.stream, &gradient, B::view_mut(&mut part))?;
                B::accumulate(&pass.stream, to, part)?;
            }
        }
        Ok(())
    }

    fn parameters(&self) -> Vec<Tensor> {
        let ran = self.ran.borrow();
        let parameters = ran.iter().flat_map(|ran| &ran.parameters);
        parameters.cloned().collect()
    }
}
