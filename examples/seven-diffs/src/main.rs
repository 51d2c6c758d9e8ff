//! Runs a step of the chapter: `cargo run -p seven-diffs -- overlap 2`.
fn main() {}
