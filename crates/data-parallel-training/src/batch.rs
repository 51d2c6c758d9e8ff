//! Batches: tensors whose first dimension counts the examples, in whatever form a program keeps them.

use candle_core::{Result, Tensor};
use devices::{Context, bail, ensure};

/// The inputs X of a minibatch, or its targets y: tensors with one first dimension, the examples. A tensor is a batch; so is
/// `()`, which has no tensor, for a minibatch without targets; and so are tuples, arrays and vectors of batches.
///
/// A struct of your own needs one method. `map` calls `f` for each tensor, always in the same order, and puts the
/// results in their places. With it the library splits, chooses and copies batches. What belongs to the examples has to be
/// in these tensors: another field, such as a `Vec` of lengths, would not be split.
///
/// ```
/// use candle_core::{Device, Result, Tensor};
/// use data_parallel_training::{Batch, DataIter, tensors};
///
/// /// Sentences (B, T), and 1 where a token is no padding (B, T).
/// #[derive(Clone)]
/// struct Tokens {
///     ids: Tensor,
///     mask: Tensor,
/// }
///
/// impl Batch for Tokens {
///     fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
///         Ok(Self {
///             ids: f(&self.ids)?,
///             mask: f(&self.mask)?,
///         })
///     }
/// }
///
/// let ids = Tensor::new(&[[5u32, 7, 0], [4, 0, 0], [6, 8, 9]], &Device::Cpu)?;
/// let mask = Tensor::new(&[[1f32, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 1.0]], &Device::Cpu)?;
/// let data = DataIter::of_tensors(&Tokens { ids, mask }, &(), 2, None)?;
/// let (x, ()) = data.epoch(1).next().expect("a minibatch")?;
/// assert_eq!((x.ids.dims(), x.mask.dims()), (&[2, 3][..], &[2, 3][..]));
/// assert_eq!(tensors(&x)?.len(), 2);
/// # candle_core::Result::Ok(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no batch",
    note = "a batch is a `Tensor`, `()`, a tuple, an array or a `Vec` of batches, or a struct that implements `Batch`",
    note = "give one reference: `step(x, y)` where `x` is a `&Tensor` already, and `var.as_tensor()` of a `Var`"
)]
pub trait Batch: Clone + Send + Sync + 'static {
    /// The same batch with `f` of each tensor.
    ///
    /// # Errors
    /// Those of `f`.
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self>;
}

impl Batch for Tensor {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        f(self)
    }
}

impl Batch for () {
    fn map(&self, _: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(())
    }
}

impl<B: Batch> Batch for Vec<B> {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        self.iter().map(|batch| batch.map(f)).collect()
    }
}

impl<B: Batch, const N: usize> Batch for [B; N] {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let mapped: Vec<B> = self
            .iter()
            .map(|batch| batch.map(f))
            .collect::<Result<_>>()?;
        let array = mapped.try_into().ok();
        array.context("an array keeps its length")
    }
}

macro_rules! tuples {
    ($(($($name:ident $i:tt),+))+) => {$(
        impl<$($name: Batch),+> Batch for ($($name,)+) {
            fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
                Ok(($(self.$i.map(f)?,)+))
            }
        }
    )+};
}

tuples! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
}

/// All tensors of a batch, in the order of [`Batch::map`].
///
/// # Errors
/// Where its `map` is an error.
pub fn tensors(batch: &impl Batch) -> Result<Vec<Tensor>> {
    let mut all = Vec::new();
    batch.map(&mut |tensor| {
        all.push(tensor.clone());
        Ok(tensor.clone())
    })?;
    Ok(all)
}

/// A batch of the form of `like`, with these tensors in their order.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// use data_parallel_training::{tensors, with_tensors};
/// let tensor = |x: f32| Tensor::new(&[x], &Device::Cpu);
/// let pair = with_tensors(&(tensor(1.0)?, [tensor(2.0)?]), [tensor(3.0)?, tensor(4.0)?])?;
/// assert_eq!(pair.1[0].to_vec1::<f32>()?, [4.0]);
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// If there are more or fewer tensors than in `like`.
pub fn with_tensors<B: Batch>(like: &B, tensors: impl IntoIterator<Item = Tensor>) -> Result<B> {
    let mut tensors = tensors.into_iter();
    let batch = like.map(&mut |_| tensors.next().context("there are too few tensors"))?;
    ensure!(tensors.next().is_none(), "there are too many tensors");
    Ok(batch)
}

/// The number of examples in a minibatch.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// # use data_parallel_training::num_examples;
/// let (x, y) = (Tensor::new(&[[1f32], [2.0]], &Device::Cpu)?, Tensor::new(&[0u32, 1], &Device::Cpu)?);
/// assert_eq!(num_examples(&x, &y)?, 2);
/// assert_eq!(num_examples(&[x, y], &())?, 2);
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// If two of the tensors have different numbers of examples, or a tensor has no dimension; the message names them `x` and
/// `y`, or `x[0]`, `x[1]` … where there are several. If `x` has no tensor.
pub fn num_examples<X: Batch, Y: Batch>(x: &X, y: &Y) -> Result<usize> {
    num_examples_of(&tensors(x)?, &tensors(y)?)
}

/// Like [`num_examples`], for the tensors of a minibatch.
#[doc(hidden)]
pub fn num_examples_of(x: &[Tensor], y: &[Tensor]) -> Result<usize> {
    let mut first = None;
    for (name, tensor) in named(x, y) {
        let Some(n) = tensor.dims().first() else {
            bail!("{name} is a scalar; expected a first dimension, the examples")
        };
        let (of, examples) = first.get_or_insert_with(|| (name.clone(), *n));
        ensure!(
            n == examples,
            "{of} has {examples} examples, {name} has {n}"
        );
    }
    let has_inputs = !x.is_empty();
    first
        .map(|(_, n)| n)
        .filter(|_| has_inputs)
        .context("x has no tensor; expected at least 1, from which the number of examples comes")
}

/// The tensors of a minibatch, with the names that messages give them.
#[doc(hidden)]
pub fn named<'a>(x: &'a [Tensor], y: &'a [Tensor]) -> impl Iterator<Item = (String, &'a Tensor)> {
    let name = |name: &str, i: usize, of: usize| {
        if of == 1 {
            name.to_owned()
        } else {
            format!("{name}[{i}]")
        }
    };
    let inputs = x
        .iter()
        .enumerate()
        .map(move |(i, tensor)| (name("x", i, x.len()), tensor));
    let targets = y
        .iter()
        .enumerate()
        .map(move |(i, tensor)| (name("y", i, y.len()), tensor));
    inputs.chain(targets)
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    fn zeros(examples: usize) -> Tensor {
        Tensor::zeros((examples, 2), DType::F32, &Device::Cpu).unwrap()
    }

    #[test]
    fn sizes_that_differ_are_named_with_both_numbers() {
        let says = |n: Result<usize>| n.unwrap_err().to_string();
        assert_eq!(
            says(num_examples(&zeros(5), &zeros(4))),
            "x has 5 examples, y has 4"
        );
        let x = (zeros(5), [zeros(5), zeros(3)]);
        assert_eq!(
            says(num_examples(&x, &())),
            "x[0] has 5 examples, x[2] has 3"
        );
        let y = vec![zeros(5), zeros(6)];
        assert_eq!(
            says(num_examples(&zeros(5), &y)),
            "x has 5 examples, y[1] has 6"
        );
        let scalar = Tensor::new(1f32, &Device::Cpu).unwrap();
        assert!(says(num_examples(&zeros(1), &scalar)).starts_with("y is a scalar;"));
        assert!(says(num_examples(&(), &zeros(1))).starts_with("x has no tensor;"));
        assert_eq!(
            num_examples(&x.0, &(((), zeros(5)), Vec::<Tensor>::new())).unwrap(),
            5
        );
    }

    #[test]
    fn each_form_keeps_its_tensors_in_order() -> Result<()> {
        let t = |i: u32| Tensor::new(&[i], &Device::Cpu);
        let batch = ((t(0)?, t(1)?), [t(2)?], vec![t(3)?, t(4)?], (), (t(5)?,));
        let read = |batch: &dyn Fn() -> Result<Vec<Tensor>>| -> Result<Vec<u32>> {
            batch()?.iter().map(|t| t.get(0)?.to_scalar()).collect()
        };
        assert_eq!(read(&|| tensors(&batch))?, [0, 1, 2, 3, 4, 5]);
        let moved = batch.map(&mut |t| t + 10.0)?;
        assert_eq!(read(&|| tensors(&moved))?, [10, 11, 12, 13, 14, 15]);
        let back = with_tensors(&moved, tensors(&batch)?)?;
        assert_eq!(read(&|| tensors(&back))?, [0, 1, 2, 3, 4, 5]);
        assert!(with_tensors(&batch, [t(0)?]).is_err());
        assert!(with_tensors(&(), [t(0)?]).is_err());
        Ok(())
    }
}
