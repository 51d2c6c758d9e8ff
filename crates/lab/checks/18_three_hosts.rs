// The goals of the puzzle of three hosts.

use anyhow::Result;
use lab::puzzle::{Goal, check as check_schedule};

use super::exercise::schedule;

pub fn check() -> Result<()> {
    let leaves = Goal::Leaves(4.0 / 3.0, &|member| member / 2);
    check_schedule(&schedule(), 6, &[leaves, Goal::Bytes(5.0 / 3.0)])
}
