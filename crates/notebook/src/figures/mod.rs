//! The figures that no cell prints: drawn by this code, written to `notebooks-md/img` by `renew`.

mod all_reduce;
mod card;
mod data_parallel;
mod motion;
mod parameter_server;
mod splitting;
mod step;

use collective::Algorithm;

/// The name of each file, and what is in it.
pub fn all() -> Vec<(&'static str, String)> {
    vec![
        ("data-parallel.svg", data_parallel::svg()),
        ("splitting.svg", splitting::svg()),
        ("data-parallel-step.svg", step::svg()),
        ("star.svg", all_reduce::svg(Algorithm::Star)),
        ("owner.svg", all_reduce::svg(Algorithm::Owner)),
        ("ring.svg", all_reduce::svg(Algorithm::Ring)),
        ("tree.svg", all_reduce::svg(Algorithm::Tree)),
        ("parameter-server.svg", parameter_server::svg()),
    ]
}
