// The goals of the puzzle of a slow device.

use std::time::Duration;

use collective::cost::Link;

fn link(from: usize, to: usize) -> Link {
    Link {
        latency: Duration::ZERO,
        bytes_per_second: if from == 3 || to == 3 { 1e9 } else { 10e9 },
    }
}

lab::puzzle!(4, [Goal::Ms(1.2, &link)]);
