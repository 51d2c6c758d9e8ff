// 15. Puzzle: a server
//
// Device 0 is a server, and devices 1, 2 and 3 have links only to it and from
// it. The star uses only these links. The server first receives 3 N bytes, and
// then it sends 3 N bytes. Together that is 6 N.
//
// Write an all-reduce with at most 3.2 N bytes through the busiest device of
// each round, all rounds together. You choose the number of chunks.
//
// It must be more than 3 N. The data of each other device must reach the
// server, so the server receives 3 N bytes. It has nothing to send before the
// first sum is complete.
//
// Puzzle 12 explains `Schedule`, `add` and `copy`.

use collective::Schedule;
use lab::puzzle::{add, copy};

pub fn schedule() -> Schedule {
    todo!("write a schedule in which the server receives and sends at the same time")
}
