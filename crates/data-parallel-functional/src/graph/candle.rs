//! Networks of candle's own operations as one operation of the tape, whose inside candle differentiates.
//!
//! `compile` makes one kernel of such a network, and candle computes the gradients inside of it
//! (`CandleKernel::backward`). A module runs on zeros once for each shape of its inputs, because the shape of its
//! result must be known when the network is written down.
//!
//! Some of candle's operations give wrong gradients without an error. So gradients can be compared with finite
//! differences: `checked` knows which calls are new, `comparison` compares one, and `difference` has the differences.

use super::alone::are_together;
use super::checked::{Call, Input, Kind, Noted, add_compared, next_number, note_call};
use super::comparison::{Module, compare};
use super::network::{Network, has_one_input};
use super::value::{Value, of_computed};
use super::watch::{Watched, equal_along_axes};
use crate::descriptors::args;
use crate::kernel::{At, Backend, CandleOp, Grad, Kernel, Observer, Pass, accumulate_tensor};
use candle_core::{DType, Error, ModuleT, Result, Tensor, Var, bail};
use devices::without_backtrace;
use std::any::TypeId;
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
/// With `train` the module may change buffers of the network, such as running statistics; without it must not: then it
/// also runs on zeros. Under [`GradientChecks`](crate::GradientChecks) it runs on other numbers too. So a module that counts
/// its calls counts more than the minibatches. It must not change the parameters of other layers: a GPU may have read them
/// before the module runs.
///
/// **Long chains.** candle calls itself for each operation that follows another, as in the steps of a recurrent network. The
/// stack of a thread, 2 MiB, has room for 6,000 operations in a row; for 1,500 if candle is compiled without optimization.
/// With more the process is aborted. `data-parallel` gives its replicas a larger stack. Where [`Value::eval`] or
/// [`Gradients::backward`](crate::Gradients::backward) runs on a thread of your own, set `std::thread::Builder::stack_size`.
/// Operations of `Value` have no such limit.
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
    Candle::new::<M>(true, move |x, train| module.forward_t(&x[0], train))
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
pub fn candle_fn<F: Fn(&[Tensor]) -> Result<Tensor> + 'static>(f: F) -> Candle {
    Candle::new::<F>(false, move |x, _train| f(x))
}

/// A network of candle's operations: [`candle()`] and [`candle_fn`] make it.
pub struct Candle {
    module: Rc<Module>,
    has_one_input: bool,
    /// Among all modules of the process.
    number: u64,
    kind: Kind,
    /// The shape of the result for the shapes of the inputs that were there.
    shapes: RefCell<HashMap<Vec<Vec<usize>>, Vec<usize>>>,
}

/// A call that was compared.
struct Checked {
    /// True if it reads a variable that is trained.
    trains: bool,
    watched: Watched,
}

impl Network for Candle {
    fn forward(&self, x: &Value, train: bool) -> Result<Value> {
        self.of(&[x], train)
    }

    fn forward_all(&self, x: &[Value], train: bool) -> Result<Value> {
        if self.has_one_input && x.len() != 1 {
            let made = self.kind.made;
            return Err(has_one_input(x.len()).context(format!("candle ({made})")));
        }
        self.of(&x.iter().collect::<Vec<_>>(), train)
    }
}

impl Candle {
    /// Of a function that calls a module of type `M`.
    #[track_caller]
    fn new<M: 'static>(
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
            kind: Kind {
                made,
                module: TypeId::of::<M>(),
                captures: size_of::<M>() > 0,
            },
            shapes: RefCell::default(),
        }
    }

    /// Writes the network down for inputs on one device.
    ///
    /// # Errors
    /// Where there is no input, they do not fit, or under [`GradientChecks`](crate::GradientChecks) a gradient is wrong.
    fn of(&self, x: &[&Value], train: bool) -> Result<Value> {
        let train = are_together(train);
        let Some(first) = x.first() else {
            bail!("candle ({}): expected at least one input", self.kind.made)
        };
        for other in x {
            args::check_device("candle", first.device(), "another input", other.device())?;
        }
        let dims = self.shape(x)?;
        let module = self.module.clone();
        let function = of_computed(x, move |x| module(x, train));
        let (trains, observer) = match self.check(x, train)? {
            Some(Checked { trains, watched }) => {
                (trains, Some(Rc::new(watched) as Rc<dyn Observer>))
            }
            None => (true, None), // it may be: that is not known
        };
        let op = CandleOp { function, observer };
        let wanted = trains || x.iter().any(|x| x.is_wanted());
        Ok(Value::of_candle(x, op, &dims, wanted))
    }

    /// Under checks, compares a call that is new.
    fn check(&self, inputs: &[&Value], train: bool) -> Result<Option<Checked>> {
        if inputs.iter().any(|x| x.dims().contains(&0)) {
            return Ok(None);
        }
        let call = Call {
            number: self.number,
            kind: self.kind,
            inputs: inputs.iter().copied().map(input).collect(),
            train,
        };
        let mut noted = note_call(&call);
        if let Noted::New(variables) = &noted {
            let found = compare(&call, &self.module, inputs, variables)?;
            add_compared(&call, found);
            noted = note_call(&call);
        }
        let Noted::Known {
            trains,
            watch,
            again,
        } = noted
        else {
            return Ok(None);
        };
        let module = self.module.clone();
        let is_other_mode = watch.train != train;
        let train = watch.train;
        let equal_in_data = if watch.repeats.in_data {
            equal_in_data(inputs)?
        } else {
            Vec::new()
        };
        let computed = inputs.iter().filter(|x| x.tensor().is_none());
        let watched = Watched {
            made: self.kind.made,
            run: of_computed(inputs, move |x| module(x, train)),
            is_other_mode,
            is_wanted: computed.map(|x| x.is_wanted()).collect(),
            equal_in_data,
            again,
            watch,
        };
        Ok(Some(Checked { trains, watched }))
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
        let made = self.kind.made;
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

/// The axes along which inputs that were there before have equal numbers.
fn equal_in_data(inputs: &[&Value]) -> Result<Vec<bool>> {
    let mut all = Vec::new();
    for x in inputs.iter().filter_map(|x| x.tensor()) {
        all.extend(equal_along_axes(x)?);
    }
    Ok(all)
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
    op: CandleOp,
    is_detached: bool,
    inputs: Vec<Vec<usize>>,
    dims: Vec<usize>,
    ran: RefCell<Option<Ran>>,
}

impl CandleKernel {
    pub fn new(op: CandleOp, inputs: &[Value], dims: &[usize]) -> Self {
        Self {
            op,
            is_detached: false,
            inputs: inputs.iter().map(|input| input.dims().to_vec()).collect(),
            dims: dims.to_vec(),
            ran: RefCell::default(),
        }
    }

    /// Its result is its input, and no gradient goes through it.
    pub fn detached(inputs: &[Value], dims: &[usize]) -> Self {
        let op = CandleOp {
            function: Rc::new(|x| Ok(x[0].detach())),
            observer: None,
        };
        Self {
            is_detached: true,
            ..Self::new(op, inputs, dims)
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
        let result = (self.op.function)(&x)?;
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
            if let Some(observer) = &self.op.observer {
                observer.result(&x, &result)?;
            }
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
        let gradients = (&ran.y * &dy)?.backward()?; // of the sum: candle begins with ones
        if let Some(observer) = &self.op.observer {
            let of_x: Vec<_> = ran.x.iter().map(|x| gradients.get(x)).collect();
            observer.gradients(&ran.x, &dy, &of_x)?;
        }
        let tensors = ran.x.iter().chain(&ran.parameters);
        for (tensor, to) in tensors.zip(dx) {
            if let (true, Some(gradient)) = (to.wanted(), gradients.get(tensor)) {
                accumulate_tensor(&pass.stream, to, &gradient.contiguous()?)?;
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
