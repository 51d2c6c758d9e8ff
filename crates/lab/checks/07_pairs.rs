// The bound of four devices with two chunks: 2 N bytes.

use anyhow::{Result, ensure};
use lab::puzzle::{Goal, check as check_schedule};

use super::exercise::schedule;

pub fn check() -> Result<()> {
    let schedule = schedule();
    check_schedule(&schedule, 4, &[Goal::Bytes(2.0)])?;
    let chunks = schedule.chunks;
    ensure!(
        chunks == 2,
        "It is an all-reduce, but it has {chunks} chunks. This puzzle has 2 chunks; puzzle 8 allows more."
    );
    Ok(())
}
