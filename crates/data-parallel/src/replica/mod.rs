//! A replica of the network on its thread: what it keeps of each trainer, how it communicates with the others, and how it
//! takes a step.
//!
//! The threads of the replicas (`workers`) wait for each other once in a step, before the forward pass; synchronized
//! batch norms wait in each norm as well. A second thread of each replica (`reducer`) sums gradients while the
//! backward pass goes on.
//!
//! Each replica compares the gradients of candle's modules with finite differences for the shapes of its own shards,
//! at the same time as the others (`functional::GradientChecks`). A call that is new is compared in the mode of the
//! step.

mod connections;
mod cores;
mod examples;
mod job;
mod loss;
mod pass_sums;
mod receive;
mod reducer;
mod refusal;
#[expect(clippy::module_inception, reason = "the replica itself")]
mod replica;
mod shared_buffers;
mod slot;
mod twin;
mod waits;
mod workers;

pub(crate) use connections::Memberships;
pub(crate) use cores::Cores;
pub use examples::all_examples;
pub(crate) use examples::{LossOver, WholeMinibatch};
pub(crate) use job::StepJob;
pub(crate) use loss::Loss;
pub(crate) use refusal::Refusal;
pub(crate) use replica::{Replica, Shared};
pub(crate) use slot::{NamedState, Slot, state_name, state_names};
pub(crate) use twin::{Built, Twin};
pub(crate) use waits::NetworkId;
pub(crate) use workers::{Worker, Workers};
