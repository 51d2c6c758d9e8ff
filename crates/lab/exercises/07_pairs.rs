// 7. Puzzle: four devices, two chunks
//
// The tree sums four devices in pairs, and then it sums the pairs. The sum goes
// back the same way. So four messages of N bytes follow one another: 4 N. Each
// link works in one direction only, or not at all.
//
// Write an all-reduce of four devices with two chunks. At most 2 N bytes go
// through the busiest device of each round, all rounds together.
//
// In Rust, `me ^ 1` is the partner of device `me` in the pairs 0, 1 and 2, 3.
// And `me ^ 2` is its partner in the pairs 0, 2 and 1, 3.
//
// It cannot be less with two chunks. Look at one chunk. After one message, a
// device has the sum of two values at most. After two messages, it can have the
// sum of four. Only one device can have it then, because a chunk is not written
// while it is read. Each further message at most doubles the number of devices
// that have the sum. So all four have it after two more messages. That is four
// messages of N/2 bytes, one after the other: 2 N.
//
// Puzzle 6 explains `Schedule`, `add` and `copy`.

// gap:
// Puzzle 6, twice. First in the pairs at distance 2: each device adds one half
// of the data, and then it copies the other half. Now each device has the sum
// of two values. Then the pairs at distance 1 do the same with these sums. That
// is four messages of N/2 bytes: 2 N, the least that two chunks allow.
//
// Two trees also reach 2 N, one for each chunk. Device 0 has the sum of chunk 0
// first, and device 1 has that of chunk 1 first.

// end of gap
use collective::Schedule;
use lab::puzzle::{add, copy};

pub fn schedule() -> Schedule {
    // gap: todo!("write a schedule of four devices with two chunks")
    let mut rounds = Vec::new();
    for distance in [2, 1] {
        // a device adds this chunk, and its partner adds the other one
        let own = |me: usize| me / distance % 2;
        let sums = (0..4).map(|me| add(me, &[me ^ distance], own(me)));
        let copies = (0..4).map(|me| copy(me, me ^ distance, 1 - own(me)));
        rounds.push(sums.collect());
        rounds.push(copies.collect());
    }
    Schedule {
        members: 4,
        chunks: 2,
        rounds,
    }
    // end of gap
}
