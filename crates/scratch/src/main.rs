//! `cargo run -p scratch -- --gpus 2`: LeNet on Fashion-MNIST, the book's first section.

use std::process::ExitCode;

/// Ends the run with a line where there is no memory left.
#[global_allocator]
static MEMORY: data_parallel_functional::Allocator = run::ALLOCATOR;

fn main() -> ExitCode {
    run::program(
        &scratch::program::BOOK,
        scratch::program::train,
        std::env::args_os(),
    )
}
