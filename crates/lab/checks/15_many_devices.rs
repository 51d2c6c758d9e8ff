// The goals of the puzzle of many devices.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use collective::cost::Link;
use lab::puzzle::check as check_schedule;

use super::exercise::schedule;

pub fn check() -> Result<()> {
    for k in [2, 4, 8, 16] {
        check_schedule(&schedule(k), k, &[]).with_context(|| format!("With {k} devices"))?;
    }
    let link = Link {
        latency: Duration::from_micros(10),
        bytes_per_second: 16e9,
    };
    let many = schedule(256);
    ensure!(
        many.members == 256,
        "For k = 256 your schedule has {} members.",
        many.members
    );
    let ms = many.time(516_272, |_, _| link).as_secs_f64() * 1e3;
    ensure!(
        ms <= 0.23,
        "It takes {ms:.2} ms on 256 devices. The goal is 0.23 ms."
    );
    Ok(())
}
