//! Runs a step of the chapter: `cargo run -p seven-diffs -- overlap 2`. Or counts memory:
//! `cargo run -p seven-diffs -- memory`.

use std::alloc::System;

use cap::Cap;

/// Counts.
#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    seven_diffs::program::run(&args, || [MEMORY.allocated(), MEMORY.max_allocated()])
}
