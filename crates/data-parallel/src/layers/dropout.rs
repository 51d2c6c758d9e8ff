//! Dropout, whose masks follow from a seed.

use std::cell::RefCell;
use std::collections::HashMap;

use candle_core::{Result, bail};
use candle_nn::VarBuilder;
use functional::{Network, Value};

use crate::network_state;

/// Zeros with probability p in training, the others divided by 1 − p; in inference nothing.
///
/// The masks are drawn anew for each replica, minibatch and call, from the network's seed, the name of the layer, the
/// replica, the trainer, the step and the number of the call: a run repeats them, also one that was resumed. k replicas have other
/// masks than one. A layer that is used several times in a pass has a new mask each time.
///
/// For random masks in inference, as in Monte Carlo dropout, give the network the masks as one more input, and multiply by
/// them: this layer draws none there.
pub struct Dropout {
    p: f64,
    name: String,
}

/// The forward pass of a replica in training.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DropoutPass {
    pub seed: u64,
    /// Among the replicas of all processes.
    pub replica: usize,
    /// Among the trainers of the network.
    pub trainer: usize,
    /// The steps before this one.
    pub step: usize,
    /// The minibatches of this step before this one.
    pub minibatch: usize,
}

/// A pass that is being written down.
struct Running {
    pass: DropoutPass,
    /// The number of calls of each layer.
    calls: HashMap<String, u64>,
}

thread_local! {
    /// The pass in which this thread is.
    static RUNNING: RefCell<Option<Running>> = const { RefCell::new(None) };
}

impl DropoutPass {
    /// Runs `f` in this pass.
    pub(crate) fn run<R>(self, f: impl FnOnce() -> R) -> R {
        let running = Running {
            pass: self,
            calls: HashMap::new(),
        };
        devices::with_local(&RUNNING, running, f)
    }
}

impl Dropout {
    /// A layer that keeps each value with probability 1 − `p`. It has no parameters; `vb` gives it its name.
    ///
    /// # Errors
    /// If `p` is not from 0 up to 1, 1 not included; or if the network has another `Dropout` of this name, which would
    /// draw the same masks.
    pub fn new(p: f64, vb: VarBuilder<'_>) -> Result<Self> {
        if !(0.0..1.0).contains(&p) {
            bail!("Dropout: p is {p}; expected 0 or more, and less than 1")
        }
        let name = vb.prefix();
        network_state::name_layer("Dropout", &name)?;
        Ok(Self { p, name })
    }

    /// The seed of the mask of the next call in this thread's pass; none outside of a pass.
    fn next_seed(&self) -> Option<u64> {
        RUNNING.with_borrow_mut(|running| {
            let Running { pass, calls } = running.as_mut()?;
            let call = calls.entry(self.name.clone()).or_default();
            let seed = self.seed(*pass, *call);
            *call += 1;
            Some(seed)
        })
    }

    /// The seed of the mask of a call, counted from 0.
    fn seed(&self, pass: DropoutPass, call: u64) -> u64 {
        let place = [pass.replica, pass.step, pass.minibatch];
        let words = place.map(|word| (word as u64).to_le_bytes());
        let of_layer = hash(pass.seed, self.name.as_bytes());
        let seed = words.iter().fold(of_layer, |seed, word| hash(seed, word));
        // the first call in a step of the first trainer has the bits that it had before these were counted
        let counts = [pass.trainer as u64, call];
        if counts == [0, 0] {
            seed
        } else {
            let counts = counts.map(u64::to_le_bytes);
            counts.iter().fold(seed, |seed, count| hash(seed, count))
        }
    }
}

/// FNV-1a, begun with a seed.
fn hash(seed: u64, bytes: &[u8]) -> u64 {
    let begin = 0xcbf2_9ce4_8422_2325 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bytes.iter().fold(begin, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl Network for Dropout {
    fn forward(&self, x: &Value, train: bool) -> Result<Value> {
        if !train || self.p == 0.0 {
            return Ok(x.clone());
        }
        let Some(seed) = self.next_seed() else {
            bail!("Dropout: only a Trainer draws its masks; in inference forward has train = false")
        };
        super::of_layer(&self.name, x.dropout(self.p, seed))
    }
}
