//! The chapters of `notebooks-md`, one Markdown file each: compiles, runs and compares their Rust.
//! The tests and the developer's command, `cargo run -p notebook -- COMMAND`, call this library.

extern crate data_parallel_collective as collective;

pub mod book;
pub mod chapter;
pub mod check;
pub mod compare;
pub mod curve;
pub mod epochs;
pub mod fresh;
pub mod item;
pub mod jupyter;
pub mod links;
pub mod output;
pub mod record;
pub mod renew;
pub mod report;
pub mod run;
pub mod site;
pub mod speed_up;
