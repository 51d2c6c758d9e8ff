//! Work of both programs around their training loop: options, record, progress, signals, traces, and what a program
//! says to the shell.
//!
//! The loop itself is each program's own: it tells the [`Run`] of every step and every epoch. The crate knows no
//! network.

extern crate data_parallel_devices as devices;
extern crate data_parallel_functional as functional;
extern crate data_parallel_training as training;

mod bad_input;
mod bar;
mod command_line;
mod gpu;
mod interrupt;
mod lines;
mod options;
mod out_of_memory;
mod program;
mod record;
mod run;
mod say;
mod timeline;
mod trace;
mod train_state;

pub use devices::Process;
pub use functional::Precision;
pub use training::{BatchLoss, Unread, compare, weights};

pub use bad_input::BadInput;
pub use gpu::{Gpu, gpu};
pub use interrupt::{asked_to_end, interrupted};
pub use options::{Book, Options, ProgramOptions, is_same_folder, precision};
pub use out_of_memory::ALLOCATOR;
pub use program::program;
pub use run::{Run, Summary};
pub use say::{say, warn};
pub use timeline::{Span, Timeline};
pub use train_state::TrainState;
