// 15. Puzzle: many devices
//
// LeNet's gradient has 516,272 bytes. On 256 devices with links of 16 GB/s and
// a latency of 10 µs, the owner takes 5.16 ms and the tree takes 0.68 ms. Write
// an all-reduce for any power of two, `k` devices, that takes at most 0.23 ms
// on 256 devices. All chunks that go from one device to another in the same
// round are one message.
//
// The check looks whether it is an all-reduce for k = 2, 4, 8 and 16. For k =
// 256 it only adds up the time.
//
// As in puzzle 7, 2 log2(k) messages are needed. For k = 256 that is 16
// messages, or 0.16 ms. And 2 (k - 1) / k * N bytes are needed, which take
// 0.064 ms. Together that is 0.224 ms.
//
// Puzzle 6 explains `Schedule`, `add` and `copy`.

// gap:
// The halves of puzzle 8, for any power of two. In a round with the distance
// d, each device exchanges d chunks with the device at the distance d. It adds
// the chunks that it keeps. After log2(k) rounds it has the sum of one chunk.
// Then the sums are copied back the same way. That is 2 log2(k) messages with 2
// (k - 1) / k * N bytes, and each is the least that is possible. (That no other
// schedule has a smaller sum of both times is not proved here.)

// end of gap
use collective::Schedule;
use lab::puzzle::{add, copy};

pub fn schedule(k: usize) -> Schedule {
    // gap: todo!("write a schedule for any power of two")
    // the chunks that a device keeps at the distance d
    let kept = |device, d| device / d * d..device / d * d + d;
    let mut rounds = Vec::new();
    for d in (0..k.ilog2()).rev().map(|bit| 1 << bit) {
        let sums = |me| kept(me, d).map(move |chunk| add(me, &[me ^ d], chunk));
        rounds.push((0..k).flat_map(sums).collect());
    }
    for d in (0..k.ilog2()).map(|bit| 1 << bit) {
        let copies = |me| kept(me ^ d, d).map(move |chunk| copy(me, me ^ d, chunk));
        rounds.push((0..k).flat_map(copies).collect());
    }
    Schedule {
        members: k,
        chunks: k,
        rounds,
    }
    // end of gap
}
