// 12. Puzzle: two devices, N bytes
//
// From here on you write schedules (book: 13.7). A schedule has rounds, and a
// round has sums that run at the same time. `add(by, &[others], chunk)`: member
// `by` adds the chunks of the others to its own. `copy(by, other, chunk)`: it
// copies the other's chunk. A device writes only its own
// memory, and in a round no device may read what another one writes.
//
// The star for two devices has one chunk. Device 0 adds, then device 1 copies:
//
//     let rounds = vec![vec![add(0, &[1], 0)], vec![copy(1, 0, 0)]];
//     Schedule { members: 2, chunks: 1, rounds }
//
// In each of its two rounds N bytes move, and one of the two directions of the
// link is idle. Write an all-reduce in which at most N bytes go through the
// busiest device. Each device must read at least the half that the other one
// sums, and send as much, so it cannot be less.

use collective::Schedule;
use lab::puzzle::{add, copy};

pub fn schedule() -> Schedule {
    todo!("write a schedule of two devices that keeps both directions of the link busy")
}
