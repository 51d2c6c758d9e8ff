//! Of which examples a loss sees the outputs: of one replica's, or of the whole minibatch.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{Result, Tensor, bail};
use devices::{Context, ensure};
use functional::{Summation, Value};

use crate::batch_tensors::BatchTensors;

/// Of which examples a loss sees the outputs.
pub(crate) enum LossOver {
    /// Those of one replica.
    Shard {
        /// True if it is looked at whether the loss of an example depends on the others.
        checked: bool,
    },
    Minibatch(WholeMinibatch),
}

/// The minibatch of all replicas, as one of its processes sees it.
pub(crate) struct WholeMinibatch {
    /// The targets of all examples.
    pub y: Vec<Tensor>,
    pub examples: usize,
    /// The examples of each replica of this process.
    pub rows: Vec<Range<usize>>,
    /// The number of the first replica of this process.
    pub first_rank: usize,
}

impl WholeMinibatch {
    pub fn rows(&self, rank: usize) -> Range<usize> {
        self.rows[rank - self.first_rank].clone()
    }
}

/// The examples of all replicas, as one of them gathers them.
#[derive(Clone)]
pub(crate) struct Gathering {
    pub rows: Range<usize>,
    pub examples: usize,
    pub sums: Arc<dyn Summation>,
}

thread_local! {
    /// That of the loss which this thread writes down.
    static GATHERING: RefCell<Option<Gathering>> = const { RefCell::new(None) };
}

impl Gathering {
    /// Runs `f`, in which [`all_examples`] gathers.
    pub fn run<R>(self, f: impl FnOnce() -> R) -> R {
        devices::with_local(&GATHERING, self, f)
    }
}

/// The rows of all replicas, from those of this one: (b, …) to (B, …), in the loss of a trainer that is
/// [`over_minibatch`](crate::Trainer::over_minibatch).
///
/// # Errors
/// Anywhere else; and if `own` has not a row for each example of this replica.
pub fn all_examples(own: &Value) -> Result<Value> {
    match GATHERING.with_borrow(Clone::clone) {
        None => bail!(
            "all_examples: only a loss of Trainer::over_minibatch gathers the examples of all replicas"
        ),
        Some(Gathering {
            rows,
            examples,
            sums,
        }) => own.gather(rows, examples, sums),
    }
}

/// An error unless there is one loss for each example.
pub(crate) fn check_losses(losses: &Value, examples: usize) -> Result<()> {
    let found = losses.dims();
    ensure!(
        found == [examples],
        "the loss has shape {found:?}, expected [{examples}]: one number for each example, no mean or sum \
         over the examples, and no second dimension"
    );
    Ok(())
}

/// The losses of a replica's own examples; zeros for the others, because candle loses the gradient of an empty tensor.
pub(crate) fn own_losses(losses: &Value, rows: Range<usize>) -> Result<Value> {
    let is_own = (0..losses.dims()[0]).map(|i| f32::from(u8::from(rows.contains(&i))));
    losses * &Value::new(&Tensor::from_iter(is_own, losses.device())?)?
}

/// The place of an example in a minibatch in which a copy of it takes the place of another one, and the number of others
/// that are tried.
const ONE_OTHER: &str = "with a copy of itself in place of another";
const OTHERS: usize = 8;

/// The number of times that both losses are computed again before they are said to depend on others: they may be drawn.
const AGAIN: usize = 16;

/// Looks whether the loss of an example depends on the other examples, by `losses`, which computes them. The losses of the
/// first and the last example have to stay as they are where all others are copies of it, and where it is alone. An example
/// that is alone gets a copy. Nothing is known of losses that are others each time.
///
/// # Errors
/// If a loss depends on others; and where the losses cannot be computed.
pub(crate) fn check_each_alone(
    share: &BatchTensors,
    losses: impl Fn(&BatchTensors) -> Result<Tensor>,
) -> Result<()> {
    let n = share.examples;
    let numbers = |share: &BatchTensors| losses(share)?.flatten_all()?.to_vec1::<f32>();
    let before = numbers(share)?;
    for (example, place) in [(0, 0), (n - 1, before.len() - 1)] {
        let before = before[place];
        let own = example as u32;
        let mut tries = VecDeque::from([(vec![own; n], 1e-5, "among copies of itself")]);
        // another shape rounds otherwise
        tries.push_back(if n == 1 {
            (vec![own; 2], 1e-3, "beside a copy of itself")
        } else {
            (vec![own], 1e-3, "alone")
        });
        // its loss is that of the first or the last row
        let loss_among = |rows: &[u32]| {
            let all = numbers(&share.rows(rows)?)?;
            let own = if example == 0 {
                all.first()
            } else {
                all.last()
            };
            own.copied().context("there is no loss")
        };
        while let Some((rows, rounding, place_of_it)) = tries.pop_front() {
            let loss = match loss_among(&rows) {
                Err(_) if rows.len() != n => continue, // it takes this number of examples alone
                loss => loss?,
            };
            if !loss.is_finite() && rows.len() == n && place_of_it != ONE_OTHER {
                // as of weights by classes, where all are of one class
                let others = (0..n).filter(|other| *other != example).take(OTHERS);
                tries.extend(others.map(|other| {
                    let mut rows: Vec<u32> = (0..n as u32).collect();
                    rows[other] = own;
                    (rows, 1e-5, ONE_OTHER)
                }));
            }
            if is_near(loss, before, rounding) || !(loss - before).is_finite() {
                continue;
            }
            for _ in 0..AGAIN {
                let again = numbers(share)?[place];
                if !is_near(again, before, 1e-5) || !is_near(loss_among(&rows)?, loss, 1e-5) {
                    return Ok(()); // they are drawn
                }
            }
            bail!(
                "the loss of an example depends on the other examples: it is {before}, and {loss} {place_of_it}. So it would \
                 depend on the number of replicas. Trainer::over_minibatch gives the loss the outputs of the whole \
                 minibatch; within_shards takes the part of each replica as a minibatch of its own; mean_over divides by a \
                 count of the whole minibatch"
            )
        }
    }
    Ok(())
}

fn is_near(a: f32, b: f32, rounding: f32) -> bool {
    (a - b).abs() <= rounding * a.abs().max(b.abs()) + 1e-7
}
