// 11. Puzzle: the bits of the star
//
// The star sums in the order of the devices: 0+1+2+3. The ring and the halves
// of puzzle 8 sum in other orders, so their bits can differ. Write an
// all-reduce of four devices that sums every chunk as 0+1+2+3, with
//
// * at most 1.5 N bytes through the busiest device,
// * at most 5 messages one after the other.
//
// `add` puts the device's own chunk first. A `Sum` can have another order:
//
//     Sum::new(1, vec![0, 1], 0) // device 1 keeps the sum 0+1 of chunk 0
//
// Neither number can be smaller. In this order, each message adds at most one
// value to the sum so far. So the sum is complete after three messages, and
// only one device has it then. Each further message at most doubles the number
// of devices that have the sum. So all four have it after two more messages.
//
// Puzzle 6 explains `Schedule`, `add` and `copy`.

// gap:
// The sums are those of the owner: three messages, in any order that we like.
// The copies are those of the halves: two messages, first one chunk from the
// near device, then two chunks from the far one. That is 5 messages, and 3/4 N
// + 1/4 N + 2/4 N = 1.5 N. Both numbers are the least that is possible.

// end of gap
use collective::{Schedule, Sum};
use lab::puzzle::copy;

pub fn schedule() -> Schedule {
    // gap: todo!("write a schedule that sums every chunk as 0+1+2+3")
    let mut rounds = vec![vec![]; 3];
    for me in 0..4 {
        let (near, far) = (me ^ 1, me ^ 2);
        rounds[0].push(Sum::new(me, vec![0, 1, 2, 3], me));
        rounds[1].push(copy(me, near, near));
        rounds[2].extend([far, far ^ 1].map(|chunk| copy(me, far, chunk)));
    }
    Schedule {
        members: 4,
        chunks: 4,
        rounds,
    }
    // end of gap
}
