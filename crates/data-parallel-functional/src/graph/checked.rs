//! Which calls of candle's modules have been compared with finite differences. [`super::comparison`] says how a call is
//! compared.

use super::missing::{self, Change, New};
use super::variables::Variables;
use super::watch::Watch;
use candle_core::{DType, Result, Tensor, TensorId, Var, bail};
use std::any::TypeId;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

/// Compares the gradients of each [`candle()`](crate::candle()) and [`candle_fn`](crate::candle_fn) with finite
/// differences, in the networks and losses that [`run`](Self::run) writes down.
///
/// **What is compared.** The gradients of a module's inputs and of its trained variables, as
/// [`check_gradients`](crate::check_gradients) compares them. A wrong gradient is an error. So is a trained variable on
/// which a result depends without a gradient, and a variable that is none of the network's, also in operations of
/// [`Value`](crate::Value). The gradient of an input that depends on no trained variable may be missing. If some variables
/// are frozen, it may be wrong too. A wrong part that is less than a twentieth of a gradient is not found.
///
/// **On made-up numbers**, when it is written down: the first [`SHAPES`](Self::SHAPES) shapes of each module's inputs.
/// Another number of examples is no new shape, unless it is 1. Tokens and other integers are those of the input; floats
/// are numbers between 0.1 and 1.1. Where the module gives NaN on these, they are numbers between 0.1 and 0.9, and then
/// between -1.1 and -0.1.
///
/// **On the minibatch's own numbers**, along one direction, when it runs in training: once for each shape, where candle
/// computes the result by other operations than before, as far as their ranks show it, and in the calls 4, 16, 64 and so on
/// of a module. What is made anew in each step, as in a loss, is known by its place in the source, by its type, and by its
/// turn there. If it captures something, it may be another function each time: it is compared in its calls 1, 2, 4, 8 and
/// so on. What only a few minibatches show may be missed.
///
/// **Where numbers are equal.** candle's `max` gives each of several equal numbers the whole gradient. A module that is
/// wrong on made-up numbers that repeat is looked at in each minibatch: with equal numbers in a computed input, for which
/// its gradient is wrong, the step is refused. So it is where tokens repeat for the first time. This takes up to another
/// forward and backward pass of the module.
///
/// **In which mode.** As the call runs, so in training mode if it trains. After each run the buffers get their values
/// back. Modules that give another result each time in training, such as candle's dropout, are compared with `train` false
/// instead, so what they do in training alone is not compared. What gives NaN, or another result each time with `train`
/// false, is an error. So is what changes in training, is no buffer and is what inference depends on. A module that counts
/// its calls counts those of the comparisons too, some 25 for each shape.
///
/// A first step takes 9 to 30 times as long as others. One in which nothing is new takes no longer than without checks,
/// except where equal numbers are looked for.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use data_parallel_functional::{GradientChecks, Network, Value, Variables, candle};
/// let pool = candle(|x: &Tensor| x.max_pool2d(2));
/// let x = Value::new(&Tensor::rand(0f32, 1., (1, 1, 4, 4), &Device::Cpu)?)?;
/// let mut checks = GradientChecks::new(Variables::default())?;
/// let error = checks.run(1, || pool.forward(&x, true)).map(drop).unwrap_err().to_string();
/// assert!(error.contains("input 0 of shape [1, 1, 4, 4] is wrong") && error.contains("(0.25 times)"), "{error}");
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Default)]
pub struct GradientChecks {
    variables: Arc<Variables>,
    /// For each variable of the network, true if its gradient is wanted.
    trained: HashMap<TensorId, bool>,
    /// The modules of smaller numbers were there before, so they live in the network.
    first_new: u64,
    compared: HashMap<Which, Vec<Compared>>,
    runs: u64,
}

/// The identity of a module.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Which {
    /// The number of one that lives in the network.
    Lives(u64),
    /// One that is made anew in each run: what it is, and how many others of this kind were made before it.
    MadeAnew { kind: Kind, before: usize },
}

/// A place in the source, and the type of the modules that are made there.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    pub made: &'static Location<'static>,
    pub module: TypeId,
    /// True if modules of this type can be different functions, because they capture something.
    pub captures: bool,
}

/// A module, and how it is called.
pub(crate) struct Call<'a> {
    /// The number of the module, see [`next_number`].
    pub number: u64,
    pub kind: Kind,
    pub inputs: Vec<Input<'a>>,
    pub train: bool,
}

/// A call that was compared.
struct Compared {
    inputs: Vec<Input<'static>>,
    train: bool,
    /// The number of examples of the minibatch.
    examples: usize,
    /// The variables that get a gradient.
    variables: Arc<[TensorId]>,
    watch: Arc<Watch>,
    /// The run in which it was compared.
    run: u64,
    /// The number of calls since.
    calls: u64,
}

/// The properties of each input that tell calls apart.
#[derive(Clone, PartialEq)]
pub(crate) struct Input<'a> {
    pub dims: Cow<'a, [usize]>,
    pub dtype: DType,
    /// True if its gradient is wanted.
    pub wanted: bool,
}

impl Input<'_> {
    fn owned(&self) -> Input<'static> {
        Input {
            dims: self.dims.to_vec().into(),
            ..*self
        }
    }
}

/// The result of a comparison without an error.
pub(crate) struct Found {
    /// The variables that get a gradient.
    pub variables: Vec<TensorId>,
    pub change: Change,
    /// Looks at the call when it runs.
    pub watch: Watch,
}

/// A network that is written down under checks.
struct Run {
    checks: GradientChecks,
    since: Instant,
    /// The number of examples of the minibatch.
    examples: usize,
    /// The variables that get a gradient in this run: in operations of ours, and in each call.
    seen: Vec<TensorId>,
    seen_in_calls: Vec<Arc<[TensorId]>>,
    /// The tensors that `eval` has returned.
    evaluated: Vec<TensorId>,
    /// The modules that were made in this run, and how many at each place.
    made_anew: HashMap<u64, Which>,
    made_of: HashMap<Kind, usize>,
    /// The modules that are new or are called in a new way.
    new: Vec<New>,
}

thread_local! {
    static RUN: RefCell<Option<Run>> = const { RefCell::new(None) };
}

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// True for 1, 4, 16 and so on: the calls, minibatches and steps in which it is looked at again what could be another now.
pub fn is_power_of_four(n: u64) -> bool {
    n.is_power_of_two() && n.trailing_zeros().is_multiple_of(2)
}

/// The number of a new module: no two modules of the process have the same.
pub(crate) fn next_number() -> u64 {
    NEXT_NUMBER.fetch_add(1, Ordering::Relaxed)
}

impl GradientChecks {
    /// Number of shapes of the inputs that are compared on made-up numbers, of each module.
    pub const SHAPES: usize = 8;

    /// Of a network with these variables. Make it after the network; modules that are made later count as made anew.
    ///
    /// # Errors
    /// Where a trained variable has no floats.
    pub fn new(variables: Variables) -> Result<Self> {
        for (name, var) in &variables.trained {
            let dtype = var.dtype();
            if !dtype.is_float() {
                bail!(
                    "{name} has the type {dtype:?}, expected floats, because it is trained; to use it as it is, freeze \
                     it with Trainer::rate({name:?}, 0.0)"
                )
            }
        }
        let known = variables
            .frozen
            .iter()
            .chain(&variables.buffers)
            .map(|var| (var.id(), false));
        let trained = variables.trained.iter().map(|(_, var)| (var.id(), true));
        Ok(Self {
            trained: known.chain(trained).collect(),
            variables: Arc::new(variables),
            first_new: NEXT_NUMBER.load(Ordering::Relaxed),
            ..Self::default()
        })
    }

    /// Runs `f`, which writes a network down for a minibatch of `examples`, and compares each call in it that is new. After
    /// an error the calls of this run count as new.
    ///
    /// # Errors
    /// Of `f`; and where a gradient is wrong or missing, a module cannot be compared, or a variable is none of the
    /// network's.
    pub fn run<R>(&mut self, examples: usize, f: impl FnOnce() -> Result<R>) -> Result<R> {
        /// Takes the checks back, also after a panic.
        struct Until<'a> {
            checks: &'a mut GradientChecks,
            outer: Option<Run>,
            succeeded: bool,
        }
        impl Drop for Until<'_> {
            fn drop(&mut self) {
                if let Some(run) = RUN.replace(self.outer.take()) {
                    *self.checks = run.checks;
                }
                if !self.succeeded {
                    self.checks.forget_this_run();
                }
            }
        }
        let mut checks = std::mem::take(self);
        checks.runs += 1;
        let mut until = Until {
            checks: self,
            outer: RUN.replace(Some(Run::new(checks, examples))),
            succeeded: false,
        };
        let result = f()?;
        check_missing()?;
        until.succeeded = true;
        Ok(result)
    }

    fn trains(&self, variables: &[TensorId]) -> bool {
        let is_trained = |id: &TensorId| self.trained.get(id) == Some(&true);
        variables.iter().any(is_trained)
    }

    fn forget_this_run(&mut self) {
        for calls in self.compared.values_mut() {
            calls.retain(|call| call.run < self.runs);
        }
    }
}

impl Compared {
    /// A call of a shape that is new, like those of the same module that were compared on made-up numbers.
    fn like(others: &[Self], call: &Call<'_>, examples: usize, run: u64) -> Self {
        let variables = others.iter().flat_map(|other| other.variables.iter());
        Self {
            inputs: call.inputs.iter().map(Input::owned).collect(),
            train: call.train,
            examples,
            variables: variables.copied().collect(),
            watch: Arc::new(others[0].watch.unseen()),
            run,
            calls: 0,
        }
    }

    /// True if it is this call, with another number of examples perhaps: then one dimension of an input is in proportion
    /// to it. One example is a case of its own: along a dimension of 1, numbers are broadcast.
    fn is(&self, call: &Call<'_>, examples: usize) -> bool {
        let is_input = |(a, b): (&Input<'_>, &Input<'_>)| {
            let mut others = a.dims.iter().zip(&*b.dims).filter(|(a, b)| a != b);
            let is_of_examples = |(a, b): (&usize, &usize)| a * examples == b * self.examples;
            a.dims.len() == b.dims.len()
                && others.next().is_none_or(is_of_examples)
                && others.next().is_none()
                && (a.dtype, a.wanted) == (b.dtype, b.wanted)
        };
        self.train == call.train
            && (self.examples == 1) == (examples == 1)
            && self.inputs.len() == call.inputs.len()
            && self.inputs.iter().zip(&call.inputs).all(is_input)
    }
}

impl Run {
    fn new(checks: GradientChecks, examples: usize) -> Self {
        Self {
            checks,
            since: Instant::now(),
            examples,
            seen: Vec::new(),
            seen_in_calls: Vec::new(),
            evaluated: Vec::new(),
            made_anew: HashMap::new(),
            made_of: HashMap::new(),
            new: Vec::new(),
        }
    }

    fn which(&mut self, call: &Call<'_>) -> Which {
        if call.number < self.checks.first_new {
            return Which::Lives(call.number);
        }
        let made_of = &mut self.made_of;
        *self.made_anew.entry(call.number).or_insert_with(|| {
            let count = made_of.entry(call.kind).or_default();
            *count += 1;
            Which::MadeAnew {
                kind: call.kind,
                before: *count - 1,
            }
        })
    }

    fn note(&mut self, call: &Call<'_>) -> Noted {
        let which = self.which(call);
        let examples = self.examples;
        let run = self.checks.runs;
        let all = self.checks.compared.entry(which).or_default();
        let mut found = all.iter().position(|compared| compared.is(call, examples));
        if found.is_none() && all.len() >= GradientChecks::SHAPES {
            all.push(Compared::like(all, call, examples, run));
            found = Some(all.len() - 1);
        }
        let Some(found) = found else {
            return Noted::New(self.checks.variables.clone());
        };
        let compared = &mut all[found];
        compared.calls += 1;
        let may_be_another = matches!(which, Which::MadeAnew { kind, .. } if kind.captures);
        let again =
            is_power_of_four(compared.calls) || may_be_another && compared.calls.is_power_of_two();
        let watch = compared.watch.clone();
        let variables = compared.variables.clone();
        let trains = self.checks.trains(&variables);
        self.seen_in_calls.push(variables);
        Noted::Known {
            trains,
            watch,
            again,
        }
    }
}

/// The numbers of a value that depends on a variable. Under checks they are a variable that is none of the network's, so
/// [`note_variable`] refuses what is computed from them.
pub(crate) fn without_gradient(numbers: Tensor) -> Result<Tensor> {
    RUN.with_borrow_mut(|run| {
        let Some(run) = run else { return Ok(numbers) };
        let variable = Var::from_tensor(&numbers)?.into_inner();
        run.evaluated.push(variable.id());
        Ok(variable)
    })
}

/// Notes a variable that gets a gradient; true if its gradient is wanted. Under checks, a variable that is none of the
/// network's is an error.
pub(crate) fn note_variable(x: &Tensor) -> Result<bool> {
    let wanted = RUN.with_borrow_mut(|run| {
        let Some(run) = run else { return Some(true) };
        run.seen.push(x.id());
        run.checks.trained.get(&x.id()).copied()
    });
    let is_evaluated = |run: &Option<Run>| {
        let run = run.as_ref();
        run.is_some_and(|run| run.evaluated.contains(&x.id()))
    };
    match wanted {
        Some(wanted) => Ok(wanted),
        None if RUN.with_borrow(is_evaluated) => bail!(
            "the numbers of a value of shape {:?}, which eval returned, have no gradient, so what is computed from them \
             would not train; compute with candle(|x: &Tensor| …) instead of eval, or call detach on what eval returns",
            x.dims()
        ),
        None => bail!(
            "a variable of shape {:?} is no parameter of this network, and would not be trained; take it from the \
             VarBuilder that builds the network, or detach it. What eval returns is detached at once, before later steps \
             use it. A variable of your own whose gradient the loss itself needs, such as an input in adversarial \
             training, needs Trainer::check_gradients(false)",
            x.dims()
        ),
    }
}

/// The state of a call under checks.
pub(crate) enum Noted {
    Unchecked,
    /// It was compared.
    Known {
        /// True if it reads a variable that is trained.
        trains: bool,
        watch: Arc<Watch>,
        /// True if it has to be compared again on the numbers of the minibatch.
        again: bool,
    },
    /// It has to be compared.
    New(Arc<Variables>),
}

/// Notes a call, if networks are checked.
pub(crate) fn note_call(call: &Call<'_>) -> Noted {
    let note = |run: &mut Option<Run>| run.as_mut().map(|run| run.note(call));
    RUN.with_borrow_mut(note).unwrap_or(Noted::Unchecked)
}

/// Keeps a call that was compared.
pub(crate) fn add_compared(call: &Call<'_>, found: Found) {
    RUN.with_borrow_mut(|run| {
        let run = run.as_mut().expect("note_call has found it new");
        let compared = Compared {
            inputs: call.inputs.iter().map(Input::owned).collect(),
            train: call.train,
            examples: run.examples,
            variables: found.variables.into(),
            watch: Arc::new(found.watch),
            run: run.checks.runs,
            calls: 0,
        };
        let which = run.which(call);
        run.checks.compared.entry(which).or_default().push(compared);
        run.new.push(New {
            made: call.kind.made,
            change: found.change,
        });
    });
}

/// Says what takes so long five seconds after the network began to be written down, once in a process.
pub(crate) fn say_if_slow(made: &Location<'_>) {
    static SAID: Once = Once::new();
    let is_slow = |run: &Option<Run>| {
        let run = run.as_ref();
        run.is_some_and(|run| run.since.elapsed() > Duration::from_secs(5))
    };
    if RUN.with_borrow(is_slow) {
        SAID.call_once(|| {
            eprintln!(
                "the gradients of candle ({made}) are compared with finite differences, which takes as long as up to 30 \
                 steps; Trainer::check_gradients(false) leaves it out"
            );
        });
    }
}

/// An error where a new call depends on a trained variable that gets no gradient anywhere in this run.
fn check_missing() -> Result<()> {
    let found = RUN.with_borrow_mut(|run| {
        let run = run.as_mut().expect("it is this run's");
        let new = std::mem::take(&mut run.new);
        if new.is_empty() {
            return None;
        }
        let in_calls = run.seen_in_calls.iter().flat_map(|call| call.iter());
        let seen: HashSet<TensorId> = run.seen.iter().chain(in_calls).copied().collect();
        Some((run.checks.variables.clone(), seen, new))
    });
    let Some((variables, seen, new)) = found else {
        return Ok(());
    };
    let trained = variables.trained.iter();
    let unseen: Vec<(&str, &Var)> = trained
        .filter(|(_, var)| !seen.contains(&var.id()))
        .map(|(name, var)| (name.as_str(), var))
        .collect();
    missing::check(&unseen, new)
}
