//! A network that is checked while it is written down: its parameters, and which of them get a gradient.

use candle_core::{Result, Tensor, TensorId, Var, bail};
use std::cell::RefCell;
use std::collections::HashSet;
use std::panic::Location;

/// How much the result of a module changes where a variable moves.
type Change = Box<dyn Fn(&Var) -> Result<f64>>;

struct Checked {
    params: Vec<(String, Var)>,
    /// The variables that get a gradient.
    seen: HashSet<TensorId>,
    /// The networks of candle's, with their places in the source.
    modules: Vec<(&'static Location<'static>, Change)>,
}

thread_local! {
    static CHECKED: RefCell<Option<Checked>> = const { RefCell::new(None) };
}

/// Runs `f`, which writes a network with these parameters down. Each network of [`candle()`](crate::candle()) in it is
/// checked first, as [`check_gradients`](crate::check_gradients) does, with `train` false. Tokens and other integers are
/// those of the input; floats are numbers between 0.1 and 1.1. A tensor that is no variable is data, of which a gradient
/// may be missing. What gives NaN on these numbers, or another result each time, is an error. So is a parameter on which
/// a result depends without a gradient, and a variable that is none of the parameters, also in operations of
/// [`Value`](crate::Value).
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
///
/// # Errors
/// Of `f`; and what is said above.
pub fn with_checks<'a, R>(
    params: impl IntoIterator<Item = (&'a str, &'a Var)>,
    f: impl FnOnce() -> Result<R>,
) -> Result<R> {
    /// Ends also with a panic.
    struct Until(Option<Checked>);
    impl Drop for Until {
        fn drop(&mut self) {
            CHECKED.set(self.0.take());
        }
    }
    let owned = |(name, var): (&str, &Var)| (name.to_owned(), var.clone());
    let checked = Checked {
        params: params.into_iter().map(owned).collect(),
        seen: HashSet::new(),
        modules: Vec::new(),
    };
    let until = Until(CHECKED.replace(Some(checked)));
    let result = f()?;
    let checked = CHECKED.take();
    drop(until);
    checked.map_or(Ok(()), |checked| checked.check_unseen())?;
    Ok(result)
}

/// Whether networks are checked.
pub(crate) fn is_checked() -> bool {
    CHECKED.with_borrow(Option::is_some)
}

/// An error under [`with_checks`], if `x` is a variable that is none of the parameters.
pub(crate) fn check_variable(x: &Tensor) -> Result<()> {
    let is_foreign = |checked: &mut Checked| {
        checked.seen.insert(x.id());
        checked.params.iter().all(|(_, var)| var.id() != x.id())
    };
    if x.is_variable()
        && CHECKED.with_borrow_mut(|checked| checked.as_mut().is_some_and(is_foreign))
    {
        bail!(
            "a variable of shape {:?} is no parameter of this network, and would not be trained; take it from the \
             VarBuilder that builds the network, or detach it",
            x.dims()
        )
    }
    Ok(())
}

/// Keeps a module of candle's until it is known which parameters get no gradient.
pub(crate) fn add_module(made: &'static Location<'static>, change: Change) {
    CHECKED.with_borrow_mut(|checked| {
        if let Some(checked) = checked {
            checked.modules.push((made, change));
        }
    });
}

impl Checked {
    /// An error where a module depends on a parameter that gets no gradient anywhere.
    fn check_unseen(&self) -> Result<()> {
        let is_unseen = |(_, var): &&(String, Var)| !self.seen.contains(&var.id());
        let unseen: Vec<_> = self.params.iter().filter(is_unseen).collect();
        for (made, change) in self.modules.iter().filter(|_| !unseen.is_empty()) {
            for (name, var) in &unseen {
                if change(var)? != 0. {
                    bail!(
                        "candle ({made}): the gradient of {name} is missing, although the result depends on it. The \
                         page \"What trains in candle\" says what to use instead; \
                         Trainer::check_gradients(false) trains all the same"
                    )
                }
            }
        }
        Ok(())
    }
}
