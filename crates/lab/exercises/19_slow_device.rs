// 19. Puzzle: a slow device
//
// The links among devices 0, 1 and 2 carry 10 GB/s. The links to and from
// device 3 carry only 1 GB/s. No link has a latency. Write an all-reduce of 1
// MB among the four devices that takes at most 1.2 ms.
//
// The ring takes 1.5 ms, because device 3 sends 1.5 N bytes. Device 3 has to
// send N bytes, 1 ms, because its data must leave it. It has to receive N
// bytes, another millisecond. Its link works in both directions at the same
// time. So an all-reduce cannot take less than 1 ms.
//
// Puzzle 12 explains `Schedule`, `add` and `copy`.

use collective::Schedule;
use lab::puzzle::{add, copy};

pub fn schedule() -> Schedule {
    todo!("write a schedule that keeps the slow link busy in both directions")
}
