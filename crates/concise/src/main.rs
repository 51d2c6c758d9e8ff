//! `cargo run -p concise -- --gpus 2`: ResNet-18 on Fashion-MNIST, the book's second section.

use std::process::ExitCode;

/// Ends the run with a line where there is no memory left.
#[global_allocator]
static MEMORY: data_parallel_functional::Allocator = run::ALLOCATOR;

fn main() -> ExitCode {
    run::program(&concise::BOOK, concise::train, std::env::args_os())
}
