// The goals of the puzzle of five devices.

use anyhow::Result;
use lab::puzzle::{Goal, check as check_schedule};

use super::exercise::schedule;

pub fn check() -> Result<()> {
    check_schedule(&schedule(), 5, &[Goal::Messages(6), Goal::Bytes(1.6)])
}
