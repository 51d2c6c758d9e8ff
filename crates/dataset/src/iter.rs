//! Minibatches: the order of their images, and the thread that prepares the next ones during a training step.
//! Knows no file.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use anyhow::{Result, ensure};
use candle_core::{Device, Error, Tensor};
use rand::seq::SliceRandom;

use crate::{Split, generator};

/// How many minibatches wait ready: two hide a slow one, more would only take memory.
const READY: usize = 2;

type Minibatch = candle_core::Result<(Tensor, Tensor)>;

/// Minibatches of one split, epoch by epoch; the book's `train_iter` and `test_iter`.
///
/// The order of an epoch depends on the seed and on the epoch's number alone, so a run that starts again at
/// epoch 5 sees what it would have seen. The last minibatch may be short.
#[derive(Clone, Debug)]
pub struct DataIter {
    split: Arc<Split>,
    batch_size: usize,
    shuffle_seed: Option<u64>,
    stop: Option<&'static AtomicBool>,
    /// It stops only between groups of so many minibatches.
    group: usize,
    /// An epoch of which the first minibatches are left out, and how many.
    begun: Option<(usize, usize)>,
    /// Which of so many shards of a minibatch are made, where not all are.
    shards: Option<(Range<usize>, usize)>,
    /// All images and labels on a device, where the minibatches are made there.
    resident: Option<(Tensor, Tensor)>,
}

impl DataIter {
    pub(crate) fn new(
        split: &Arc<Split>,
        batch_size: usize,
        shuffle_seed: Option<u64>,
    ) -> Result<Self> {
        ensure!(batch_size > 0, "the batch size is 0; give at least 1");
        Ok(DataIter {
            split: split.clone(),
            batch_size,
            shuffle_seed,
            stop: None,
            group: 1,
            begun: None,
            shards: None,
            resident: None,
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
    pub fn epoch(&self, epoch: usize) -> Batches {
        let (iter, order) = (self.clone(), self.order(epoch));
        let had = self.had(epoch);
        let (sender, ready) = sync_channel(READY);
        let errors = sender.clone();
        let work = move || {
            iter.prepare(
                order.get(had * iter.batch_size..).unwrap_or_default(),
                &sender,
            )
        };
        let thread = Builder::new().name("minibatches".into()).spawn(work);
        // The channel is empty and has room, so this cannot block.
        let thread = thread.map_err(|e| errors.send(Err(Error::wrap(e)))).ok();
        Batches {
            ready: Some(ready),
            thread,
            left: self.num_batches() - had,
            stop: self.stop,
            group: self.group,
            given: 0,
        }
    }

    /// How many minibatches of an epoch are left out.
    fn had(&self, epoch: usize) -> usize {
        let had = self.begun.filter(|(begun, _)| *begun == epoch);
        had.map_or(0, |(_, batches)| batches)
    }

    /// The minibatches of epoch 1.
    pub fn iter(&self) -> Batches {
        self.epoch(1)
    }

    /// How many images an epoch has.
    pub fn num_examples(&self) -> usize {
        self.split.len()
    }

    /// How many images a minibatch has, but for the last one.
    pub fn batch_size(&self) -> usize {
        self.batch_size
    }

    /// The checksum of its images and labels, [`Split::checksum`].
    pub fn checksum(&self) -> u32 {
        self.split.checksum()
    }

    /// How many minibatches an epoch has, the short last one included.
    pub fn num_batches(&self) -> usize {
        self.split.len().div_ceil(self.batch_size)
    }

    /// Ends every epoch early once `flag` is set: this is how Ctrl-C ends a run in order.
    pub fn stop_when(self, flag: &'static AtomicBool) -> Self {
        DataIter {
            stop: Some(flag),
            ..self
        }
    }

    /// Stops early only between groups of `minibatches`, as the gradients of so many make one step.
    ///
    /// # Panics
    /// If `minibatches` is 0.
    pub fn in_groups_of(self, minibatches: usize) -> Self {
        assert!(
            minibatches > 0,
            "the group has 0 minibatches; give at least 1"
        );
        DataIter {
            group: minibatches,
            ..self
        }
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
    pub fn starting_at(self, epoch: usize, batches: usize) -> Self {
        let all = self.num_batches();
        assert!(
            batches <= all,
            "cannot leave out {batches} minibatches: an epoch has {all}"
        );
        DataIter {
            begun: Some((epoch, batches)),
            ..self
        }
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
    pub fn shards(self, shards: Range<usize>, of: usize) -> Self {
        assert!(
            shards.start <= shards.end && shards.end <= of,
            "shards {shards:?} are not within 0..{of}"
        );
        DataIter {
            shards: Some((shards, of)),
            ..self
        }
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
    pub fn on_device(self, device: &Device) -> candle_core::Result<Self> {
        let all: Vec<u32> = (0..self.split.len() as u32).collect();
        let (x, y) = self.split.minibatch(&all)?;
        Ok(DataIter {
            resident: Some((x.to_device(device)?, y.to_device(device)?)),
            ..self
        })
    }

    /// Sends the minibatches one by one, until the receiver is dropped.
    fn prepare(&self, order: &[u32], sender: &SyncSender<Minibatch>) {
        for indices in order.chunks(self.batch_size) {
            if sender.send(self.minibatch(self.own(indices))).is_err() {
                return;
            }
        }
    }

    /// Those of a minibatch that are in the shards.
    fn own<'a>(&self, indices: &'a [u32]) -> &'a [u32] {
        let Some((shards, of)) = &self.shards else {
            return indices;
        };
        let n = indices.len();
        let first = |shard: usize| shard * (n / of) + shard.min(n % of);
        &indices[first(shards.start)..first(shards.end)]
    }

    fn minibatch(&self, indices: &[u32]) -> Minibatch {
        let Some((x, y)) = &self.resident else {
            return self.split.minibatch(indices);
        };
        let indices = Tensor::new(indices, x.device())?;
        Ok((x.index_select(&indices, 0)?, y.index_select(&indices, 0)?))
    }

    /// The indices of the images in the order of epoch `epoch`.
    fn order(&self, epoch: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.split.len() as u32).collect();
        if let Some(seed) = self.shuffle_seed {
            order.shuffle(&mut generator(seed, b"shuf", epoch as u32));
        }
        order
    }
}

impl IntoIterator for &DataIter {
    type Item = Minibatch;
    type IntoIter = Batches;

    fn into_iter(self) -> Batches {
        self.iter()
    }
}

/// The minibatches of one epoch: X (B, 1, 28, 28) f32 in [0, 1] and y (B,) u32, both on the CPU unless
/// [`DataIter::on_device`] says otherwise.
#[derive(Debug)]
pub struct Batches {
    /// None after `close`.
    ready: Option<Receiver<Minibatch>>,
    thread: Option<JoinHandle<()>>,
    left: usize,
    stop: Option<&'static AtomicBool>,
    group: usize,
    given: usize,
}

impl Batches {
    /// Stops the thread and waits at most a minibatch's time for its end; an error is its panic's message.
    fn close(&mut self) -> std::result::Result<(), String> {
        self.left = 0;
        self.ready = None;
        let ended = self.thread.take().map_or(Ok(()), JoinHandle::join);
        ended.map_err(|panic| message(&*panic).to_owned())
    }
}

impl Iterator for Batches {
    type Item = Minibatch;

    #[tracing::instrument(skip_all, name = "data")]
    fn next(&mut self) -> Option<Minibatch> {
        let wanted = self.stop.is_some_and(|flag| flag.load(Ordering::Relaxed));
        let stopped = wanted && self.given.is_multiple_of(self.group);
        if stopped || self.left == 0 {
            let _ = self.close(); // all that was wanted has come
            return None;
        }
        match self.ready.as_ref()?.recv() {
            Ok(batch) => {
                self.left -= 1;
                self.given += 1;
                Some(batch)
            }
            Err(_) => {
                let ended = match self.close() {
                    Ok(()) => "ended early".to_owned(),
                    Err(panic) => format!("panicked: {panic}"),
                };
                Some(Err(Error::Msg(format!(
                    "the thread that prepares minibatches {ended}"
                ))))
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // The stop flag may end it at any time.
        (0, Some(self.left))
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        let _ = self.close(); // a panic cannot be reported here
    }
}

/// The text of a panic.
pub(crate) fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use std::panic;

    use proptest::prelude::*;

    use super::*;
    use crate::PIXELS;

    /// Image i has the label i % 10 and the byte i / 10 % 256 in its first pixel: enough to know it again.
    fn numbered(n: usize) -> Arc<Split> {
        let mut images = vec![0; n * PIXELS];
        (0..n).for_each(|i| images[i * PIXELS] = (i / 10 % 256) as u8);
        Arc::new(Split::new(images, (0..n).map(|i| (i % 10) as u8).collect()).unwrap())
    }

    /// The numbers of the images of every minibatch.
    fn numbers(batches: Batches) -> Vec<Vec<usize>> {
        let read = |batch: Minibatch| {
            let (x, y) = batch.unwrap();
            let first = x
                .flatten_from(1)
                .unwrap()
                .narrow(1, 0, 1)
                .unwrap()
                .flatten_all()
                .unwrap();
            let tens = first
                .to_vec1::<f32>()
                .unwrap()
                .into_iter()
                .map(|v| (v * 255.0).round() as usize * 10);
            tens.zip(y.to_vec1::<u32>().unwrap())
                .map(|(tens, one)| tens + one as usize)
                .collect()
        };
        batches.map(read).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn an_epoch_is_a_permutation_cut_in_minibatches(
            n in 1usize..300, batch_size in 1usize..70, seed: u64, epoch in 0usize..100,
        ) {
            let iter = DataIter::new(&numbered(n), batch_size, Some(seed)).unwrap();
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
        let split = numbered(200);
        let order = |seed, epoch| {
            numbers(DataIter::new(&split, 32, Some(seed)).unwrap().epoch(epoch)).concat()
        };
        assert_eq!(order(5, 3), order(5, 3));
        assert_ne!(order(5, 3), order(5, 4));
        assert_ne!(order(5, 3), order(6, 3));
        let iter = DataIter::new(&split, 32, Some(5)).unwrap();
        assert_eq!(numbers(iter.iter()), numbers(iter.epoch(1)));
        assert_eq!(numbers(iter.into_iter()), numbers(iter.epoch(1)));
    }

    #[test]
    fn minibatches_made_on_a_device_have_the_same_values() {
        let iter = DataIter::new(&numbered(200), 32, Some(5)).unwrap();
        let on_device = iter.clone().on_device(&Device::Cpu).unwrap();
        assert_eq!(numbers(on_device.epoch(3)), numbers(iter.epoch(3)));
        let (x, _) = on_device.iter().next().unwrap().unwrap();
        let (same, _) = iter.iter().next().unwrap().unwrap();
        let values = |x: Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(values(x), values(same));
    }

    #[test]
    fn without_a_seed_the_order_is_the_files() {
        let iter = DataIter::new(&numbered(100), 30, None).unwrap();
        assert_eq!(
            numbers(iter.epoch(7)).concat(),
            (0..100).collect::<Vec<_>>()
        );
    }

    #[test]
    fn the_full_sets_at_256_end_in_96_and_16() {
        for (n, batches, last) in [(60_000, 235, 96), (10_000, 40, 16)] {
            let split = Arc::new(Split::new(vec![0; n * PIXELS], vec![0; n]).unwrap());
            let iter = DataIter::new(&split, 256, None).unwrap();
            assert_eq!(
                (iter.num_examples(), iter.batch_size(), iter.num_batches()),
                (n, 256, batches)
            );
            let sizes: Vec<usize> = iter.iter().map(|b| b.unwrap().1.dim(0).unwrap()).collect();
            assert_eq!(sizes.len(), batches);
            assert!(sizes[..batches - 1].iter().all(|&size| size == 256));
            assert_eq!(sizes[batches - 1], last);
        }
    }

    #[test]
    fn a_batch_size_of_0_is_refused() {
        let error = DataIter::new(&numbered(1), 0, None).unwrap_err();
        assert_eq!(error.to_string(), "the batch size is 0; give at least 1");
    }

    #[test]
    fn a_dropped_iterator_leaves_no_thread_behind() {
        let split = numbered(1000);
        let iter = DataIter::new(&split, 10, Some(1)).unwrap();
        let owners = Arc::strong_count(&split);
        let mut batches = iter.epoch(1);
        assert!(batches.next().is_some());
        assert_eq!(
            Arc::strong_count(&split),
            owners + 1,
            "the thread holds the images while it works"
        );
        drop(batches);
        assert_eq!(
            Arc::strong_count(&split),
            owners,
            "drop waits for the thread's end"
        );
    }

    #[test]
    fn the_stop_flag_ends_the_epoch_after_the_current_minibatch() {
        static STOP: AtomicBool = AtomicBool::new(false);
        let iter = DataIter::new(&numbered(100), 10, None)
            .unwrap()
            .stop_when(&STOP);
        let mut batches = iter.epoch(1);
        assert!(batches.next().is_some());
        STOP.store(true, Ordering::Relaxed);
        assert!(batches.next().is_none());
        STOP.store(false, Ordering::Relaxed);
        assert!(
            batches.next().is_none(),
            "an epoch that was stopped stays stopped"
        );
        assert_eq!(iter.epoch(1).count(), 10);
    }

    #[test]
    fn a_group_is_not_torn() {
        static STOP: AtomicBool = AtomicBool::new(false);
        let iter = DataIter::new(&numbered(100), 10, None).unwrap();
        let iter = iter.stop_when(&STOP).in_groups_of(4);
        let mut batches = iter.epoch(1);
        assert!(batches.next().is_some());
        STOP.store(true, Ordering::Relaxed);
        assert_eq!(batches.count(), 3);
        assert_eq!(iter.epoch(1).count(), 0);
    }

    #[test]
    fn an_epoch_goes_on_where_it_was_interrupted() {
        let iter = DataIter::new(&numbered(105), 10, Some(3)).unwrap();
        let whole = numbers(iter.epoch(2));
        for had in 0..=whole.len() {
            let rest = iter.clone().starting_at(2, had);
            assert_eq!(numbers(rest.epoch(2)), whole[had..]);
            assert_eq!(numbers(rest.epoch(3)), numbers(iter.epoch(3)));
        }
    }

    #[test]
    fn a_thread_that_ends_early_is_an_error_not_a_short_epoch() {
        let error = error_of(|| ());
        assert!(
            error.contains("the thread that prepares minibatches ended early"),
            "{error}"
        );
        let error = error_of(|| panic::resume_unwind(Box::new("image 7 is broken")));
        assert!(error.ends_with("panicked: image 7 is broken"), "{error}");
    }

    /// What comes of minibatches from a thread that does something else.
    fn error_of(thread: impl FnOnce() + Send + 'static) -> String {
        let (_, ready) = sync_channel(READY);
        let thread = Builder::new().spawn(thread).unwrap();
        let mut batches = Batches {
            ready: Some(ready),
            thread: Some(thread),
            left: 3,
            stop: None,
            group: 1,
            given: 0,
        };
        let error = batches.next().unwrap().unwrap_err().to_string();
        assert!(batches.next().is_none());
        error
    }
}
