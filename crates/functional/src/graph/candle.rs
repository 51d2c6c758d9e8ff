//! Networks of candle's own operations as one operation of the tape, whose inside candle differentiates.

use super::difference::{self, GradientError, check_gradients};
use super::network::Network;
use super::value::Value;
use crate::kernel::{At, Backend, Grad, Kernel, Pass};
use crate::ops::args;
use crate::ops::candle::CandleOp;
use candle_core::{DType, Error, ModuleT, Result, Tensor, Var, bail};
use devices::without_backtrace;
use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;
use std::rc::Rc;

/// How far apart, in proportion, gradient and difference may be in a check of a module: kinks lie between the points.
const TOLERANCE: f64 = 0.05;

/// A network of candle's operations, such as a layer of candle-nn, as an operation among those of [`Value`]. Its
/// parameters are the variables that its result depends on. candle computes their gradients.
///
/// The shape of the result has to follow from that of the input. It is found once for each shape: the module runs on
/// zeros, with `train` false. The module itself runs when its result is computed.
///
/// With `train` the module may change variables of its own, such as running statistics; without it must not: then it
/// also runs on zeros, and under [`with_checks`] on other numbers. It must not change the parameters of other layers: a
/// GPU may have read them before the module runs.
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
#[track_caller]
pub fn candle<M: ModuleT + 'static>(module: M) -> Candle {
    Candle::new(move |x, train| module.forward_t(&x[0], train))
}

/// As [`candle()`], a function of several inputs; [`Candle::forward_all`] calls it.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use functional::{Value, candle_fn};
/// let product = candle_fn(|x: &[Tensor]| x[0].matmul(&x[1]));
/// let x = Value::new(&Tensor::new(&[[1f32, 2.]], &Device::Cpu)?)?;
/// let y = Value::new(&Tensor::new(&[[3f32], [4.]], &Device::Cpu)?)?;
/// assert_eq!(product.forward_all(&[&x, &y], true)?.eval()?.to_vec2::<f32>()?, [[11.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[track_caller]
pub fn candle_fn(f: impl Fn(&[Tensor]) -> Result<Tensor> + 'static) -> Candle {
    Candle::new(move |x, _train| f(x))
}

/// A network of candle's operations: [`candle()`] and [`candle_fn`] make it.
pub struct Candle {
    module: Rc<Module>,
    /// The place in the source that made it.
    made: &'static Location<'static>,
    /// The shape of the result for the shapes of the inputs that were there.
    shapes: RefCell<HashMap<Vec<Vec<usize>>, Vec<usize>>>,
}

type Module = dyn Fn(&[Tensor], bool) -> Result<Tensor>;

/// Parameters with their names.
type Named = Rc<[(String, Var)]>;

thread_local! {
    /// The parameters of the network, while the modules that it calls are checked first.
    static CHECKED: RefCell<Option<Named>> = const { RefCell::new(None) };
}

/// Runs `f`, which writes a network with these parameters down. Each network of [`candle()`] in it is checked first, as
/// [`check_gradients`] does, with `train` false. Tokens and other integers are those of the input; floats are numbers
/// between 0.1 and 1.1. A tensor that is no variable is data, of which a gradient may be missing. What gives NaN on
/// these numbers, or another result each time, is an error. So is a parameter on which a result depends without a
/// gradient, and a variable that is none of the parameters, also in operations of [`Value`].
///
/// ```
/// use candle_core::{Device, Tensor};
/// use functional::{Network, Value, candle, with_checks};
/// let pool = candle(|x: &Tensor| x.max_pool2d(2));
/// let x = Value::new(&Tensor::rand(0f32, 1., (1, 1, 4, 4), &Device::Cpu)?)?;
/// let error = with_checks([], || pool.forward(&x, true)).map(drop).unwrap_err().to_string();
/// assert!(error.contains("input 0 of shape [1, 1, 4, 4] is wrong") && error.contains("(0.25 times)"), "{error}");
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn with_checks<'a, R>(
    params: impl IntoIterator<Item = (&'a str, &'a Var)>,
    f: impl FnOnce() -> R,
) -> R {
    /// Ends also with a panic.
    struct Until(Option<Named>);
    impl Drop for Until {
        fn drop(&mut self) {
            CHECKED.set(self.0.take());
        }
    }
    let params = params.into_iter();
    let params = params.map(|(name, var)| (name.to_owned(), var.clone()));
    let _until = Until(CHECKED.replace(Some(params.collect())));
    f()
}

/// An error under [`with_checks`], if `x` is a variable that is none of the parameters.
pub(crate) fn check_variable(x: &Tensor) -> Result<()> {
    let is_foreign = |params: &Named| params.iter().all(|(_, var)| var.id() != x.id());
    let checked = CHECKED.with_borrow(|params| params.as_ref().is_some_and(is_foreign));
    if x.is_variable() && checked {
        bail!(
            "a variable of shape {:?} is no parameter of this network, and would not be trained; take it from the \
             VarBuilder that builds the network, or detach it",
            x.dims()
        )
    }
    Ok(())
}

impl Network for Candle {
    fn forward(&self, x: &Value, train: bool) -> Result<Value> {
        self.forward_all(&[x], train)
    }
}

impl Candle {
    #[track_caller]
    fn new(module: impl Fn(&[Tensor], bool) -> Result<Tensor> + 'static) -> Self {
        let made = Location::caller();
        let module = move |x: &[Tensor], train: bool| {
            let said = |error| Error::Msg(format!("candle ({made}): {}", without_backtrace(error)));
            module(x, train).map_err(said)
        };
        Self {
            module: Rc::new(module),
            made,
            shapes: RefCell::default(),
        }
    }

    /// Writes the network down for inputs on one device.
    ///
    /// # Errors
    /// Where there is no input, they do not fit, or under [`with_checks`] a gradient is wrong.
    pub fn forward_all(&self, x: &[&Value], train: bool) -> Result<Value> {
        let Some(first) = x.first() else {
            bail!("candle ({}): expected at least one input", self.made)
        };
        for other in x {
            args::check_device("candle", first.device(), "another input", other.device())?;
        }
        if let Some(params) = CHECKED.with_borrow(Clone::clone)
            && x.iter().all(|x| x.dims().first() != Some(&0))
        {
            self.check(x, &params)?;
        }
        let (dims, module) = (self.shape(x)?, self.module.clone());
        Ok(Value::candle(x, move |x| module(x, train), &dims))
    }

    fn check(&self, x: &[&Value], params: &[(String, Var)]) -> Result<()> {
        // near its kinks a right network can look wrong, so it has to be wrong on other numbers too
        let checked = |data: bool| {
            let first = self.check_on(x, data, 0);
            first.or_else(|_| self.check_on(x, data, 1))
        };
        // of data no gradient is wanted: a network may begin with a part that is not trained
        let checked = match checked(true) {
            Err(GradientError::Wrong { gradient: None, .. }) => checked(false),
            other => other,
        };
        let checked = checked.and_then(|()| self.check_parameters(x, params));
        let wrong = match checked {
            Ok(()) => return Ok(()),
            Err(GradientError::Failed(error)) => return Err(error),
            Err(GradientError::Incomparable(why)) => format!(
                "its gradients cannot be checked: on numbers between 0.1 and 1.1 it {why}. A network draws random \
                 numbers only with `train`, such as layers::Dropout"
            ),
            Err(error) => format!(
                "{error}. A network with it would not train right, without an error. The page \"What trains in \
                 candle\" says what to use instead"
            ),
        };
        bail!(
            "candle ({}): {wrong}; Trainer::check_gradients(false) trains all the same",
            self.made
        )
    }

    /// Checks the module on numbers of a seed; tensors that are no variables are moved too if they are `data` to check.
    fn check_on(
        &self,
        x: &[&Value],
        data: bool,
        seed: u64,
    ) -> std::result::Result<(), GradientError> {
        let inputs = numbers(x, seed)?;
        let is_moved = |x: &&Value| data || x.tensor().is_none_or(Tensor::is_variable);
        let moved = inputs.iter().zip(x).filter(|(_, x)| is_moved(x));
        let moved: Vec<Tensor> = moved.map(|(input, _)| input.clone()).collect();
        let module = |moved: &[Tensor]| {
            let mut moved = moved.iter();
            let of = |(input, x): (&Tensor, &&Value)| match is_moved(x) {
                true => moved.next().cloned(),
                false => Some(input.clone()),
            };
            let all = inputs.iter().zip(x).filter_map(of);
            (self.module)(&all.collect::<Vec<_>>(), false)
        };
        check_gradients(module, &moved, TOLERANCE)
    }

    /// An error where the result depends on one of `params` without a gradient, or on another variable.
    fn check_parameters(
        &self,
        x: &[&Value],
        params: &[(String, Var)],
    ) -> std::result::Result<(), GradientError> {
        let inputs = numbers(x, 0)?;
        let y = (self.module)(&inputs, false)?;
        let read: Vec<Tensor> = y.sorted_nodes().into_iter().cloned().collect();
        read.iter().try_for_each(|x| {
            let said = |error| Error::Msg(format!("candle ({}): {error}", self.made));
            check_variable(x).map_err(said)
        })?;
        let has_gradient = |var: &Var| read.iter().any(|x| x.id() == var.id());
        let others = params.iter().filter(|(_, var)| !has_gradient(var));
        let others: Vec<_> = others.collect();
        let changes = |moved: &[&(String, Var)]| {
            let moved: Vec<&Var> = moved.iter().map(|(_, var)| var).collect();
            difference::change(|| (self.module)(&inputs, false), &y, &moved)
        };
        if changes(&others)? == 0. {
            return Ok(());
        }
        for param in others {
            let difference = changes(&[param])?;
            if difference != 0. {
                return Err(GradientError::Wrong {
                    of: param.0.clone(),
                    gradient: None,
                    difference,
                });
            }
        }
        Ok(())
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
        let y = (self.module)(&zeros, false)?;
        if y.dtype() != DType::F32 {
            bail!(
                "candle ({}): the module gives {:?}, expected f32",
                self.made,
                y.dtype()
            )
        }
        let dims = y.dims().to_vec();
        self.shapes.borrow_mut().insert(key, dims.clone());
        Ok(dims)
    }
}

/// Inputs of a check: integers as they are; numbers of a seed instead of floats.
fn numbers(x: &[&Value], seed: u64) -> Result<Vec<Tensor>> {
    let input = |x: &&Value| match x.tensor().filter(|x| !x.dtype().is_float()) {
        Some(x) => Ok(x.clone()),
        None => difference::numbers(x, seed),
    };
    x.iter().map(input).collect()
}

/// The kernel of a candle op, with the shapes of its inputs and result. Tensors that were there before are in the
/// function already.
pub(crate) fn kernel<B: Backend>(
    op: CandleOp,
    inputs: Vec<Vec<usize>>,
    dims: Vec<usize>,
) -> Box<dyn Kernel<B>> {
    Box::new(CandleKernel {
        op,
        inputs,
        dims,
        ran: RefCell::default(),
    })
}

struct CandleKernel {
    op: CandleOp,
    inputs: Vec<Vec<usize>>,
    dims: Vec<usize>,
    ran: RefCell<Option<Ran>>,
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
        let input = |(x, dims): (&B::View<'_>, &Vec<usize>)| {
            let copy = B::copy(&pass.stream, *x)?;
            let x = B::tensor(&pass.stream, copy, dims)?;
            match pass.keep {
                true => Ok(Var::from_tensor(&x)?.into_inner()),
                false => Ok(x),
            }
        };
        let x = x.iter().zip(&self.inputs).map(input);
        let x = x.collect::<Result<Vec<Tensor>>>()?;
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
            let is_input = |t: &Tensor| x.iter().any(|x| x.id() == t.id());
            let nodes = result.sorted_nodes().into_iter();
            let parameters = nodes.filter(|t| t.is_variable() && !is_input(t));
            let parameters = parameters.cloned().collect();
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
        let ran = self.ran.borrow();
        let ran = ran.as_ref().expect("forward ran");
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

    fn parameters(&self) -> Vec<Tensor> {
        let ran = self.ran.borrow();
        let parameters = ran.iter().flat_map(|ran| &ran.parameters);
        parameters.cloned().collect()
    }
}
