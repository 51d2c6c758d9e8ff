// The halves of puzzle 13, for any power of two. In a round with the distance
// d, each device exchanges d chunks with the device at the distance d. It adds
// the chunks that it keeps. After log2(k) rounds it has the sum of one chunk.
// Then the sums are copied back the same way. That is 2 log2(k) messages with 2
// (k - 1) / k * N bytes, and each is the least that is possible. (That no other
// schedule has a smaller sum of both times is not proved here.)

use collective::Schedule;
use lab::puzzle::{add, copy};

pub fn schedule(k: usize) -> Schedule {
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
}
