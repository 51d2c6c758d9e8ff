// The goals of the puzzle of a slow device.

use std::time::Duration;

use anyhow::Result;
use collective::cost::Link;
use lab::puzzle::{Goal, check as check_schedule};

use super::exercise::schedule;

pub fn check() -> Result<()> {
    let link = |from, to| Link {
        latency: Duration::ZERO,
        bytes_per_second: if from == 3 || to == 3 { 1e9 } else { 10e9 },
    };
    check_schedule(&schedule(), 4, &[Goal::Ms(1.2, &link)])
}
