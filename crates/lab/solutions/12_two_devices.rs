// Two chunks: each device sums one of them, and then copies the other sum. A
// round moves N/2 bytes in each direction.

use collective::Schedule;
use lab::puzzle::{add, copy};

pub fn schedule() -> Schedule {
    let sums = vec![add(0, &[1], 0), add(1, &[0], 1)];
    let copies = vec![copy(0, 1, 1), copy(1, 0, 0)];
    Schedule {
        members: 2,
        chunks: 2,
        rounds: vec![sums, copies],
    }
}
