//! `cargo run -p concise -- --gpus 2`: ResNet-18 on Fashion-MNIST, the book's second section.

use std::process::ExitCode;

/// Where there is no memory left, the run ends in a line.
#[global_allocator]
static MEMORY: data_parallel_functional::Allocator = run::ALLOCATOR;

fn main() -> ExitCode {
    run::program(&concise::BOOK, concise::train, std::env::args_os())
}
