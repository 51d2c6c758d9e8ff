//! The figures that no cell prints: drawn by this code, written to `notebooks-md/img` by `renew`.

mod all_reduce;
mod card;
mod curve;
mod data_parallel;
mod motion;
mod parameter_server;
mod splitting;
mod step;

use anyhow::Result;
use collective::Algorithm;

use crate::book::Book;

/// The name of each file, and what is in it.
///
/// # Errors
/// If a run that a figure shows is not recorded in `book`.
pub fn all(book: &Book) -> Result<Vec<(&'static str, String)>> {
    Ok(vec![
        ("data-parallel.svg", data_parallel::svg()),
        ("splitting.svg", splitting::svg()),
        ("data-parallel-step.svg", step::svg()),
        ("star.svg", all_reduce::svg(Algorithm::Star)),
        ("owner.svg", all_reduce::svg(Algorithm::Owner)),
        ("ring.svg", all_reduce::svg(Algorithm::Ring)),
        ("tree.svg", all_reduce::svg(Algorithm::Tree)),
        ("parameter-server.svg", parameter_server::svg()),
        ("resnet18-curve.svg", curve::svg(book)?),
    ])
}
