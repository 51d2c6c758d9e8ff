//! Minibatches, epoch by epoch: an order of the examples, a shard of each minibatch, and a loader.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use candle_core::{Device, Result, Tensor};
use devices::{Context, ensure};
use rand::seq::SliceRandom;

use crate::batch::{Batch, num_examples, tensors};
use crate::loader::{Loader, Stop};
use crate::random::generator;
use crate::shares::shares;

/// Examples by their number, from which minibatches are made; PyTorch's map-style `Dataset`. A pair of batches (X, y),
/// such as two tensors, is one; if they are views, each minibatch copies them, which [`DataIter::of_tensors`] does once.
///
/// Minibatches of several inputs or targets are of other types: `impl Examples<(Tensor, Tensor), ()> for …`.
pub trait Examples<X = Tensor, Y = Tensor>: Send + Sync {
    /// Number of examples.
    fn num_examples(&self) -> usize;

    /// X (B, …) and y (B, …) of the examples with these numbers, at least one, in epoch `epoch`. In several processes each
    /// asks for its part of a minibatch. Augmentation draws from
    /// [`example_rng`](crate::example_rng), so that a run that is resumed draws the same.
    ///
    /// It runs on a thread of the loader, some minibatches ahead of the steps. So it must not ask a network that trains at the
    /// same time, as for pseudo-labels: each run would get other answers. Ask such a network between two epochs.
    ///
    /// ```
    /// use candle_core::{Device, Result, Tensor};
    /// use data_parallel_training::{Examples, example_rng, uniform};
    ///
    /// /// Numbers with a little noise, another one in each epoch.
    /// struct Noisy(Tensor);
    ///
    /// impl Examples for Noisy {
    ///     fn num_examples(&self) -> usize {
    ///         self.0.elem_count()
    ///     }
    ///
    ///     fn minibatch(&self, numbers: &[u32], epoch: usize) -> Result<(Tensor, Tensor)> {
    ///         let noise = numbers.iter().map(|i| uniform(&mut example_rng(0, epoch, *i), -0.1, 0.1, 1));
    ///         let noise = Tensor::cat(&noise.collect::<Result<Vec<_>>>()?, 0)?;
    ///         let numbers = Tensor::new(numbers, &Device::Cpu)?;
    ///         Ok(((self.0.index_select(&numbers, 0)? + noise)?, numbers))
    ///     }
    /// }
    ///
    /// let data = Noisy(Tensor::new(&[1f32, 2.0], &Device::Cpu)?);
    /// let draw = |epoch| data.minibatch(&[1], epoch)?.0.to_vec1::<f32>();
    /// assert_eq!(draw(1)?, draw(1)?);
    /// assert_ne!(draw(1)?, draw(2)?);
    /// # candle_core::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If they cannot be made; the epoch gives the error in place of the minibatch. It also gives one where the minibatch has
    /// more or fewer examples than numbers: an example that cannot be read may get a weight of 0 among the targets.
    fn minibatch(&self, numbers: &[u32], epoch: usize) -> Result<(X, Y)>;
}

impl<X: Batch, Y: Batch> Examples<X, Y> for (X, Y) {
    fn num_examples(&self) -> usize {
        let inputs = tensors(&self.0).unwrap_or_default();
        let first = inputs.first().and_then(|x| x.dims().first());
        first.map_or(0, |n| *n)
    }

    fn minibatch(&self, numbers: &[u32], _: usize) -> Result<(X, Y)> {
        num_examples(&self.0, &self.1)?;
        // candle selects of contiguous tensors, which are not copied
        let mut rows = |of: &Tensor| {
            let numbers = Tensor::new(numbers, of.device())?;
            of.contiguous()?.index_select(&numbers, 0)
        };
        Ok((self.0.map(&mut rows)?, self.1.map(&mut rows)?))
    }
}

impl<X, Y, E: Examples<X, Y> + ?Sized> Examples<X, Y> for Arc<E> {
    fn num_examples(&self) -> usize {
        (**self).num_examples()
    }

    fn minibatch(&self, numbers: &[u32], epoch: usize) -> Result<(X, Y)> {
        (**self).minibatch(numbers, epoch)
    }
}

/// Minibatches of a dataset, epoch by epoch; the book's `train_iter` and `test_iter`.
///
/// The order of an epoch depends on the seed and on the epoch's number alone, so a run that starts again at
/// epoch 5 sees what it would have seen. The last minibatch may be short.
///
/// X and y are tensors, or other forms of [`Batch`].
#[derive(Clone)]
pub struct DataIter<X = Tensor, Y = Tensor> {
    /// Another one for each data. Clones have the same.
    number: usize,
    examples: Arc<dyn Examples<X, Y>>,
    num_examples: usize,
    batch_size: usize,
    /// Without a seed, the order is the files'.
    seed: Option<u64>,
    begun: Begun,
    /// True if a last minibatch that is not full is left out.
    drops_last: bool,
    part: Part,
    stop: Stop,
}

/// The numbers of data that were taken.
static NUMBERS: AtomicUsize = AtomicUsize::new(0);

/// An epoch in which an interrupted run goes on.
#[derive(Clone, Debug, Default)]
struct Begun {
    epoch: usize,
    /// Number of its examples that the run has had.
    examples: usize,
}

/// Part of a minibatch that this process makes.
#[derive(Clone, Debug)]
struct Part {
    /// Its shards.
    shards: Range<usize>,
    /// The weights of all shards into which the minibatch is split.
    weights: Vec<f64>,
}

impl<X, Y> fmt::Debug for DataIter<X, Y> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataIter")
            .field("num_examples", &self.num_examples)
            .field("batch_size", &self.batch_size)
            .field("seed", &self.seed)
            .field("drops_last", &self.drops_last)
            .field("part", &self.part)
            .finish_non_exhaustive()
    }
}

impl<X: Batch, Y: Batch> DataIter<X, Y> {
    /// Minibatches of `examples`. With a seed, each epoch has another order.
    ///
    /// # Errors
    /// If there are no examples, or the batch size is 0.
    pub fn new(
        examples: impl Examples<X, Y> + 'static,
        batch_size: usize,
        seed: Option<u64>,
    ) -> Result<Self> {
        let num_examples = examples.num_examples();
        ensure!(num_examples > 0, "there are no examples; give at least 1");
        ensure!(batch_size > 0, "the batch size is 0; give at least 1");
        Ok(DataIter {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            examples: Arc::new(examples),
            num_examples,
            batch_size,
            seed,
            begun: Begun::default(),
            drops_last: false,
            part: Part {
                shards: 0..1,
                weights: vec![1.0],
            },
            stop: Stop::NEVER,
        })
    }

    /// Minibatches of data of one's own: `x` (n, …) and labels or targets `y` (n, …) of any type. With a seed each
    /// epoch has another order. `x` and `y` may be several tensors each, and `y` may be `()`: see [`Batch`].
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    ///
    /// let x = Tensor::arange(0f32, 10.0, &Device::Cpu)?.reshape((5, 2))?;
    /// let y = Tensor::arange(0f32, 5.0, &Device::Cpu)?;
    /// let data_iter = data_parallel_training::DataIter::of_tensors(&x, &y, 2, Some(0))?;
    /// let sizes: Vec<usize> = data_iter.epoch(1).map(|batch| batch?.0.dim(0)).collect::<Result<_, _>>()?;
    /// assert_eq!(sizes, [2, 2, 1]);
    /// // an anchor, an example like it, one unlike it; and no labels
    /// let triplets = data_parallel_training::DataIter::of_tensors(&[x.clone(), x.clone(), x.neg()?], &(), 2, Some(0))?;
    /// let ([anchor, like, unlike], ()) = triplets.epoch(1).next().expect("a minibatch")?;
    /// assert_eq!((anchor.dims(), like.dims(), unlike.dims()), (&[2, 2][..], &[2, 2][..], &[2, 2][..]));
    /// # candle_core::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If two of the tensors have different numbers of examples or none, or the batch size is 0.
    pub fn of_tensors(x: &X, y: &Y, batch_size: usize, seed: Option<u64>) -> Result<Self> {
        let n = num_examples(x, y)?;
        ensure!(n > 0, "x and y have no examples; give at least 1");
        let mut own = |tensor: &Tensor| Ok(tensor.contiguous()?.detach());
        Self::new((x.map(&mut own)?, y.map(&mut own)?), batch_size, seed)
    }

    /// The minibatches of epoch `epoch`, always the same for the same seed and number.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use data_parallel_training::DataIter;
    /// let (x, y) = (Tensor::zeros((30, 2), DType::F32, &Device::Cpu)?, Tensor::zeros(30, DType::U32, &Device::Cpu)?);
    /// let train_iter = DataIter::of_tensors(&x, &y, 20, Some(0))?;
    /// let sizes: Vec<usize> = train_iter.epoch(1).map(|batch| batch?.1.dim(0)).collect::<Result<_, _>>()?;
    /// assert_eq!(sizes, [20, 10]);
    /// # candle_core::Result::Ok(())
    /// ```
    pub fn epoch(&self, epoch: usize) -> Loader<X, Y> {
        self.load(self.order(epoch), epoch)
    }

    /// The minibatches of the examples with these numbers.
    fn load(&self, order: Vec<u32>, epoch: usize) -> Loader<X, Y> {
        let iter = self.clone();
        let firsts = (0..order.len()).step_by(self.batch_size);
        let minibatches = firsts.map(move |first| {
            let end = order.len().min(first + iter.batch_size);
            iter.minibatch(&order[first..end], epoch)
        });
        Loader::start(minibatches, self.stop.clone())
    }

    /// All minibatches in the order in which the examples are given, also where the epochs are shuffled: for an evaluation.
    /// To train, take the minibatches of each [`epoch`](Self::epoch).
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_training::DataIter;
    /// let (x, y) = (Tensor::arange(0f32, 5.0, &Device::Cpu)?, Tensor::arange(0u32, 5, &Device::Cpu)?);
    /// let train_iter = DataIter::of_tensors(&x, &y, 2, Some(0))?;
    /// let first = train_iter.in_order().next().expect("a minibatch")?;
    /// assert_eq!(first.1.to_vec1::<u32>()?, [0, 1]);
    /// # candle_core::Result::Ok(())
    /// ```
    pub fn in_order(&self) -> Loader<X, Y> {
        let order = (0..self.num_examples() as u32).collect();
        self.load(order, 1)
    }

    /// Leaves out the last minibatch of each epoch if it is not full: PyTorch's `drop_last`. With a seed, other examples are
    /// left out in each epoch. A batch norm needs more than one value a channel, which a short minibatch may not have.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use data_parallel_training::DataIter;
    /// let (x, y) = (Tensor::zeros((30, 2), DType::F32, &Device::Cpu)?, Tensor::zeros(30, DType::U32, &Device::Cpu)?);
    /// let train_iter = DataIter::of_tensors(&x, &y, 20, Some(0))?.drop_last()?;
    /// assert_eq!(train_iter.epoch(1).count(), 1);
    /// # candle_core::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If no minibatch would be left.
    pub fn drop_last(mut self) -> Result<Self> {
        let n = self.num_examples;
        let batch_size = self.batch_size;
        ensure!(
            n >= batch_size,
            "drop_last: {n} examples make no minibatch of {batch_size}; choose a smaller batch size"
        );
        self.drops_last = true;
        Ok(self)
    }

    /// Number of examples in an epoch.
    pub fn num_examples(&self) -> usize {
        if self.drops_last {
            self.num_examples - self.num_examples % self.batch_size
        } else {
            self.num_examples
        }
    }

    /// Number of examples in a minibatch, but for the last one.
    pub fn batch_size(&self) -> usize {
        self.batch_size
    }

    /// Number of minibatches in an epoch. A short last one counts, unless it is left out.
    pub fn num_batches(&self) -> usize {
        self.num_examples().div_ceil(self.batch_size)
    }

    /// Settings on which the minibatches depend beside the examples themselves, a line each.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use data_parallel_training::DataIter;
    /// let (x, y) = (Tensor::zeros((30, 2), DType::F32, &Device::Cpu)?, Tensor::zeros(30, DType::U32, &Device::Cpu)?);
    /// let train_iter = DataIter::of_tensors(&x, &y, 20, Some(7))?;
    /// assert_eq!(train_iter.settings(), "examples 30\nbatch-size 20\norder of seed 7\ndrop-last false");
    /// # candle_core::Result::Ok(())
    /// ```
    pub fn settings(&self) -> String {
        let order = match self.seed {
            Some(seed) => format!("of seed {seed}"),
            None => "as given".to_owned(),
        };
        format!(
            "examples {}\nbatch-size {}\norder {order}\ndrop-last {}",
            self.num_examples, self.batch_size, self.drops_last
        )
    }

    /// A number that tells this data from any other in the process. Clones have the same.
    pub fn number(&self) -> usize {
        self.number
    }

    /// True if it makes only a part of each minibatch, as [`shards`](Self::shards) says.
    pub fn is_part(&self) -> bool {
        self.part.weights.len() > 1
    }

    /// Ends every epoch early once `flag` is set: this is how Ctrl-C ends a run in order.
    pub fn stop_when(mut self, flag: Arc<AtomicBool>) -> Self {
        self.stop.flag = Some(flag);
        self
    }

    /// Stops early only between groups of `minibatches`: the gradients of a group make one step.
    ///
    /// # Errors
    /// If `minibatches` is 0.
    pub fn in_groups_of(mut self, minibatches: usize) -> Result<Self> {
        ensure!(
            minibatches > 0,
            "the group has 0 minibatches; give at least 1"
        );
        self.stop.group = minibatches;
        Ok(self)
    }

    /// Leaves out the first `batches` of epoch `epoch`: a run that was interrupted goes on there.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use data_parallel_training::DataIter;
    /// let (x, y) = (Tensor::zeros((30, 2), DType::F32, &Device::Cpu)?, Tensor::zeros(30, DType::U32, &Device::Cpu)?);
    /// let train_iter = DataIter::of_tensors(&x, &y, 20, Some(0))?;
    /// let train_iter = train_iter.starting_at(3, 1)?;
    /// assert_eq!((train_iter.epoch(3).count(), train_iter.epoch(4).count()), (1, 2));
    /// # candle_core::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If an epoch has fewer than `batches` minibatches.
    pub fn starting_at(mut self, epoch: usize, batches: usize) -> Result<Self> {
        let all = self.num_batches();
        ensure!(
            batches <= all,
            "cannot leave out {batches} minibatches: an epoch has {all}"
        );
        let examples = self.num_examples().min(batches * self.batch_size);
        self.begun = Begun { epoch, examples };
        Ok(self)
    }

    /// Makes only some of the `of` shards into which a minibatch is split, for a process that trains with
    /// others: all of the same size, and the first ones with one image more where that does not divide, as
    /// the book's `split_batch` has it. An epoch has as many minibatches as before; one may be empty.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use data_parallel_training::DataIter;
    /// let (x, y) = (Tensor::zeros((11, 2), DType::F32, &Device::Cpu)?, Tensor::zeros(11, DType::U32, &Device::Cpu)?);
    /// let train_iter = DataIter::of_tensors(&x, &y, 8, Some(0))?;
    /// let second_of_three = train_iter.shards(1..2, 3)?;
    /// let sizes: Vec<usize> = second_of_three.epoch(1).map(|batch| batch?.1.dim(0)).collect::<Result<_, _>>()?;
    /// assert_eq!(sizes, [3, 1]); // of 8 = 3 + 3 + 2 and of 3 = 1 + 1 + 1
    /// # candle_core::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Where there are no such shards.
    pub fn shards(mut self, shards: Range<usize>, of: usize) -> Result<Self> {
        ensure!(
            shards.start <= shards.end && shards.end <= of,
            "shards {shards:?} are not within 0..{of}"
        );
        let weights = vec![1.0; of];
        self.part = Part { shards, weights };
        Ok(self)
    }

    /// Splits minibatches into [`shards`](Self::shards) in proportion to these weights, for devices of different speed.
    ///
    /// # Errors
    /// Where there is not one weight for each shard.
    pub fn split_by(mut self, weights: &[f64]) -> Result<Self> {
        let n = weights.len();
        let of = self.part.weights.len();
        ensure!(n == of, "{n} weights for {of} shards; give one for each");
        self.part.weights = weights.to_vec();
        Ok(self)
    }

    /// Keeps all examples on `device`, such as a GPU, and makes the minibatches there: then a step copies only the
    /// numbers of its examples to it, and nothing waits. The values are the same. An image of Fashion-MNIST takes 3 KiB.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use data_parallel_training::DataIter;
    /// let (x, y) = (Tensor::zeros((30, 2), DType::F32, &Device::Cpu)?, Tensor::zeros(30, DType::U32, &Device::Cpu)?);
    /// let train_iter = DataIter::of_tensors(&x, &y, 20, Some(0))?;
    /// let train_iter = train_iter.on_device(&Device::Cpu)?;
    /// assert_eq!(train_iter.epoch(1).next().unwrap()?.0.dims(), [20, 2]);
    /// # candle_core::Result::Ok(())
    /// ```
    ///
    /// Examples that draw something in each epoch are drawn once, as for epoch 1.
    ///
    /// # Errors
    /// If the device has no room for them.
    pub fn on_device(mut self, device: &Device) -> Result<Self> {
        let all: Vec<u32> = (0..self.num_examples as u32).collect();
        let (x, y) = self.examples.minibatch(&all, 1)?;
        let mut copy = |tensor: &Tensor| devices::to_device(tensor, device);
        self.examples = Arc::new((x.map(&mut copy)?, y.map(&mut copy)?));
        Ok(self)
    }

    /// The numbers of the examples of epoch `epoch` that are still to come.
    fn order(&self, epoch: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.num_examples as u32).collect();
        if let Some(seed) = self.seed {
            order.shuffle(&mut generator(seed, b"shuf", epoch as u32));
        }
        order.truncate(self.num_examples());
        if epoch == self.begun.epoch {
            let had = self.begun.examples.min(order.len()); // `drop_last` may have left fewer
            order.drain(..had);
        }
        order
    }

    /// This process's part of the minibatch with these numbers.
    fn minibatch(&self, numbers: &[u32], epoch: usize) -> Result<(X, Y)> {
        let own = &self.part.shards;
        let shares = shares(numbers.len(), &self.part.weights);
        let first = |shard: usize| shares[..shard].iter().sum::<usize>();
        let own = &numbers[first(own.start)..first(own.end)];
        if own.is_empty() {
            // examples of one's own need not know how to make a minibatch of none
            let (x, y) = self.examples.minibatch(&numbers[..1], epoch)?;
            let mut none = |tensor: &Tensor| tensor.narrow(0, 0, 0);
            return Ok((x.map(&mut none)?, y.map(&mut none)?));
        }
        let (x, y) = self.examples.minibatch(own, epoch)?;
        let made = num_examples(&x, &y).context("Examples::minibatch")?;
        let expected = own.len();
        ensure!(
            made == expected,
            "Examples::minibatch made {made} examples of {expected} numbers"
        );
        Ok((x, y))
    }
}

/// Minibatches for an evaluation: a [`DataIter`], of which it takes all [in order](DataIter::in_order), or an iterator
/// of one's own.
pub trait Minibatches {
    /// The inputs of a minibatch.
    type X: Batch;
    /// Its labels or targets.
    type Y: Batch;

    /// The minibatches X and y. Of a [`DataIter`] they are those of the part that `cut` makes of it; an iterator of one's
    /// own gives a process's part of each minibatch by itself.
    fn minibatches(
        self,
        cut: impl FnOnce(DataIter<Self::X, Self::Y>) -> DataIter<Self::X, Self::Y>,
    ) -> impl Iterator<Item = Result<(Self::X, Self::Y)>>;
}

impl<X: Batch, Y: Batch> Minibatches for &DataIter<X, Y> {
    type X = X;
    type Y = Y;

    fn minibatches(
        self,
        cut: impl FnOnce(DataIter<X, Y>) -> DataIter<X, Y>,
    ) -> impl Iterator<Item = Result<(X, Y)>> {
        cut(self.clone()).in_order()
    }
}

impl<X: Batch, Y: Batch, I: IntoIterator<Item = Result<(X, Y)>>> Minibatches for I {
    type X = X;
    type Y = Y;

    fn minibatches(
        self,
        _: impl FnOnce(DataIter<X, Y>) -> DataIter<X, Y>,
    ) -> impl Iterator<Item = Result<(X, Y)>> {
        self.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use proptest::prelude::*;

    use super::*;

    /// The numbers of the examples of every minibatch, which X and y both have.
    fn numbers(minibatches: Loader) -> Vec<Vec<u32>> {
        let read = |minibatch: Result<(Tensor, Tensor)>| {
            let (x, y) = minibatch.unwrap();
            let y = y.to_vec1::<u32>().unwrap();
            let as_floats: Vec<f32> = y.iter().map(|number| *number as f32).collect();
            assert_eq!(x.to_vec1::<f32>().unwrap(), as_floats);
            y
        };
        minibatches.map(read).collect()
    }

    /// Example i has the number i as X and as y.
    fn iter(n: u32, batch_size: usize, seed: Option<u64>) -> DataIter {
        let x = Tensor::arange(0f32, n as f32, &Device::Cpu).unwrap();
        let y = Tensor::arange(0u32, n, &Device::Cpu).unwrap();
        DataIter::of_tensors(&x, &y, batch_size, seed).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn an_epoch_is_a_permutation_cut_in_minibatches(
            n in 1u32..300, batch_size in 1usize..70, seed: u64, epoch in 0usize..100,
        ) {
            let iter = iter(n, batch_size, Some(seed));
            let batches = numbers(iter.epoch(epoch));
            prop_assert_eq!(batches.len(), iter.num_batches());
            let (last, full) = batches.split_last().unwrap();
            prop_assert!(full.iter().all(|b| b.len() == batch_size));
            prop_assert_eq!(last.len(), n as usize - full.len() * batch_size);
            let mut all = batches.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..n).collect::<Vec<_>>());
            if let Ok(full) = iter.clone().starting_at(epoch, iter.num_batches()).unwrap().drop_last() {
                prop_assert_eq!(full.epoch(epoch).count(), 0); // in this order too
            }
            if let Ok(full) = iter.drop_last() {
                let left = numbers(full.epoch(epoch));
                prop_assert_eq!(left.len(), full.num_batches());
                prop_assert_eq!(left.concat().len(), full.num_examples());
                prop_assert_eq!(&left[..], &batches[..n as usize / batch_size]);
            } else {
                prop_assert!((n as usize) < batch_size);
            }
        }
    }

    #[test]
    fn the_order_depends_on_seed_and_epoch_alone() {
        let order = |seed, epoch| numbers(iter(200, 32, seed).epoch(epoch)).concat();
        assert_eq!(order(Some(5), 3), order(Some(5), 3));
        assert_ne!(order(Some(5), 3), order(Some(5), 4));
        assert_ne!(order(Some(5), 3), order(Some(6), 3));
        // without a seed, it is the files'
        assert_eq!(order(None, 7), (0..200).collect::<Vec<_>>());
    }

    /// What was left out of an epoch that goes on is not left out of an evaluation.
    #[test]
    fn in_order_are_all_examples() {
        let all: Vec<u32> = (0..200).collect();
        let iter = iter(200, 32, Some(5));
        assert_eq!(numbers(iter.in_order()).concat(), all);
        let begun = iter.clone().starting_at(1, 3).unwrap();
        assert_eq!(numbers(begun.epoch(1)).len(), 4);
        assert_eq!(numbers(begun.in_order()).concat(), all);
        let full = iter.drop_last().unwrap();
        assert_eq!(numbers(full.in_order()).concat(), all[..192]);
    }

    /// Columns, a transposed tensor, a part, and one row for all examples.
    #[test]
    fn views_give_what_copies_give() -> Result<()> {
        let all = Tensor::arange(0f32, 240.0, &Device::Cpu)?.reshape((12, 20))?;
        let y = Tensor::arange(0u32, 12, &Device::Cpu)?;
        for x in [
            all.narrow(1, 3, 5)?,
            all.reshape((20, 12))?.t()?,
            all.reshape((24, 10))?.narrow(0, 7, 12)?,
            all.narrow(0, 0, 1)?.expand((12, 20))?,
        ] {
            let copied = DataIter::of_tensors(&x.force_contiguous()?, &y, 5, Some(1))?;
            for iter in [
                DataIter::of_tensors(&x, &y, 5, Some(1))?,
                DataIter::new((x.clone(), y.clone()), 5, Some(1))?,
                DataIter::new((x.clone(), y.clone()), 5, Some(1))?.on_device(&Device::Cpu)?,
            ] {
                for (own, copied) in iter.epoch(1).zip(copied.epoch(1)) {
                    let (own, copied) = (own?, copied?);
                    assert_eq!(own.0.to_vec2::<f32>()?, copied.0.to_vec2::<f32>()?);
                    assert_eq!(own.1.to_vec1::<u32>()?, copied.1.to_vec1::<u32>()?);
                }
            }
        }
        Ok(())
    }

    #[test]
    fn a_batch_size_of_0_is_refused() {
        let x = Tensor::new(&[1f32], &Device::Cpu).unwrap();
        let error = DataIter::of_tensors(&x, &x, 0, None).unwrap_err();
        assert_eq!(error.to_string(), "the batch size is 0; give at least 1");
    }

    #[test]
    fn a_dropped_iterator_leaves_no_thread_behind() {
        let iter = iter(1000, 10, Some(1));
        let owners = || Arc::strong_count(&iter.examples);
        let before = owners();
        let mut batches = iter.epoch(1);
        assert!(batches.next().is_some());
        // the thread holds the examples while it works, and drop waits for its end
        assert_eq!(owners(), before + 1);
        drop(batches);
        assert_eq!(owners(), before);
    }

    #[test]
    fn the_stop_flag_ends_the_epoch_after_the_current_minibatch() {
        let stop = Arc::new(AtomicBool::new(false));
        let iter = iter(100, 10, None).stop_when(stop.clone());
        let mut batches = iter.epoch(1);
        assert!(batches.next().is_some());
        stop.store(true, Ordering::Relaxed);
        assert!(batches.next().is_none());
        stop.store(false, Ordering::Relaxed);
        // an epoch that was stopped stays stopped
        assert!(batches.next().is_none());
        assert_eq!(iter.epoch(1).count(), 10);
    }

    #[test]
    fn a_group_is_not_torn() {
        let stop = Arc::new(AtomicBool::new(false));
        let iter = iter(100, 10, None).stop_when(stop.clone());
        let iter = iter.in_groups_of(4).unwrap();
        let mut batches = iter.epoch(1);
        assert!(batches.next().is_some());
        stop.store(true, Ordering::Relaxed);
        assert_eq!(batches.count(), 3);
        assert_eq!(iter.epoch(1).count(), 0);
    }

    #[test]
    fn an_epoch_goes_on_where_it_was_interrupted() {
        let iter = iter(105, 10, Some(3));
        let whole = numbers(iter.epoch(2));
        for had in 0..=whole.len() {
            let rest = iter.clone().starting_at(2, had).unwrap();
            assert_eq!(numbers(rest.epoch(2)), whole[had..]);
            assert_eq!(numbers(rest.epoch(3)), numbers(iter.epoch(3)));
        }
    }
}
