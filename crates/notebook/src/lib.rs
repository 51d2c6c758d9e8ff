//! The chapters of `notebooks-md`: one Markdown file each, whose Rust is compiled, run and compared.
//! The developer's command, `cargo run -p notebook -- COMMAND`, and the tests are made of this.

pub mod chapter;
pub mod compare;
pub mod item;
pub mod output;
pub mod run;
