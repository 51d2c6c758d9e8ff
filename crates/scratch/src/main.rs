//! `cargo run -p scratch -- --gpus 2`: LeNet on Fashion-MNIST, the book's first section.

use std::process::ExitCode;

fn main() -> ExitCode {
    run::program(&scratch::BOOK, scratch::train, std::env::args_os())
}
