// 12. Puzzle: two devices, N bytes
//
// From here on you write schedules (book: 13.7). The data, N bytes, is cut into
// equal chunks, numbered from 0. A device is called a member. A schedule has
// rounds, and a round has sums that run at the same time. `add(by, &[others],
// chunk)`: member `by` adds the chunks of the others to its own. `copy(by,
// other, chunk)`: it copies the other's chunk. A device writes only its own
// memory, and in a round no device may read what another one writes.
//
// The star for two devices has one chunk. Device 0 adds, then device 1 copies:
//
//     let rounds = vec![vec![add(0, &[1], 0)], vec![copy(1, 0, 0)]];
//     Schedule { members: 2, chunks: 1, rounds }
//
// In each of its two rounds N bytes move, and one of the two directions of the
// link is idle. Write an all-reduce in which at most N bytes go through the
// busiest device. That number is counted so: in each round, take the device
// that receives or sends most. Add these numbers over all rounds.
//
// It cannot be less than N. A device receives N/2 to sum one half, and N/2 as
// the sum of the other half.

use collective::Schedule;
use lab::puzzle::{add, copy};

pub fn schedule() -> Schedule {
    todo!("write a schedule of two devices that keeps both directions of the link busy")
}
