//! Replicas of a network, and what they do together: a thread for each, the all-reduce of their gradients while they
//! compute, and the step that all of them take.

mod cores;
mod data_parallel;
mod descent;
mod memory;
mod norms;
mod processes;
mod reducer;
mod replica;
mod settings;
mod split;
mod state;
mod train_state;
mod trainer;
mod worker;

pub use data_parallel::DataParallel;
pub use processes::{Backend, Processes};
pub use settings::{ReduceOn, Replication};
pub use split::{Split, split_by_weights};
pub use state::Initializer;
pub use trainer::{Step, Trainer};
