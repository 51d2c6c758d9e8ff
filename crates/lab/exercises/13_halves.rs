// 13. Puzzle: four devices, four messages
//
// A message takes some time to begin, its latency, and some time for its bytes.
// The tree has few messages. The owner sends few bytes. Now write an all-reduce
// of four devices that does both:
//
// * at most 4 messages one after the other,
// * at most 1.5 N bytes through the busiest device.
//
// All chunks that go from one device to another in the same round are one
// message. A device sends its messages one after the other, and it receives
// them one after the other. It sends and receives at the same time. In each
// round, the device with most messages counts.
//
// Neither number can be smaller. The page "Communication" shows that 2 (k - 1)
// / k * N bytes are needed, with k = 4. For the messages: after one message, a
// device has the sum of two values at most. After two messages, it has the sum
// of four. Only one device can have it then, because a chunk is not written
// while it is read. Each further message at most doubles the number of devices
// that have the sum. So all four have it after two more messages.
//
// Puzzle 12 explains `Schedule`, `add` and `copy`.

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
