// 6. Puzzle: two devices, N bytes
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

// gap:
// Two chunks: each device sums one of them, and then copies the other sum. A
// round moves N/2 bytes in each direction.

// end of gap
use collective::Schedule;
use lab::puzzle::{add, copy};

pub fn schedule() -> Schedule {
    // gap: todo!("write a schedule of two devices that keeps both directions of the link busy")
    let sums = vec![add(0, &[1], 0), add(1, &[0], 1)];
    let copies = vec![copy(0, 1, 1), copy(1, 0, 0)];
    Schedule {
        members: 2,
        chunks: 2,
        rounds: vec![sums, copies],
    }
    // end of gap
}
