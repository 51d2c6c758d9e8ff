// The goals of the puzzle of four devices, four messages.

use anyhow::Result;
use lab::puzzle::{Goal, check as check_schedule};

use super::exercise::schedule;

pub fn check() -> Result<()> {
    check_schedule(&schedule(), 4, &[Goal::Messages(4), Goal::Bytes(1.5)])
}
