//! The chapters say what is so.
fn main() {}
