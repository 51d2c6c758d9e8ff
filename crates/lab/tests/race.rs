//! A race has a row for each all-reduce, and refuses what is none.

use anyhow::{Context, Result, ensure};
use collective::{Algorithm, Schedule};
use lab::race::race;

#[test]
fn a_race_has_a_row_for_each_all_reduce() -> Result<()> {
    for k in [2, 5] {
        let said = race(&Schedule::new(Algorithm::Ring, k).json(), 400_000)?;
        let (mut models, mut moved) = (vec![], vec![]);
        for name in ["yours", "star", "owner", "ring", "tree"] {
            let row = said
                .lines()
                .find(|line| line.starts_with(&format!("{name} ")));
            let cells: Vec<&str> = row.context(name)?.split_whitespace().collect();
            // name, median, lowest – highest, model, moved, N
            let [_, median, low, _, high, model, times, _] = cells[..] else {
                anyhow::bail!("{cells:?}");
            };
            let [median, low, high, model] = [median, low, high, model].map(str::parse::<f64>);
            let (median, low, high) = (median?, low?, high?);
            ensure!(0.0 < low && low <= median && median <= high, "{said}");
            models.push(model?);
            moved.push(times.parse::<f64>()?);
        }
        let [yours, star, _, ring, _] = models[..] else {
            anyhow::bail!("{said}");
        };
        ensure!(yours == ring && star >= ring && ring > 0.0, "{said}");
        let n = k as f64;
        let right = [
            5.0 * n - 5.0,
            3.0 * n - 1.0,
            2.0 * n,
            5.0 * n - 5.0,
            5.0 * n - 5.0,
        ];
        ensure!(moved == right, "{said}");
        let widest = said.lines().map(|line| line.chars().count()).max();
        ensure!(widest <= Some(90), "{widest:?} columns:\n{said}");
    }
    Ok(())
}

#[test]
fn what_is_no_all_reduce_does_not_run() {
    let half = Schedule::reduce_scatter(Algorithm::Ring, 3).json();
    let error = race(&half, 1000).unwrap_err();
    assert!(
        error.to_string().contains("each has to be there once"),
        "{error}"
    );
}
