//! A replica of the network on its thread: what it keeps of each trainer, how it communicates with the others, and how it
//! takes a step.

mod connections;
mod cores;
mod norms;
mod receive;
mod reducer;
mod refusal;
#[expect(clippy::module_inception, reason = "the replica itself")]
mod replica;
mod slot;
mod workers;

pub(crate) use connections::Memberships;
pub(crate) use cores::Cores;
pub(crate) use refusal::Refusal;
pub(crate) use replica::{Loss, Replica, Shared, StepJob};
pub(crate) use slot::{NamedState, Slot, state_name};
pub(crate) use workers::{Worker, Workers};
