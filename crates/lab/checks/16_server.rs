// The goals of the puzzle of a server.

use anyhow::Result;
use lab::puzzle::{Goal, check as check_schedule};

use super::exercise::schedule;

pub fn check() -> Result<()> {
    let only = Goal::Only(&|from, to| from == 0 || to == 0);
    check_schedule(&schedule(), 4, &[only, Goal::Bytes(3.2)])
}
