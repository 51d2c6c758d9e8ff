//! Looks at a call of one of candle's modules when it runs in training, after [`super::comparison`] has compared it on
//! made-up numbers.
//!
//! - **On the minibatch's own numbers** a call is compared when it runs for the first time, and when candle computes its
//!   result by other operations than before, as far as their ranks show it. What a branch or a weight of zero has hidden
//!   can be seen later: so each module is compared again in its calls 4, 16, 64 and so on. One that is made anew in each
//!   step and captures something may be another function each time: it is compared in its calls 1, 2, 4, 8 and so on.
//! - **Where numbers are equal.** If the gradient is wrong on made-up numbers that repeat, equal numbers are looked for in
//!   each minibatch. Where the data has some for the first time, the call is compared again. For computed inputs the
//!   gradient is computed once more on numbers of which no two are equal, a few roundings away: there `max` gives the
//!   whole gradient to one number, and here to each. Zeros stay, because most come from a ReLU, which has no gradient there.
//!   So nothing is found while a layer gives zeros alone.

use super::difference::{Direction, GradientCheck, MOST, NO_NUMBER, TOLERANCE};
use super::gradient_error::GradientError;
use super::variables::Variables;
use crate::kernel::{Function, Observer};
use candle_core::{DType, Error, Result, Tensor, Var, bail};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::Location;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

/// Knows what to look at where a call runs that was compared.
#[derive(Default)]
pub(crate) struct Watch {
    /// The mode in which it is compared.
    pub train: bool,
    /// The buffers that it moves in that mode.
    pub buffers: Vec<Var>,
    /// The trained variables that have a gradient on made-up numbers.
    pub variables: Vec<Var>,
    pub known: Arc<Variables>,
    pub repeats: Repeats,
    /// The ways in which it ran when it was compared on a minibatch's own numbers.
    pub seen: Mutex<HashSet<u64>>,
}

/// The inputs whose equal numbers give a wrong gradient.
#[derive(Clone, Default)]
pub(crate) struct Repeats {
    /// In inputs that were there before, such as tokens.
    pub in_data: bool,
    /// In computed inputs.
    pub in_computed: bool,
}

impl Watch {
    fn copies_of_buffers(&self) -> Result<Vec<Buffer>> {
        self.buffers.iter().map(Buffer::of).collect()
    }

    /// The same for a call of another shape, of which nothing was seen.
    pub fn unseen(&self) -> Self {
        Self {
            train: self.train,
            buffers: self.buffers.clone(),
            variables: self.variables.clone(),
            known: self.known.clone(),
            repeats: self.repeats.clone(),
            seen: Mutex::default(),
        }
    }
}

/// A call that is looked at when it runs.
pub(crate) struct Watched {
    pub watch: Arc<Watch>,
    /// The place in the source that made the module.
    pub made: &'static Location<'static>,
    /// The module in the mode of the watch, of the inputs that are computed.
    pub run: Rc<Function>,
    /// True if that is another mode than the call's.
    pub is_other_mode: bool,
    /// For each of these inputs, whether its gradient is wanted.
    pub is_wanted: Vec<bool>,
    /// Where the data has equal numbers, see [`equal_along_axes`]; empty where that does not matter.
    pub equal_in_data: Vec<bool>,
    /// True if it is compared even if it runs as before.
    pub again: bool,
}

impl Observer for Watched {
    /// Compares the gradients on the numbers of this minibatch, if candle has computed the result in a new way.
    fn result(&self, x: &[Tensor], y: &Tensor) -> Result<()> {
        let mut way = DefaultHasher::new();
        self.equal_in_data.hash(&mut way);
        for node in y.sorted_nodes() {
            (node.rank(), node.is_variable()).hash(&mut way);
            std::mem::discriminant(&node.dtype()).hash(&mut way);
        }
        let way = way.finish();
        let seen = || {
            self.watch
                .seen
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        let is_known = seen().contains(&way);
        if !self.again && is_known {
            return Ok(());
        }
        // one direction may miss a wrong branch, which is not compared soon again
        let directions = if is_known || seen().is_empty() {
            1
        } else {
            MOST
        };
        let direction = |x: &Tensor, along: Tensor| zeros_stay(x, &along);
        self.compare(x, directions, &direction)?;
        // outputs that all are 0, as of a layer that begins with zeros, show nothing: the next minibatch is compared too
        let mut wanted = x
            .iter()
            .zip(&self.is_wanted)
            .filter(|(_, is_wanted)| **is_wanted);
        let is_zero =
            |x: &Tensor| Result::Ok(x.detach().abs()?.sum_all()?.to_scalar::<f32>()? == 0.);
        let shows_nothing = wanted.try_fold(false, |any, (x, _)| Result::Ok(any | is_zero(x)?))?;
        if !shows_nothing {
            seen().insert(way);
        }
        Ok(())
    }

    /// Looks at gradients on equal numbers: `gradients` are those of `x`.
    fn gradients(&self, x: &[Tensor], dy: &Tensor, gradients: &[Option<&Tensor>]) -> Result<()> {
        if !self.watch.repeats.in_computed || !self.is_wanted.contains(&true) {
            return Ok(());
        }
        let of_wanted = |all: &[Option<&Tensor>]| {
            let wanted = all
                .iter()
                .zip(&self.is_wanted)
                .filter(|(_, is_wanted)| **is_wanted);
            let sizes = wanted
                .filter_map(|(gradient, _)| *gradient)
                .map(sum_of_sizes);
            sizes.sum::<Result<f64>>()
        };
        let buffers = self.watch.copies_of_buffers()?;
        let inputs = x.iter().enumerate().map(|(i, x)| apart(x, i as u64));
        let apart = inputs.collect::<Result<Vec<Tensor>>>()?;
        let backward = |x: &[Tensor]| {
            let _back = SetBack(&buffers);
            ((self.run)(x)? * dy)?.backward()
        };
        let of_apart = backward(&apart)?;
        let there = of_wanted(&apart.iter().map(|x| of_apart.get(x)).collect::<Vec<_>>())?;
        let here = if self.is_other_mode {
            let of_x = backward(x)?;
            of_wanted(&x.iter().map(|x| of_x.get(x)).collect::<Vec<_>>())?
        } else {
            of_wanted(gradients)?
        };
        let is_rounding = here.max(there) <= 1e-4 * sum_of_sizes(dy)?;
        let are_near = (here - there).abs() <= TOLERANCE * here.max(there);
        if is_rounding || are_near || !(here - there).is_finite() {
            return Ok(());
        }
        bail!(
            "candle ({}): the gradient of its input is wrong: the sizes of its numbers add up to {here:.4} where some numbers \
             of the input are equal, and to {there:.4} a few roundings away, where none are ({:.2} times). A network with it \
             would not train right, without an error. The page \"What trains in candle\" says what to use instead of max and \
             min; Trainer::check_gradients(false) trains all the same",
            self.made,
            here / there
        )
    }
}

impl Watched {
    /// Compares the gradients of the inputs and of variables on these numbers, along this number of directions if all agree.
    fn compare(&self, x: &[Tensor], directions: usize, direction: &Direction<'_>) -> Result<()> {
        let is_moved = &self.is_wanted[..];
        let variables = &self.watch.variables[..];
        let buffers = self.watch.copies_of_buffers()?;
        let detached: Vec<Tensor> = x.iter().map(Tensor::detach).collect();
        let moved = detached
            .iter()
            .zip(is_moved)
            .filter(|(_, is_moved)| **is_moved);
        let moved: Vec<Tensor> = moved.map(|(x, _)| x.clone()).collect();
        let check = GradientCheck {
            f: |moved: &[Tensor]| {
                let _back = SetBack(&buffers);
                (self.run)(&with(&detached, is_moved, moved))
            },
            tolerance: TOLERANCE,
            brief: Some(directions),
            is_trained: |x: &Tensor| self.watch.known.trains(x),
            variables,
            direction: Some(direction),
        };
        // kernels that a GPU has not yet run may read a variable that is moved here
        let variables_and_x = || variables.iter().map(Var::as_tensor).chain(x);
        let synchronize = || variables_and_x().try_for_each(|x| x.device().synchronize());
        synchronize()?;
        let checked = check.run(&moved);
        synchronize()?;
        match checked {
            Ok(()) | Err(GradientError::Incomparable(_)) => Ok(()),
            // the other directions are rounding
            Err(GradientError::Wrong {
                gradient: Some(gradient),
                difference,
                ..
            }) if (gradient - difference).abs()
                <= TOLERANCE * gradient.abs().max(difference.abs()) =>
            {
                Ok(())
            }
            Err(GradientError::Failed(error)) => Err(error),
            Err(error) => Err(said(self.made, error)),
        }
    }
}

/// A comparison that failed of a module that was made at a place, as an error that says what to do.
pub(super) fn said(made: &Location<'_>, error: GradientError) -> Error {
    let what = match error {
        GradientError::Failed(error) => {
            return error.context(format!(
                "candle ({}), on numbers that the check of gradients has made up",
                made
            ));
        }
        GradientError::Wrong { gradient: None, .. } => {
            return Error::Msg(format!(
                "candle ({}): {error}. What is cut off on purpose, as by detach, has to be frozen, by Trainer::rate with \
                 the layers before it and 0.0, or Value::detach comes before the module. If they are to be trained, the page \
                 \"What trains in candle\" says what to use instead; Trainer::check_gradients(false) leaves this check out",
                made
            ));
        }
        GradientError::Backward(_) => {
            return Error::Msg(format!(
                "candle ({}): {error}. The page \"What trains in candle\" says what to use instead",
                made
            ));
        }
        GradientError::Incomparable(NO_NUMBER) => format!(
            "its gradients cannot be checked: it {NO_NUMBER} on numbers between 0.1 and 1.1, between 0.1 and 0.9, and \
             between -1.1 and -0.1"
        ),
        GradientError::Incomparable(why) => format!(
            "its gradients cannot be checked: on numbers between 0.1 and 1.1 it {why}. A network draws random \
             numbers only with `train`, such as layers::Dropout; a loss gets them as one more input, drawn with the data"
        ),
        error => format!(
            "{error}. A network with it would not train right, without an error. The page \"What trains in \
             candle\" says what to use instead. What is changed on purpose, as by a gradient reversal, is built of \
             values with Value::detach"
        ),
    };
    Error::Msg(format!(
        "candle ({}): {what}; Trainer::check_gradients(false) trains all the same",
        made
    ))
}

/// All inputs, with those that are moved in their places.
pub(super) fn with(all: &[Tensor], is_moved: &[bool], moved: &[Tensor]) -> Vec<Tensor> {
    let mut moved = moved.iter();
    let of_input = |(x, is_moved): (&Tensor, &bool)| {
        if *is_moved {
            moved.next().expect("one for each that is moved").clone()
        } else {
            x.clone()
        }
    };
    all.iter().zip(is_moved).map(of_input).collect()
}

/// A direction along which zeros do not move. Most come from a ReLU, and a maximum of zeros has a kink.
fn zeros_stay(x: &Tensor, along: &Tensor) -> Result<Tensor> {
    along * x.ne(0f32)?.to_dtype(x.dtype())?
}

/// The numbers of a tensor, each at least twice along each axis.
pub(super) fn repeated(x: &Tensor) -> Result<Tensor> {
    (0..x.rank()).try_fold(x.clone(), |x, axis| {
        let len = x.dim(axis)? as u32;
        let last = (len / 2).max(1) - 1;
        let twice = (0..len).map(|i| last.min(i / 2));
        let twice = Tensor::from_iter(twice, x.device())?;
        x.contiguous()?.index_select(&twice, axis)
    })
}

/// For each axis, whether a tensor is equal at two places along it, where all that goes before is the same: in all that
/// follows, and in a part of it, such as the first columns of two points.
pub(super) fn equal_along_axes(x: &Tensor) -> Result<Vec<bool>> {
    if x.elem_count() == 0 {
        return Ok(Vec::new());
    }
    let numbers = x.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
    let numbers: Vec<u64> = numbers.into_iter().map(f64::to_bits).collect();
    let are_equal = |axis: usize| {
        let after: usize = x.dims()[axis + 1..].iter().product();
        let lines = || numbers.chunks(after * x.dims()[axis]);
        let in_all = lines().any(|line| {
            let mut known = HashSet::new();
            line.chunks(after).any(|slice| !known.insert(slice))
        });
        let in_a_part = lines().any(|line| {
            let mut known = HashSet::new();
            let mut places = line.iter().enumerate();
            places.any(|(i, number)| !known.insert((i % after, number)))
        });
        [in_all, in_a_part]
    };
    Ok((0..x.rank()).flat_map(are_equal).collect())
}

/// The sum of the absolute values.
fn sum_of_sizes(x: &Tensor) -> Result<f64> {
    Ok(f64::from(x.abs()?.sum_all()?.to_scalar::<f32>()?))
}

/// A variable whose numbers are those of an input up to a few roundings, of which equal ones are apart, also those of
/// several inputs. Zeros stay.
fn apart(x: &Tensor, input: u64) -> Result<Tensor> {
    let factor = |i: u64| {
        let hash = (i + 1 + (input << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        1. + hash as f32 * (ROUNDINGS * f32::EPSILON / (1 << 24) as f32)
    };
    let factors = (0..x.elem_count() as u64).map(factor);
    let factors = Tensor::from_iter(factors, x.device())?.reshape(x.shape())?;
    Ok(Var::from_tensor(&(x.detach() * factors)?)?.into_inner())
}

/// The largest distance of numbers that were equal, in roundings.
const ROUNDINGS: f32 = 16.;

/// A buffer, and its value before the check.
pub(super) struct Buffer {
    pub var: Var,
    pub was: Tensor,
}

impl Buffer {
    pub fn of(var: &Var) -> Result<Self> {
        Ok(Self {
            var: var.clone(),
            was: var.copy()?.detach(),
        })
    }

    pub fn has_changed(&self) -> Result<bool> {
        let differ = self.var.ne(&self.was)?.to_dtype(DType::F32)?;
        Ok(sum_of_sizes(&differ)? > 0.)
    }
}

/// Sets buffers back, also after a panic.
pub(super) struct SetBack<'a>(pub &'a [Buffer]);

impl Drop for SetBack<'_> {
    fn drop(&mut self) {
        for Buffer { var, was } in self.0 {
            let _ = var.set(was); // it has the shape and the type
        }
    }
}
