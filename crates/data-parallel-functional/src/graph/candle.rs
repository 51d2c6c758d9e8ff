//! Networks of candle's own operations as one operation of the tape, whose inside candle differentiates.
//!
//! `compile` makes one kernel of such a network, and candle computes the gradients inside of it
//! (`CandleKernel::backward`). A module runs on zeros once for each shape of its inputs, because the shape of its
//! result must be known when the network is written down.
//!
//! Some of candle's operations give wrong gradients without an error. So gradients can be compared with finite
//! differences: `checked` knows which calls are new, `comparison` compares one, and `difference` has the differences.

use super::checked::{Call, Input, Noted, add_compared, next_number, note_call};
use super::comparison::{Module, compare};
use super::network::{Network, has_one_input};
use super::value::Value;
use crate::descriptors::args;
use crate::kernel::{At, Backend, Function, Grad, Kernel, Pass};
use candle_core::{DType, Error, ModuleT, Result, Tensor, Var, bail};
use devices::without_backtrace;
use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;
use std::rc::Rc;

/// A network of candle's operations, such as a layer of candle-nn, as an operation among those of [`Value`]. Its
/// parameters are the variables that its result depends on. candle computes their gradients.
///
/// The shape of the result has to follow from that of the input. It is found once for each shape: the module runs on
/// zeros, with `train` false. The module itself runs when its result is computed.
///
/// With `train` the module may change variables of its own, such as running statistics; without it must not: then it
/// also runs on zeros. Under [`GradientChecks`](crate::GradientChecks) it runs on other numbers too. It must not change
/// the parameters of other layers: a GPU may have read them before the module runs.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use data_parallel_functional::{Gradients, Network, Value, candle};
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
#[track_caller]
pub fn candle<M: ModuleT + 'static>(module: M) -> Candle {
    Candle::new(true, move |x, train| module.forward_t(&x[0], train))
}

/// Like [`candle()`], a function of several inputs: [`Network::forward_all`] calls it.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use data_parallel_functional::{Network, Value, candle_fn};
/// let product = candle_fn(|x: &[Tensor]| x[0].matmul(&x[1]));
/// let x = Value::new(&Tensor::new(&[[1f32, 2.]], &Device::Cpu)?)?;
/// let y = Value::new(&Tensor::new(&[[3f32], [4.]], &Device::Cpu)?)?;
/// assert_eq!(product.forward_all(&[x, y], true)?.eval()?.to_vec2::<f32>()?, [[11.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[track_caller]
pub fn candle_fn(f: impl Fn(&[Tensor]) -> Result<Tensor> + 'static) -> Candle {
    Candle::new(false, move |x, _train| f(x))
}

/// A network of candle's operations: [`candle()`] and [`candle_fn`] make it.
pub struct Candle {
    module: Rc<Module>,
    has_one_input: bool,
    /// Among all modules of the process.
    number: u64,
    /// The place in the source that made it.
    made: &'static Location<'static>,
    /// The shape of the result for the shapes of the inputs that were there.
    shapes: RefCell<HashMap<Vec<Vec<usize>>, Vec<usize>>>,
}

impl Network for Candle {
    fn forward(&self, x: &Value, train: bool) -> Result<Value> {
        self.of(&[x], train)
    }

    fn forward_all(&self, x: &[Value], train: bool) -> Result<Value> {
        if self.has_one_input && x.len() != 1 {
            let made = self.made;
            return Err(has_one_input(x.len()).context(format!("candle ({made})")));
        }
        self.of(&x.iter().collect::<Vec<_>>(), train)
    }
}

impl Candle {
    #[track_caller]
    fn new(
        has_one_input: bool,
        module: impl Fn(&[Tensor], bool) -> Result<Tensor> + 'static,
    ) -> Self {
        let made = Location::caller();
        let module = move |x: &[Tensor], train: bool| {
            let said = |error| Error::Msg(format!("candle ({made}): {}", without_backtrace(error)));
            module(x, train).map_err(said)
        };
        Self {
            module: Rc::new(module),
            has_one_input,
            number: next_number(),
            made,
            shapes: RefCell::default(),
        }
    }

    /// Writes the network down for inputs on one device.
    ///
    /// # Errors
    /// Where there is no input, they do not fit, or under [`GradientChecks`](crate::GradientChecks) a gradient is wrong.
    fn of(&self, x: &[&Value], train: bool) -> Result<Value> {
        let Some(first) = x.first() else {
            bail!("candle ({}): expected at least one input", self.made)
        };
        for other in x {
            args::check_device("candle", first.device(), "another input", other.device())?;
        }
        let dims = self.shape(x)?;
        let trains = self.check(x, train)?;
        let wanted = trains || x.iter().any(|x| x.is_wanted());
        let module = self.module.clone();
        Ok(Value::candle_with(
            x,
            move |x| module(x, train),
            &dims,
            wanted,
        ))
    }

    /// Under checks, compares a call that is new. Returns whether a variable is trained that the module reads; it may be
    /// where that is not known.
    fn check(&self, inputs: &[&Value], train: bool) -> Result<bool> {
        if inputs.iter().any(|x| x.dims().contains(&0)) {
            return Ok(true);
        }
        let call = Call {
            number: self.number,
            made: self.made,
            inputs: inputs.iter().copied().map(input).collect(),
            train,
        };
        match note_call(&call) {
            Noted::Unchecked => Ok(true),
            Noted::Known { trains } => Ok(trains),
            Noted::New(variables) => {
                let found = compare(&call, &self.module, inputs, &variables)?;
                Ok(add_compared(&call, found.variables, found.change))
            }
        }
    }

    fn shape(&self, x: &[&Value]) -> Result<Vec<usize>> {
        let key: Vec<Vec<usize>> = x.iter().map(|x| x.dims().to_vec()).collect();
        if let Some(dims) = self.shapes.borrow().get(&key) {
            return Ok(dims.clone());
        }
        let zeros = |x: &&Value| {
            let dtype = x.tensor().map_or(DType::F32, Tensor::dtype);
            Tensor::zeros(x.dims(), dtype, x.device())
        };
        let zeros = x.iter().map(zeros).collect::<Result<Vec<_>>>()?;
        let made = self.made;
        let y = (self.module)(&zeros, false).map_err(|error| {
            error.context(format!(
                "candle ({made}), on zeros, which show the shape of its result"
            ))
        })?;
        let dtype = y.dtype();
        if dtype != DType::F32 {
            bail!(
                "candle ({made}): the module gives {dtype:?}, expected f32; convert its result with to_dtype"
            )
        }
        let dims = y.dims().to_vec();
        self.shapes.borrow_mut().insert(key, dims.clone());
        Ok(dims)
    }
}

/// The properties of an input that tell calls apart.
fn input(x: &Value) -> Input<'_> {
    Input {
        dims: x.dims().into(),
        dtype: x.dtype(),
        wanted: x.is_wanted(),
    }
}

/// The kernel of a function of candle's operations, with the shapes of its inputs and result. Tensors that were there
/// before are in the function already.
pub(crate) struct CandleKernel {
    function: Rc<Function>,
    is_detached: bool,
    inputs: Vec<Vec<usize>>,
    dims: Vec<usize>,
    ran: RefCell<Option<Ran>>,
}

impl CandleKernel {
    pub fn new(function: Rc<Function>, inputs: &[Value], dims: &[usize]) -> Self {
        Self {
            function,
            is_detached: false,
            inputs: inputs.iter().map(|input| input.dims().to_vec()).collect(),
            dims: dims.to_vec(),
            ran: RefCell::default(),
        }
    }

    /// Its result is its input, and no gradient goes through it.
    pub fn detached(inputs: &[Value], dims: &[usize]) -> Self {
        Self {
            is_detached: true,
            ..Self::new(Rc::new(|x| Ok(x[0].detach())), inputs, dims)
        }
    }
}

/// The saved tensors of candle's, from forward to backward.
struct Ran {
    x: Vec<Tensor>,
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
        let keep = pass.keep && !self.is_detached;
        let input = |(x, dims): (&B::View<'_>, &Vec<usize>)| {
            let copy = B::copy(&pass.stream, *x)?;
            let x = B::tensor(&pass.stream, copy, dims)?;
            if keep {
                Ok(Var::from_tensor(&x)?.into_inner())
            } else {
                Ok(x)
            }
        };
        let x = x
            .iter()
            .zip(&self.inputs)
            .map(input)
            .collect::<Result<Vec<Tensor>>>()?;
        let result = (self.function)(&x)?;
        if result.dims() != self.dims {
            bail!(
                "candle: the module gave shape {:?}, and {:?} for zeros of the same shape: the shape \
                 must follow from that of x",
                result.dims(),
                self.dims
            )
        }
        B::write(&pass.stream, &result.contiguous()?, y)?;
        if keep {
            let is_input = |t: &Tensor| x.iter().any(|x| x.id() == t.id());
            let parameters = result
                .sorted_nodes()
                .into_iter()
                .filter(|t| t.is_variable() && !is_input(t))
                .cloned()
                .collect();
            *self.ran.borrow_mut() = Some(Ran {
                x,
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
        let saved = self.ran.borrow();
        let ran = saved.as_ref().expect("forward ran");
        let dy = B::tensor(&pass.stream, dy, &self.dims)?;
        let gradients = (&ran.y * dy)?.backward()?; // of the sum: candle begins with ones
        for (tensor, to) in ran.x.iter().chain(&ran.parameters).zip(dx) {
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

    fn is_detached(&self) -> bool {
        self.is_detached
    }

    fn parameters(&self) -> Vec<Tensor> {
        let ran = self.ran.borrow();
        let parameters = ran.iter().flat_map(|ran| &ran.parameters);
        parameters.cloned().collect()
    }
}
