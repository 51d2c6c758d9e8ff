// The goals of the puzzle of a line.

use anyhow::Result;
use lab::puzzle::{Goal, check as check_schedule};

use super::exercise::schedule;

pub fn check() -> Result<()> {
    let only = Goal::Only(&|from, to| from.abs_diff(to) == 1);
    let goals = [only, Goal::Order("0+1+2+3"), Goal::Bytes(2.25)];
    check_schedule(&schedule(), 4, &goals)
}
