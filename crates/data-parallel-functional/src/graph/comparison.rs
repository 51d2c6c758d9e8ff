//! Compares a call of one of candle's modules with finite differences. [`super::checked`] says which calls are
//! compared, and how often.
//!
//! A comparison moves each trained parameter a little and sets it back, and sets buffers back. It moves only variables
//! of its own network, and refuses any other before it moves one. So several replicas can be compared at the same
//! time. A call is compared in the mode in which it runs, where that can be done.
//!
//! A random direction shows what the gradient's own direction hides: a part that is missing. A difference between
//! gradient and finite difference counts where a smaller step gives almost the same finite difference, and both sides
//! of the point have almost the same slope.
//!
//! The numbers are made up, and no two are equal. Some gradients are right there and wrong where numbers are equal: of
//! candle's `max` each of the equal numbers gets the whole. So a call that passed is compared again on numbers that
//! repeat, along directions that move equal numbers together. If it is wrong there, training goes on, and
//! [`super::watch`] looks at the numbers of each minibatch.

use super::checked::{Call, Found, note_variable, say_if_slow};
use super::difference::{self, Direction, GradientCheck, NO_NUMBER, RANDOM, TOLERANCE};
use super::gradient_error::GradientError;
use super::missing::Change;
use super::value::Value;
use super::variables::Variables;
use super::watch::{Buffer, Repeats, SetBack, Watch, repeated, said, with};
use candle_core::{Result, Tensor, TensorId, Var, bail};
use std::cell::OnceCell;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;

/// A function of inputs, which is told whether it trains.
pub(crate) type Module = dyn Fn(&[Tensor], bool) -> Result<Tensor>;

/// The numbers on which a module runs: away from the kinks of most functions. The next range is for modules that give
/// NaN on the one before, such as the logarithm of 1 - x, or of -x.
const RANGES: [[f64; 2]; 3] = [[0.1, 1.1], [0.1, 0.9], [-1.1, -0.1]];

/// Compares a call.
///
/// # Errors
/// Where a gradient is wrong, or cannot be compared, or a variable is none of the network's.
pub(crate) fn compare(
    call: &Call<'_>,
    module: &Rc<Module>,
    inputs: &[&Value],
    known: &Arc<Variables>,
) -> Result<Found> {
    let first = numbers(inputs, RANGES[0], 0)?;
    let inference = InOneMode {
        module: module.clone(),
        made: call.kind.made,
        train: false,
        buffers: Rc::default(),
    };
    let mut mode = inference.clone();
    let mut variables = Vec::new();
    if call.train {
        let trial = in_training(&**module, &first, known)?;
        variables = note_variables(call, &trial.y)?;
        match trial.inference {
            Inference::Stays if !trial.sets_parameters => {
                mode.train = true;
                mode.buffers = trial.buffers.into();
            }
            Inference::Moves => bail!("candle ({}): {MOVES}", call.kind.made),
            _ => (),
        }
    }
    if !mode.train {
        variables.extend(note_variables(call, &mode.run(&first)?)?);
    }
    let is_seen = |(_, var): &(String, Var)| variables.contains(&var.id());
    let comparison = Comparison {
        inputs,
        known,
        trains: known.trained.iter().any(is_seen),
    };
    let mut compared = comparison.of(&mode);
    if mode.train && matches!(compared, Err(GradientError::Incomparable(RANDOM))) {
        mode = inference;
        compared = comparison.of(&mode);
    }
    let passed = compared.map_err(|error| said(call.kind.made, error))?;
    let trained = known.trained.iter().map(|(_, var)| var);
    let is_read = |var: &&Var| variables.contains(&var.id());
    let read: Vec<Var> = trained.filter(is_read).cloned().collect();
    let watch = Watch {
        train: mode.train,
        buffers: mode.moved_buffers(),
        variables: read.clone(),
        known: known.clone(),
        repeats: comparison.repeats(&mode, &passed)?,
        seen: Default::default(),
    };
    Ok(Found {
        variables,
        change: change(mode, passed, read),
        watch,
    })
}

/// The change in the result of a module on these numbers when variables move. Its result before is computed once. Those
/// that it is known to read, `read`, are moved from 0, which could hide what is behind it.
fn change(mode: InOneMode, numbers: Vec<Tensor>, read: Vec<Var>) -> Change {
    let before = OnceCell::new();
    Box::new(move |variables| {
        let _from_0 = difference::from_0(&read)?;
        let before = match before.get() {
            Some(before) => before,
            None => {
                let y = mode.run(&numbers)?.detach().copy()?; // it may be a view of a variable
                before.get_or_init(|| y)
            }
        };
        difference::change(|| mode.run(&numbers), before, variables)
    })
}

/// The variables that get a gradient with `y`; an error if one is none of the network's.
fn note_variables(call: &Call<'_>, y: &Tensor) -> Result<Vec<TensorId>> {
    let nodes = y.sorted_nodes().into_iter();
    let note = |x: &Tensor| match note_variable(x) {
        Ok(_) => Ok(x.id()),
        Err(error) => bail!("candle ({}): {error}", call.kind.made),
    };
    nodes.filter(|x| x.is_variable()).map(note).collect()
}

/// A module in one mode. After each run the buffers that it moves get their values back.
#[derive(Clone)]
struct InOneMode {
    module: Rc<Module>,
    /// The place in the source that made it.
    made: &'static Location<'static>,
    train: bool,
    buffers: Rc<[Buffer]>,
}

impl InOneMode {
    fn moved_buffers(&self) -> Vec<Var> {
        let vars = self.buffers.iter().map(|buffer| buffer.var.clone());
        vars.collect()
    }

    fn run(&self, x: &[Tensor]) -> Result<Tensor> {
        say_if_slow(self.made);
        let _back = SetBack(&self.buffers);
        (self.module)(x, self.train)
    }
}

const MOVES: &str = "in training it changes numbers that are no buffer of the network, and inference depends on them. Each \
                     replica has its own, and no file has them. data_parallel::buffer declares such numbers; a batch norm \
                     takes its statistics from the network's VarBuilder; a part that stays as it is gets `train` = false. \
                     Trainer::check_gradients(false) leaves this check out";

/// The result of a run in training.
struct Trial {
    y: Tensor,
    /// The buffers of the network, with their values before it.
    buffers: Vec<Buffer>,
    /// True if it sets a parameter that it reads, as a bound of a norm does.
    sets_parameters: bool,
    inference: Inference,
}

/// The result of inference after a run in training, with buffers and parameters as before.
enum Inference {
    Stays,
    /// It is another one after each run.
    Moves,
    /// It is another one and stays, or it is drawn.
    Differs,
}

/// Runs a module in training, and sets the buffers back: all of them, because it may move others on other numbers. So it
/// sets back the parameters that the module reads.
fn in_training(module: &Module, x: &[Tensor], known: &Variables) -> Result<Trial> {
    let inferred = module(x, false)?;
    let buffers = copies(known.buffers.iter())?;
    let nodes = inferred.sorted_nodes();
    let is_read = |var: &&Var| nodes.iter().any(|node| node.id() == var.id());
    let trained = known.trained.iter().map(|(_, var)| var);
    let parameters = copies(trained.chain(&known.frozen).filter(is_read))?;
    let train = || {
        let _buffers = SetBack(&buffers);
        let _parameters = SetBack(&parameters);
        let y = module(x, true)?;
        let sets_parameters = parameters
            .iter()
            .try_fold(false, |any, of| Result::Ok(any | of.has_changed()?))?;
        Result::Ok((y, sets_parameters))
    };
    let infer = || bits(&module(x, false)?);
    let before = bits(&inferred)?;
    let (y, sets_parameters) = train()?;
    let after = infer()?;
    let inference = if after == before {
        Inference::Stays
    } else {
        train()?;
        let later = infer()?;
        if later != after && later != before && later == infer()? {
            Inference::Moves
        } else {
            Inference::Differs
        }
    };
    Ok(Trial {
        y,
        buffers,
        sets_parameters,
        inference,
    })
}

fn copies<'a>(vars: impl Iterator<Item = &'a Var>) -> Result<Vec<Buffer>> {
    vars.map(Buffer::of).collect()
}

fn bits(y: &Tensor) -> Result<Vec<u32>> {
    Ok(y.flatten_all()?
        .to_vec1::<f32>()?
        .into_iter()
        .map(f32::to_bits)
        .collect())
}

/// A call that is compared.
struct Comparison<'a> {
    inputs: &'a [&'a Value],
    known: &'a Variables,
    /// True if one of the variables is trained.
    trains: bool,
}

impl Comparison<'_> {
    /// Compares a module. Returns the numbers on which it passed.
    fn of(&self, module: &InOneMode) -> std::result::Result<Vec<Tensor>, GradientError> {
        // where all is trained, a wrong gradient of data is a sign of a wrong gradient
        if !self.known.frozen.is_empty() {
            return self.on_ranges(module, false);
        }
        match self.on_ranges(module, true) {
            // but data needs none: a network may begin with a part that is not trained
            Err(GradientError::Wrong { gradient: None, .. }) => self.on_ranges(module, false),
            other => other,
        }
    }

    fn on_ranges(
        &self,
        module: &InOneMode,
        data: bool,
    ) -> std::result::Result<Vec<Tensor>, GradientError> {
        let mut no_number = Ok(Vec::new());
        for range in RANGES {
            // near its kinks a right network can look wrong, so it has to be wrong on other numbers too
            let first = self.on(module, data, range, 0);
            let compared = first.or_else(|_| self.on(module, data, range, 1));
            if !matches!(compared, Err(GradientError::Incomparable(NO_NUMBER))) {
                return compared;
            }
            no_number = compared;
        }
        no_number
    }

    /// Compares a module on numbers of a seed. Inputs that no trained variable is behind are moved too if `data` is
    /// compared.
    fn on(
        &self,
        module: &InOneMode,
        data: bool,
        range: [f64; 2],
        seed: u64,
    ) -> std::result::Result<Vec<Tensor>, GradientError> {
        let all = numbers(self.inputs, range, seed)?;
        let is_moved: Vec<bool> = self.inputs.iter().map(|x| data || x.is_wanted()).collect();
        if self.trains || is_moved.contains(&true) {
            self.on_these(module, &all, &is_moved, None)?;
        }
        Ok(all)
    }

    /// Finds the inputs whose equal numbers give a wrong gradient. `passed` are numbers on which it is right.
    fn repeats(&self, module: &InOneMode, passed: &[Tensor]) -> Result<Repeats> {
        let is_data: Vec<bool> = self
            .inputs
            .iter()
            .map(|x| x.tensor().is_some() && !x.is_wanted())
            .collect();
        let is_wanted: Vec<bool> = self.inputs.iter().map(|x| x.is_wanted()).collect();
        let compared = |of: Inputs| {
            let repeat = |(x, is_data): (&Tensor, &bool)| match of {
                Inputs::Data if !is_data => Ok(x.clone()),
                Inputs::Computed if *is_data => Ok(x.clone()),
                _ => repeated(x),
            };
            let inputs = passed.iter().zip(&is_data).map(repeat);
            let all = inputs.collect::<Result<Vec<Tensor>>>()?;
            // inputs of one shape have the same numbers here, and move together
            let direction = |x: &Tensor, along: Tensor| match of {
                Inputs::Data => Ok(along),
                Inputs::All | Inputs::Computed => repeated(&difference::random(x, 0)?),
            };
            self.on_these(module, &all, &is_wanted, Some(&direction))
        };
        let is_wrong = |of: Inputs| matches!(compared(of), Err(GradientError::Wrong { .. }));
        let all = compared(Inputs::All);
        if all.is_ok() {
            return Ok(Repeats::default());
        }
        let in_data = is_wrong(Inputs::Data);
        let in_computed = is_wrong(Inputs::Computed);
        let in_both = !in_data && !in_computed && matches!(all, Err(GradientError::Wrong { .. }));
        Ok(Repeats {
            in_data: in_data || in_both,
            in_computed: in_computed || in_both,
        })
    }

    /// Compares a module on these numbers: along one direction that `direction` makes, or along those of every check.
    fn on_these(
        &self,
        module: &InOneMode,
        all: &[Tensor],
        is_moved: &[bool],
        direction: Option<&Direction<'_>>,
    ) -> Compared {
        let moved = all.iter().zip(is_moved).filter(|(_, is_moved)| **is_moved);
        let moved: Vec<Tensor> = moved.map(|(x, _)| x.clone()).collect();
        let check = GradientCheck {
            f: |moved: &[Tensor]| module.run(&with(all, is_moved, moved)),
            tolerance: TOLERANCE,
            brief: direction.map(|_| 1),
            is_trained: |x: &Tensor| self.known.trains(x),
            variables: &[],
            direction,
        };
        check.run(&moved)
    }
}

type Compared = std::result::Result<(), GradientError>;

/// The inputs whose numbers repeat: those that were there before, those that are computed, or both.
#[derive(Clone, Copy)]
enum Inputs {
    All,
    Data,
    Computed,
}

/// Inputs of a check: integers as they are; numbers of a seed instead of floats.
fn numbers(inputs: &[&Value], range: [f64; 2], seed: u64) -> Result<Vec<Tensor>> {
    let input = |x: &&Value| match x.tensor().filter(|x| !x.dtype().is_float()) {
        Some(x) => Ok(x.clone()),
        None => difference::numbers(x.dims(), x.dtype(), x.device(), range, seed),
    };
    inputs.iter().map(input).collect()
}
