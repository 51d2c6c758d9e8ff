//! Protocol of a contender with `bench cpu`: it says `ready` and its version, then takes the number
//! of steps to do from each line of its input, and answers with the milliseconds of each, or of the mean one. It knows
//! no network.

use std::io::{BufRead, Write, stdin, stdout};

use anyhow::{Context, Result};

/// Serves requests until the input ends; a `turn` does as many steps as it is told and returns their milliseconds.
///
/// # Errors
/// If a turn fails.
pub fn serve(version: &str, mut turn: impl FnMut(usize) -> Result<Vec<f64>>) -> Result<()> {
    say(&format!("ready {version}"))?;
    for line in stdin().lock().lines() {
        let steps = line?.trim().parse().context("a request is a number")?;
        let times: Vec<String> = turn(steps)?.iter().map(|ms| format!("{ms:.5}")).collect();
        say(&times.join(" "))?;
    }
    Ok(())
}

fn say(line: &str) -> Result<()> {
    println!("{line}");
    Ok(stdout().flush()?)
}
