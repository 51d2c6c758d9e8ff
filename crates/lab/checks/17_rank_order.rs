// The goals of the puzzle of the bits of the star.

use anyhow::Result;
use lab::puzzle::{Goal, check as check_schedule};

use super::exercise::schedule;

pub fn check() -> Result<()> {
    let goals = [Goal::Order("0+1+2+3"), Goal::Bytes(1.5), Goal::Messages(5)];
    check_schedule(&schedule(), 4, &goals)
}
