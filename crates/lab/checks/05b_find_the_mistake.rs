// The test of the answer, on the right step and on six wrong ones.

use anyhow::{Result, ensure};
use lab::steps::{RIGHT, WRONG};

use super::exercise::finds_a_mistake;

pub fn check() -> Result<()> {
    ensure!(
        !finds_a_mistake(RIGHT)?,
        "Your test finds a mistake in the right step. k devices take the step of one, up to rounding: compare equal \
         minibatches."
    );
    let mut found = vec![];
    let mut missed = vec![];
    for (title, step) in WRONG {
        if finds_a_mistake(*step)? {
            found.push(*title);
        } else {
            missed.push(*title);
        }
    }
    ensure!(
        missed.is_empty(),
        "Your test finds {} of {} mistakes.\n  found: {}\n  not found: {}",
        found.len(),
        WRONG.len(),
        found.join("; "),
        missed.join("; ")
    );
    Ok(())
}
