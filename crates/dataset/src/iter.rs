//! Minibatches of a split, epoch by epoch: an order of the examples, a shard of each minibatch, and a loader. Knows no
//! file.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Result, ensure};
use candle_core::{Device, Tensor};

use crate::loader::{Loader, Minibatch, Stop};
use crate::order::{Order, Shard};
use crate::split::Split;

/// Minibatches of a dataset, epoch by epoch; the book's `train_iter` and `test_iter`.
///
/// The order of an epoch depends on the seed and on the epoch's number alone, so a run that starts again at
/// epoch 5 sees what it would have seen. The last minibatch may be short.
#[derive(Clone, Debug)]
pub struct DataIter {
    examples: Examples,
    batch_size: usize,
    order: Order,
    shard: Shard,
    stop: Stop,
}

#[derive(Clone, Debug)]
enum Examples {
    Bytes(Arc<Split>),
    /// X and y, on the device where minibatches are made.
    Tensors(Tensor, Tensor),
}

impl DataIter {
    pub(crate) fn new(split: &Arc<Split>, batch_size: usize, seed: Option<u64>) -> Result<Self> {
        Self::of(
            Examples::Bytes(split.clone()),
            split.len(),
            batch_size,
            seed,
        )
    }

    /// Minibatches of data of one's own: `x` (n, …) and labels or targets `y` (n, …) of any type. With a seed each
    /// epoch has another order.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    ///
    /// let x = Tensor::arange(0f32, 10.0, &Device::Cpu)?.reshape((5, 2))?;
    /// let y = Tensor::arange(0f32, 5.0, &Device::Cpu)?;
    /// let data_iter = dataset::DataIter::of_tensors(&x, &y, 2, Some(0))?;
    /// let sizes: Vec<usize> = data_iter.epoch(1).map(|batch| batch?.0.dim(0)).collect::<Result<_, _>>()?;
    /// assert_eq!(sizes, [2, 2, 1]);
    /// # anyhow::Ok(())
    /// ```
    ///
    /// # Errors
    /// If `x` and `y` have different numbers of examples or none, or the batch size is 0.
    pub fn of_tensors(
        x: &Tensor,
        y: &Tensor,
        batch_size: usize,
        seed: Option<u64>,
    ) -> Result<Self> {
        let (n, labels) = (x.dim(0)?, y.dim(0)?);
        ensure!(n == labels, "x has {n} examples, y has {labels}");
        ensure!(n > 0, "x and y have no examples; give at least 1");
        let examples = Examples::Tensors(x.detach(), y.detach());
        Self::of(examples, n, batch_size, seed)
    }

    fn of(examples: Examples, n: usize, batch_size: usize, seed: Option<u64>) -> Result<Self> {
        ensure!(batch_size > 0, "the batch size is 0; give at least 1");
        Ok(DataIter {
            examples,
            batch_size,
            order: Order {
                examples: n,
                seed,
                begun: (0, 0),
            },
            shard: Shard { own: 0..1, of: 1 },
            stop: Stop::NEVER,
        })
    }

    /// The minibatches of epoch `epoch`, always the same for the same seed and number.
    ///
    /// ```
    /// use dataset::{Data, Options};
    ///
    /// let options = Options { data: Some(Data::Synthetic), limit_train: Some(30), limit_test: Some(1), ..Options::default() };
    /// let (train_iter, _) = dataset::load(&options)?.iters(20)?;
    /// let sizes: Vec<usize> = train_iter.epoch(1).map(|batch| batch?.1.dim(0)).collect::<Result<_, _>>()?;
    /// assert_eq!(sizes, [20, 10]);
    /// # anyhow::Ok(())
    /// ```
    pub fn epoch(&self, epoch: usize) -> Loader {
        let (iter, order) = (self.clone(), self.order.epoch(epoch));
        let firsts = (0..order.len()).step_by(self.batch_size);
        let minibatches = firsts.map(move |first| {
            let end = order.len().min(first + iter.batch_size);
            iter.minibatch(&order[first..end])
        });
        Loader::start(minibatches, self.stop)
    }

    /// The minibatches of epoch 1.
    pub fn iter(&self) -> Loader {
        self.epoch(1)
    }

    /// How many examples an epoch has.
    pub fn num_examples(&self) -> usize {
        self.order.examples
    }

    /// How many examples a minibatch has, but for the last one.
    pub fn batch_size(&self) -> usize {
        self.batch_size
    }

    /// How many minibatches an epoch has, the short last one included.
    pub fn num_batches(&self) -> usize {
        self.num_examples().div_ceil(self.batch_size)
    }

    /// Ends every epoch early once `flag` is set: this is how Ctrl-C ends a run in order.
    pub fn stop_when(mut self, flag: &'static AtomicBool) -> Self {
        self.stop.flag = Some(flag);
        self
    }

    /// Stops early only between groups of `minibatches`, as the gradients of so many make one step.
    ///
    /// # Panics
    /// If `minibatches` is 0.
    pub fn in_groups_of(mut self, minibatches: usize) -> Self {
        assert!(
            minibatches > 0,
            "the group has 0 minibatches; give at least 1"
        );
        self.stop.group = minibatches;
        self
    }

    /// Leaves out the first `batches` of epoch `epoch`: a run that was interrupted goes on there.
    ///
    /// ```
    /// use dataset::{Data, Options};
    ///
    /// let options = Options { data: Some(Data::Synthetic), limit_train: Some(30), limit_test: Some(1), ..Options::default() };
    /// let (train_iter, _) = dataset::load(&options)?.iters(20)?;
    /// let train_iter = train_iter.starting_at(3, 1);
    /// assert_eq!((train_iter.epoch(3).count(), train_iter.epoch(4).count()), (1, 2));
    /// # anyhow::Ok(())
    /// ```
    ///
    /// # Panics
    /// If an epoch has not so many minibatches.
    pub fn starting_at(mut self, epoch: usize, batches: usize) -> Self {
        let all = self.num_batches();
        assert!(
            batches <= all,
            "cannot leave out {batches} minibatches: an epoch has {all}"
        );
        let examples = self.num_examples().min(batches * self.batch_size);
        self.order.begun = (epoch, examples);
        self
    }

    /// Makes only some of the `of` shards into which a minibatch is split, for a process that trains with
    /// others: all of the same size, and the first ones with one image more where that does not divide, as
    /// the book's `split_batch` has it. An epoch has as many minibatches as before; one may be empty.
    ///
    /// ```
    /// use dataset::{Data, Options};
    ///
    /// let options = Options { data: Some(Data::Synthetic), limit_train: Some(11), limit_test: Some(1), ..Options::default() };
    /// let (train_iter, _) = dataset::load(&options)?.iters(8)?;
    /// let second_of_three = train_iter.shards(1..2, 3);
    /// let sizes: Vec<usize> = second_of_three.iter().map(|batch| batch?.1.dim(0)).collect::<Result<_, _>>()?;
    /// assert_eq!(sizes, [3, 1]); // of 8 = 3 + 3 + 2 and of 3 = 1 + 1 + 1
    /// # anyhow::Ok(())
    /// ```
    ///
    /// # Panics
    /// Where there are no such shards.
    pub fn shards(mut self, shards: Range<usize>, of: usize) -> Self {
        assert!(
            shards.start <= shards.end && shards.end <= of,
            "shards {shards:?} are not within 0..{of}"
        );
        self.shard = Shard { own: shards, of };
        self
    }

    /// Keeps all images and labels on `device`, such as a GPU, and makes the minibatches there: then nothing
    /// is copied in a step, and nothing waits. The values are the same. An image takes 3 KiB.
    ///
    /// ```
    /// use candle_core::Device;
    /// use dataset::{Data, Options};
    ///
    /// let options = Options { data: Some(Data::Synthetic), limit_train: Some(30), limit_test: Some(1), ..Options::default() };
    /// let (train_iter, _) = dataset::load(&options)?.iters(20)?;
    /// let train_iter = train_iter.on_device(&Device::Cpu)?;
    /// assert_eq!(train_iter.iter().next().unwrap()?.0.dims(), [20, 1, 28, 28]);
    /// # anyhow::Ok(())
    /// ```
    ///
    /// # Errors
    /// If the device has no room for them.
    pub fn on_device(mut self, device: &Device) -> candle_core::Result<Self> {
        let (x, y) = match &self.examples {
            Examples::Tensors(x, y) => (x.clone(), y.clone()),
            Examples::Bytes(split) => {
                let all: Vec<u32> = (0..split.len() as u32).collect();
                split.minibatch(&all)?
            }
        };
        self.examples = Examples::Tensors(x.to_device(device)?, y.to_device(device)?);
        Ok(self)
    }

    /// This process's part of the minibatch with these indices.
    fn minibatch(&self, indices: &[u32]) -> Minibatch {
        let own = self.shard.part(indices);
        match &self.examples {
            Examples::Bytes(split) => split.minibatch(own),
            Examples::Tensors(x, y) => {
                let own = Tensor::new(own, x.device())?;
                Ok((x.index_select(&own, 0)?, y.index_select(&own, 0)?))
            }
        }
    }
}

impl IntoIterator for &DataIter {
    type Item = Minibatch;
    type IntoIter = Loader;

    fn into_iter(self) -> Loader {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use candle_core::IndexOp;
    use proptest::prelude::*;

    use super::*;
    use crate::split::PIXELS;

    /// Image i has the label i % 10 and the byte i / 10 % 256 in its first pixel: enough to know it again.
    fn numbered(n: usize) -> Arc<Split> {
        let mut images = vec![0; n * PIXELS];
        (0..n).for_each(|i| images[i * PIXELS] = (i / 10 % 256) as u8);
        Arc::new(Split::new(images, (0..n).map(|i| (i % 10) as u8).collect()).unwrap())
    }

    /// The numbers of the images of every minibatch.
    fn numbers(minibatches: Loader) -> Vec<Vec<usize>> {
        let read = |minibatch: Minibatch| {
            let (x, y) = minibatch.unwrap();
            let first = x.i((.., 0, 0, 0)).unwrap().to_vec1::<f32>().unwrap();
            let both = first.iter().zip(y.to_vec1::<u32>().unwrap());
            both.map(|(v, one)| (v * 255.0).round() as usize * 10 + one as usize)
                .collect()
        };
        minibatches.map(read).collect()
    }

    fn iter(n: usize, batch_size: usize, seed: Option<u64>) -> DataIter {
        DataIter::new(&numbered(n), batch_size, seed).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn an_epoch_is_a_permutation_cut_in_minibatches(
            n in 1usize..300, batch_size in 1usize..70, seed: u64, epoch in 0usize..100,
        ) {
            let iter = iter(n, batch_size, Some(seed));
            let batches = numbers(iter.epoch(epoch));
            prop_assert_eq!(batches.len(), iter.num_batches());
            let (last, full) = batches.split_last().unwrap();
            prop_assert!(full.iter().all(|b| b.len() == batch_size));
            prop_assert_eq!(last.len(), n - full.len() * batch_size);
            let mut all = batches.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..n).collect::<Vec<_>>());
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
        let iter = iter(200, 32, Some(5));
        assert_eq!(numbers(iter.iter()), numbers(iter.epoch(1)));
        assert_eq!(numbers(iter.into_iter()), numbers(iter.epoch(1)));
    }

    #[test]
    fn minibatches_made_on_a_device_have_the_same_values() {
        let iter = iter(200, 32, Some(5));
        let on_device = iter.clone().on_device(&Device::Cpu).unwrap();
        assert_eq!(numbers(on_device.epoch(3)), numbers(iter.epoch(3)));
        let first = |iter: DataIter| {
            let (x, _) = iter.iter().next().unwrap().unwrap();
            x.flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        assert_eq!(first(on_device), first(iter));
    }

    #[test]
    fn the_full_sets_at_256_end_in_96_and_16() {
        for (n, batches, last) in [(60_000, 235, 96), (10_000, 40, 16)] {
            let iter = iter(n, 256, None);
            assert_eq!((iter.num_examples(), iter.num_batches()), (n, batches));
            let sizes = iter.iter().map(|b| b.unwrap().1.dim(0).unwrap());
            let mut expected = vec![iter.batch_size(); batches - 1];
            expected.push(last);
            assert_eq!(sizes.collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn a_batch_size_of_0_is_refused() {
        let error = DataIter::new(&numbered(1), 0, None).unwrap_err();
        assert_eq!(error.to_string(), "the batch size is 0; give at least 1");
    }

    #[test]
    fn a_dropped_iterator_leaves_no_thread_behind() {
        let iter = iter(1000, 10, Some(1));
        let Examples::Bytes(split) = &iter.examples else {
            panic!("they are bytes")
        };
        let owners = Arc::strong_count(split);
        let mut batches = iter.epoch(1);
        assert!(batches.next().is_some());
        // the thread holds the images while it works, and drop waits for its end
        assert_eq!(Arc::strong_count(split), owners + 1);
        drop(batches);
        assert_eq!(Arc::strong_count(split), owners);
    }

    #[test]
    fn the_stop_flag_ends_the_epoch_after_the_current_minibatch() {
        static STOP: AtomicBool = AtomicBool::new(false);
        let iter = iter(100, 10, None).stop_when(&STOP);
        let mut batches = iter.epoch(1);
        assert!(batches.next().is_some());
        STOP.store(true, Ordering::Relaxed);
        assert!(batches.next().is_none());
        STOP.store(false, Ordering::Relaxed);
        // an epoch that was stopped stays stopped
        assert!(batches.next().is_none());
        assert_eq!(iter.epoch(1).count(), 10);
    }

    #[test]
    fn a_group_is_not_torn() {
        static STOP: AtomicBool = AtomicBool::new(false);
        let iter = iter(100, 10, None).stop_when(&STOP).in_groups_of(4);
        let mut batches = iter.epoch(1);
        assert!(batches.next().is_some());
        STOP.store(true, Ordering::Relaxed);
        assert_eq!(batches.count(), 3);
        assert_eq!(iter.epoch(1).count(), 0);
    }

    #[test]
    fn an_epoch_goes_on_where_it_was_interrupted() {
        let iter = iter(105, 10, Some(3));
        let whole = numbers(iter.epoch(2));
        for had in 0..=whole.len() {
            let rest = iter.clone().starting_at(2, had);
            assert_eq!(numbers(rest.epoch(2)), whole[had..]);
            assert_eq!(numbers(rest.epoch(3)), numbers(iter.epoch(3)));
        }
    }
}
