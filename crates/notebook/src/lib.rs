//! The chapters of `notebooks-md`: one Markdown file each, whose Rust is compiled, run and compared.
//! The developer's command, `cargo run -p notebook -- COMMAND`, and the tests are made of this.

pub mod book;
pub mod chapter;
pub mod check;
pub mod compare;
pub mod epochs;
pub mod figures;
pub mod fresh;
pub mod item;
pub mod jupyter;
pub mod links;
pub mod output;
pub mod record;
pub mod renew;
pub mod run;
pub mod site;
