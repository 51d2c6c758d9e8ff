//! Protocol of a contender with `bench cpu`: it says `ready` and its version, then takes the number
//! of steps to do from each line of its input, and answers with the milliseconds of each. Knows no
//! network. The peers outside the workspace include this file.

use std::io::{BufRead, Write};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

/// Serves requests until the input ends; `step` returns the loss.
///
/// # Errors
/// If a step fails, or its loss is no finite number: then what is timed is not training.
pub fn serve(version: &str, mut step: impl FnMut() -> Result<f32>) -> Result<()> {
    serve_turns(version, |steps| {
        let mut times = Vec::new();
        for _ in 0..steps {
            let start = Instant::now();
            let loss = step()?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
            ensure!(loss.is_finite(), "the loss is {loss}");
        }
        Ok(times)
    })
}

/// Like [`serve`], with a `turn` that does as many steps as it is told and returns their milliseconds.
///
/// # Errors
/// If a turn fails.
pub fn serve_turns(version: &str, mut turn: impl FnMut(usize) -> Result<Vec<f64>>) -> Result<()> {
    serve_lines(version, |steps| {
        let times: Vec<String> = turn(steps)?.iter().map(|ms| format!("{ms:.5}")).collect();
        Ok(times.join(" "))
    })
}

/// Like [`serve`], with an `answer` of one line to the number of steps.
///
/// # Errors
/// If there is no answer.
pub fn serve_lines(version: &str, mut answer: impl FnMut(usize) -> Result<String>) -> Result<()> {
    say(&format!("ready {version}"))?;
    for line in std::io::stdin().lock().lines() {
        let steps: usize = line?.trim().parse().context("a request is a number")?;
        say(&answer(steps)?)?;
    }
    Ok(())
}

fn say(line: &str) -> Result<()> {
    println!("{line}");
    Ok(std::io::stdout().flush()?)
}

/// The version of a package in the text of a `Cargo.lock`.
pub fn locked(lock: &str, package: &str) -> String {
    let name = format!("name = \"{package}\"\nversion = \"");
    let after = lock.split_once(&name).map_or("?\"", |(_, after)| after);
    after.split('"').next().unwrap_or("?").to_owned()
}
