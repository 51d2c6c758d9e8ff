//! The trainer of a network: its options, its steps, and its state.

mod count;
mod global_batch;
mod losses;
mod present;
mod several;
mod slots;
mod state_dict;
mod step;
#[expect(clippy::module_inception, reason = "the trainer itself")]
mod trainer;

pub use count::Count;
pub(crate) use losses::LossSum;
pub(crate) use present::PresentSettings;
pub(crate) use state_dict::CheckedState;
pub use step::Step;
pub(crate) use trainer::Flags;
pub use trainer::Trainer;
