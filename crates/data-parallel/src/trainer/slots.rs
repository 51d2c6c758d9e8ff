//! What a trainer keeps on the replicas of this process: a slot on each.

use std::sync::{Arc, Mutex};

use candle_core::{Result, Tensor};
use collective::Member;
use devices::lock;

use crate::data_parallel::DataParallel;
use crate::replica::{NamedState, Replica, Slot, state_names};
use crate::update_rule::UpdateRule;

/// The slots of a trainer; none before its first minibatch.
#[derive(Default)]
pub(crate) struct Slots {
    /// Of each replica.
    all: Vec<Arc<Mutex<Slot>>>,
    /// For each parameter of the network, true if it is trained in them.
    trained: Vec<bool>,
}

impl Slots {
    /// Slots for the parameters that are `trained`, with this optimizer state.
    ///
    /// # Errors
    /// If a parameter cannot be trained, the state does not fit or two parts of it have one name, or there is no memory for
    /// it.
    pub fn new(
        net: &DataParallel,
        rule: &UpdateRule,
        trained: Vec<bool>,
        state: &NamedState,
    ) -> Result<Self> {
        let state = state.clone();
        let names = rule.optimizer.state();
        let params = net.states[0].parameters().map(|(name, _)| name.as_str());
        state_names(names, params)?;
        let how = net.how.clone();
        let of_job = trained.clone();
        let make = move |replica: &mut Replica, ()| {
            let slot = Slot::new(&replica.state, &of_job, &how, names, &state)?;
            Ok(Arc::new(Mutex::new(slot)))
        };
        let all = net.on_each(vec![(); net.devices().len()], make)?;
        Ok(Self { all, trained })
    }

    /// True if they are there, for the parameters that the rule trains.
    pub fn are_for(&self, rule: &UpdateRule) -> bool {
        !self.all.is_empty() && self.trained == rule.trained()
    }

    /// The slot of each replica.
    pub fn all(&self) -> Vec<Arc<Mutex<Slot>>> {
        self.all.clone()
    }

    /// The optimizer state, which all replicas have in common.
    pub fn state(&self, net: &DataParallel, rule: &UpdateRule) -> Result<NamedState> {
        let names = rule.optimizer.state();
        self.on_first(net, move |slot| slot.state(names))
    }

    /// The sums of the gradients of the last step, by the names of the parameters.
    pub fn sums(&self, net: &DataParallel) -> Result<Vec<(String, Tensor)>> {
        self.on_first(net, Slot::sums)
    }

    /// What `of` says of the slot of the first replica; the default where there is no slot.
    fn on_first<T: Default + Send + 'static>(
        &self,
        net: &DataParallel,
        of: impl Fn(&Slot) -> Result<T> + Send + Sync + 'static,
    ) -> Result<T> {
        match self.all.first().cloned() {
            None => Ok(T::default()),
            Some(slot) => net.on_first(move |_| of(&lock(&slot))),
        }
    }

    /// Forgets a step that no replica has taken, and sets back what its last minibatch has changed.
    pub fn drop_step(&self, net: &DataParallel) -> Result<()> {
        type Input = (Arc<Mutex<Slot>>, Option<Member>);
        let inputs: Vec<Input> = self.all().into_iter().zip(net.new_memberships()?).collect();
        let drop_step = |replica: &mut Replica, (slot, member): Input| {
            replica.drop_step(&mut lock(&slot), member)
        };
        net.on_each(inputs, drop_step).map(drop)
    }

    /// As [`drop_step`](Self::drop_step), where no minibatch was begun: buffers stay as they are.
    pub fn forget_gradients(&self, net: &DataParallel) -> Result<()> {
        let forget = |_: &mut Replica, slot: Arc<Mutex<Slot>>| {
            lock(&slot).gradients.zero();
            Ok(())
        };
        net.on_each(self.all(), forget).map(drop)
    }
}
