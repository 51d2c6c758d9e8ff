//! `cargo run -p concise -- --gpus 2`: ResNet-18 on Fashion-MNIST, the book's second section.

use std::process::ExitCode;

fn main() -> ExitCode {
    run::program(&concise::BOOK, concise::train, std::env::args_os())
}
