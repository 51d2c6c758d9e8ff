//! The minibatches of an epoch: those that the program was given, and those that its steps have taken.
//!
//! A checkpoint has the position of the steps. A program may take minibatches ahead, leave some out, or take steps on
//! other data in between. So neither the number that was given nor the number of steps is the position. Each step tells
//! it by its tensors: a tensor that the program got from `minibatches`, and gives to the step as it is, has the same
//! identity. A step that has none of them is on the one minibatch that waits for its step. If several wait, it is not
//! known on which: then no checkpoint is written inside of the epoch.
//!
//! A run that goes on takes the next minibatch first. So a step after a checkpoint that is not on a later minibatch, such
//! as a generator's after that of its critic, would be left out. This is known after the checkpoint, and the next one is
//! an error.
//!
//! Each data of an epoch has a position of its own. The steps of all trainers of the network count.

use std::sync::{Arc, Weak};

use candle_core::{Result, TensorId};
use devices::{bail, ensure};

/// The minibatches of the present epoch.
#[derive(Debug, Clone, Default)]
pub(super) struct Given {
    /// Of each data, in the order in which the epoch has asked for them first.
    all: Vec<OfData>,
    /// The number of those given when the last checkpoint was written, in this process.
    saved_at: Option<usize>,
    /// There was a step that a run would leave out if it went on from the last checkpoint.
    is_checkpoint_wrong: bool,
}

/// The minibatches of one data.
#[derive(Debug, Clone, Default)]
struct OfData {
    /// The number of the data; none if the run goes on in the epoch, and has not asked for it yet.
    data: Option<usize>,
    /// The number of all.
    of: usize,
    /// The number of those that the program was given.
    given: usize,
    /// The last one that a step has taken. Those before it were taken, or the program has left them out.
    taken: usize,
    /// `taken`, as the last checkpoint has it.
    saved: usize,
    /// The last one that was taken, and those of which no step is known.
    kept: Vec<Minibatch>,
    /// A step had tensors of one.
    are_known: bool,
    problem: Option<Problem>,
    /// Its iterator ended before the last one.
    is_cut: bool,
    /// The iterator that gives them, while it is there.
    iterator: Weak<()>,
}

#[derive(Debug, Clone)]
struct Minibatch {
    /// From 1.
    number: usize,
    tensors: Vec<TensorId>,
}

/// Why a run could not go on at the position.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Problem {
    /// A step was on one of n minibatches.
    OneOf(usize),
    /// A step was on a minibatch before the last one.
    Order,
}

/// An iterator that begins.
pub(super) struct Begun {
    /// The place of its data among those of the epoch.
    pub place: usize,
    /// The minibatches that were given before.
    pub given: usize,
    /// The iterator holds it.
    pub iterator: Arc<()>,
}

impl Given {
    /// Of an epoch in which a run goes on, after these minibatches of each data.
    pub fn after(taken: &[usize]) -> Self {
        let of_data = |taken: &usize| OfData {
            given: *taken,
            taken: *taken,
            saved: *taken,
            ..OfData::default()
        };
        Self {
            all: taken.iter().map(of_data).collect(),
            ..Self::default()
        }
    }

    /// The place of the data with this number among those of the epoch.
    pub fn place(&self, data: usize) -> usize {
        let find = |number| self.all.iter().position(|of_data| of_data.data == number);
        let place = find(Some(data)).or_else(|| find(None));
        place.unwrap_or(self.all.len())
    }

    /// An iterator over `of` minibatches of a data begins: it gives what is left of the epoch.
    ///
    /// # Errors
    /// If nothing is left, or another iterator gives them.
    pub fn begin(&mut self, data: usize, of: usize, epoch: usize) -> Result<Begun> {
        let place = self.place(data);
        if place == self.all.len() {
            self.all.push(OfData::default());
        }
        let of_data = &mut self.all[place];
        ensure!(
            of_data.iterator.strong_count() == 0,
            "the minibatches of epoch {epoch} of this data are being given already, by another iterator; use that one, or \
             make another DataIter"
        );
        ensure!(
            of_data.data.is_none() || of_data.given < of,
            "the minibatches of epoch {epoch} of this data were given already; to train on them twice in an epoch, make \
             another DataIter"
        );
        let iterator = Arc::new(());
        of_data.data = Some(data);
        of_data.of = of;
        of_data.is_cut = false;
        of_data.iterator = Arc::downgrade(&iterator);
        Ok(Begun {
            place,
            given: of_data.given,
            iterator,
        })
    }

    /// The data of an iterator, unless its epoch has ended.
    fn of_iterator(&mut self, begun: &Begun) -> Option<&mut OfData> {
        let of_data = self.all.get_mut(begun.place)?;
        let is_own = of_data.iterator.as_ptr() == Arc::as_ptr(&begun.iterator);
        is_own.then_some(of_data)
    }

    /// An iterator gives a minibatch with these tensors; none of one that could not be made, on which no step waits.
    ///
    /// # Errors
    /// If its epoch has ended.
    pub fn give(&mut self, begun: &Begun, tensors: Option<Vec<TensorId>>) -> Result<()> {
        let Some(of_data) = self.of_iterator(begun) else {
            bail!("minibatches: the epoch has ended; ask for those of the next one")
        };
        of_data.given += 1;
        let number = of_data.given;
        let minibatch = tensors.map(|tensors| Minibatch { number, tensors });
        of_data.kept.extend(minibatch);
        Ok(())
    }

    /// An iterator ends.
    pub fn end(&mut self, begun: &Begun) {
        if let Some(of_data) = self.of_iterator(begun) {
            of_data.is_cut = of_data.given < of_data.of;
        }
    }

    /// A trainer begins a step on these tensors.
    pub fn step_on(&mut self, tensors: &[TensorId]) {
        let own: Vec<Vec<usize>> = self
            .all
            .iter()
            .map(|of_data| of_data.with_own_tensor(tensors))
            .collect();
        let is_known = own.iter().any(|numbers| !numbers.is_empty());
        self.is_checkpoint_wrong |= if is_known {
            let mut all = self.all.iter().zip(&own);
            all.all(|(of_data, numbers)| numbers.iter().all(|number| *number <= of_data.saved))
        } else {
            self.is_between_minibatches() && self.saved_at == Some(self.number_given())
        };
        for (of_data, numbers) in self.all.iter_mut().zip(own) {
            of_data.step_on(&numbers, is_known);
        }
    }

    /// True inside of the loop over an epoch, while no minibatch waits for its step.
    fn is_between_minibatches(&self) -> bool {
        let is_in_loop = |of_data: &OfData| of_data.iterator.strong_count() > 0;
        let waits = |of_data: &OfData| of_data.waiting().next().is_some();
        self.all.iter().any(is_in_loop) && !self.all.iter().any(waits)
    }

    /// The number of minibatches of each data that the steps have taken.
    pub fn taken(&self) -> Vec<usize> {
        self.all.iter().map(|of_data| of_data.taken).collect()
    }

    /// The number of minibatches that steps have taken, or may have taken.
    pub fn number_taken(&self) -> usize {
        let of_data = |of_data: &OfData| match of_data.problem {
            None => of_data.taken,
            Some(_) => of_data.given,
        };
        self.all.iter().map(of_data).sum()
    }

    /// The number of minibatches that the program was given.
    pub fn number_given(&self) -> usize {
        self.all.iter().map(|of_data| of_data.given).sum()
    }

    /// True if an iterator ended before its last minibatch; or, where training is to end, will do so.
    pub fn are_cut(&self, is_stopping: bool) -> bool {
        let is_cut = |of_data: &OfData| of_data.is_cut || is_stopping && of_data.given < of_data.of;
        self.all.iter().any(is_cut)
    }

    /// A checkpoint has the position.
    pub fn are_saved(&mut self) {
        self.saved_at = Some(self.number_given());
        for of_data in &mut self.all {
            of_data.saved = of_data.taken;
        }
    }

    /// True if there was a step that a run would leave out if it went on from the last checkpoint.
    pub fn is_checkpoint_wrong(&self) -> bool {
        self.is_checkpoint_wrong
    }

    /// An error if a run could not go on at the position; it says what to do.
    pub fn check(&self, epoch: usize) -> Result<()> {
        ensure!(
            !self.is_checkpoint_wrong,
            "after a checkpoint in epoch {epoch} there was a step on a minibatch that the checkpoint counts already, or on \
             no minibatch: a run that goes on from the checkpoint would leave the step out. Call save_every once for each \
             minibatch, after the last step; if the program keeps minibatches for later steps, give these steps copies: \
             x.copy()"
        );
        match self.all.iter().find_map(|of_data| of_data.problem) {
            None => Ok(()),
            Some(Problem::OneOf(waiting)) => bail!(
                "{waiting} minibatches of epoch {epoch} were taken before a step, and the step has none of their tensors. \
                 So no checkpoint can say which of them was trained. Give the step inputs or targets as \
                 Checkpoints::minibatches gave them; or take each minibatch after the step on the one before it; or \
                 leave out save_every, and keep the checkpoints of end_epoch"
            ),
            Some(Problem::Order) => bail!(
                "the minibatches of epoch {epoch} were trained in another order than they were given. So no checkpoint can \
                 say which of them are left. Train them in their order, which the DataIter shuffles; or leave out \
                 save_every, and keep the checkpoints of end_epoch"
            ),
        }
    }
}

impl OfData {
    /// A step begins on the minibatches with these numbers. Without a number it may be on one of which the program has
    /// made new tensors; not if the step is known to be on other data, and those of this data are known by their tensors.
    fn step_on(&mut self, trained: &[usize], is_known: bool) {
        if trained.is_empty() && is_known && self.are_known {
            return;
        }
        self.are_known |= !trained.is_empty();
        let waiting: Vec<usize> = self.waiting().collect();
        let number = match (trained.iter().max(), &waiting[..]) {
            (Some(last), _) => *last,
            (None, []) => return, // on other data
            (None, [only]) => *only,
            (None, _) => {
                self.problem.get_or_insert(Problem::OneOf(waiting.len()));
                return;
            }
        };
        if number < self.taken {
            self.problem = Some(Problem::Order);
        } else if let Some(Problem::OneOf(_)) = self.problem {
            self.problem = None; // now it is known
        }
        let before = self.taken;
        self.taken = before.max(number);
        let last = self.taken;
        self.kept.retain(|minibatch| {
            let has_step = minibatch.number == before || trained.contains(&minibatch.number);
            minibatch.number == last || !has_step
        });
    }

    /// The minibatches after the last one that was taken.
    fn waiting(&self) -> impl Iterator<Item = usize> {
        let numbers = self.kept.iter().map(|minibatch| minibatch.number);
        numbers.filter(|number| *number > self.taken)
    }

    /// The numbers of the minibatches of which `tensors` has one that is in no other.
    fn with_own_tensor(&self, tensors: &[TensorId]) -> Vec<usize> {
        let of_tensor = |tensor: &TensorId| {
            let has_it = |minibatch: &&Minibatch| minibatch.tensors.contains(tensor);
            let mut with = self.kept.iter().filter(has_it);
            let first = with.next()?;
            let is_own = with.next().is_none();
            is_own.then_some(first.number)
        };
        tensors.iter().filter_map(of_tensor).collect()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};

    use super::*;

    fn tensor() -> Result<TensorId> {
        Ok(Tensor::zeros(1, DType::F32, &Device::Cpu)?.id())
    }

    /// An epoch of 9 minibatches, with the tensors of those that were given.
    struct Epoch {
        given: Given,
        begun: Begun,
        tensors: Vec<TensorId>,
        /// One that is in each minibatch.
        shared: TensorId,
    }

    impl Epoch {
        fn new() -> Result<Self> {
            let mut given = Given::default();
            Ok(Self {
                begun: given.begin(7, 9, 1)?,
                given,
                tensors: Vec::new(),
                shared: tensor()?,
            })
        }

        fn give(&mut self) -> Result<()> {
            let tensors = vec![tensor()?, self.shared];
            self.tensors.push(tensors[0]);
            self.given.give(&self.begun, Some(tensors))
        }

        /// A step on the minibatches with these numbers from 1, and on tensors of its own.
        fn step(&mut self, on: &[usize]) -> Result<()> {
            let of_minibatches = on.iter().map(|number| self.tensors[number - 1]);
            let all: Vec<TensorId> = [tensor()?, self.shared]
                .into_iter()
                .chain(of_minibatches)
                .collect();
            self.given.step_on(&all);
            Ok(())
        }

        fn is_after(&self, taken: usize) -> bool {
            self.given.check(1).is_ok() && self.given.taken() == [taken]
        }
    }

    #[test]
    fn a_tensor_that_all_minibatches_have_tells_nothing() -> Result<()> {
        let mut epoch = Epoch::new()?;
        for number in 1..=3 {
            epoch.give()?;
            epoch.step(&[])?;
            assert!(epoch.is_after(number));
        }
        epoch.give()?;
        epoch.give()?;
        epoch.step(&[])?;
        assert!(epoch.given.check(1).is_err() && epoch.given.number_taken() == 5);
        epoch.step(&[4])?; // another trainer tells it
        assert!(epoch.is_after(4) && epoch.given.number_taken() == 4);
        Ok(())
    }

    #[test]
    fn a_step_may_be_on_several_minibatches() -> Result<()> {
        let mut epoch = Epoch::new()?;
        epoch.give()?;
        epoch.give()?;
        epoch.step(&[1, 2])?;
        epoch.given.are_saved();
        assert!(epoch.is_after(2));
        epoch.give()?;
        epoch.step(&[2, 3])?; // with the one before
        assert!(epoch.is_after(3));
        epoch.step(&[3])?;
        assert!(epoch.is_after(3));
        epoch.given.are_saved();
        epoch.step(&[3])?;
        assert!(epoch.given.check(1).is_err());
        Ok(())
    }

    #[test]
    fn one_that_cannot_be_made_waits_for_no_step() -> Result<()> {
        let mut epoch = Epoch::new()?;
        epoch.given.give(&epoch.begun, None)?;
        epoch.give()?;
        epoch.given.step_on(&[]);
        assert!(epoch.is_after(2));
        // an iterator of an epoch that has ended
        epoch.given = Given::default();
        assert!(epoch.give().is_err());
        Ok(())
    }
}
