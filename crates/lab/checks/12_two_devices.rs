// The bound of a pair: N bytes.

use anyhow::Result;
use lab::puzzle::{Goal, check as check_schedule};

use super::exercise::schedule;

pub fn check() -> Result<()> {
    check_schedule(&schedule(), 2, &[Goal::Bytes(1.0)])
}
