// 8. Puzzle: four devices, four messages
//
// A message takes some time to begin, its latency, and some time for its bytes.
// The pairs of puzzle 7 need only 4 messages, but 2 N bytes. The owner needs
// only 1.5 N bytes, but 6 messages. Now write an all-reduce of four devices
// that does both, with as many chunks as you like:
//
// * at most 4 messages one after the other,
// * at most 1.5 N bytes through the busiest device.
//
// All chunks that go from one device to another in the same round are one
// message. A device sends its messages one after the other, and it receives
// them one after the other. It sends and receives at the same time. In each
// round, the device with most messages counts.
//
// Neither number can be smaller. Puzzle 7 shows that 4 messages are needed.
// The page "Communication" shows that 2 (k - 1) / k * N bytes are needed, with
// k = 4.
//
// Puzzle 6 explains `Schedule`, `add` and `copy`.

// gap:
// First, the devices at distance 2 exchange halves: each adds the half that it
// keeps. Then the devices at distance 1 exchange a quarter, and each has the
// sum of one chunk. The last two rounds copy the sums back the same way. That
// is 4 messages of N/2, N/4, N/4 and N/2 bytes: 1.5 N. Both numbers are the
// least that is possible.

// end of gap
use collective::Schedule;
use lab::puzzle::{add, copy};

pub fn schedule() -> Schedule {
    // gap: todo!("write a schedule of four devices with four messages one after the other")
    let mut rounds = vec![vec![]; 4];
    for me in 0..4 {
        let (near, far) = (me ^ 1, me ^ 2);
        for chunk in 0..4 {
            if chunk / 2 == me / 2 {
                rounds[0].push(add(me, &[far], chunk));
            } else {
                rounds[3].push(copy(me, far, chunk));
            }
        }
        rounds[1].push(add(me, &[near], me));
        rounds[2].push(copy(me, near, near));
    }
    Schedule {
        members: 4,
        chunks: 4,
        rounds,
    }
    // end of gap
}
