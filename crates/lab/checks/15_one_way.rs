// The goals of the puzzle of one-way links.

use anyhow::Result;
use lab::puzzle::{Goal, check as check_schedule};

use super::exercise::schedule;

pub fn check() -> Result<()> {
    let links = [(0, 2), (2, 1), (1, 3), (3, 0)];
    let only = Goal::Only(&|from, to| links.contains(&(from, to)));
    check_schedule(&schedule(), 4, &[only, Goal::Bytes(1.5)])
}
