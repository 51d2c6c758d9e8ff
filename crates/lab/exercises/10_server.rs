// 10. Puzzle: a server
//
// Device 0 is a server, and devices 1, 2 and 3 have links only to it and from
// it. The star uses only these links. The server first receives 3 N bytes, and
// then it sends 3 N bytes. Together that is 6 N.
//
// Write an all-reduce with at most 3.2 N bytes through the busiest device of
// each round, all rounds together. You choose the number of chunks.
//
// It must be more than 3 N. The data of each other device must reach the
// server, so the server receives 3 N bytes. It has nothing to send before the
// first sum is complete.
//
// Puzzle 6 explains `Schedule`, `add` and `copy`.

// gap:
// The server adds one chunk while it sends the sum of the chunk before: this is
// called pipelining. With c chunks there are c + 1 rounds, and in each one it
// receives or sends at most 3 N/c bytes. Together that is (3 + 3/c) N: 3.19 N
// for c = 16. With c chunks it cannot be less. The server receives 3 N/c bytes
// for the first sum, and then it sends 3 N. More chunks come closer to 3 N, but
// each one costs a latency.

// end of gap
use collective::Schedule;
use lab::puzzle::{add, copy};

pub fn schedule() -> Schedule {
    // gap: todo!("write a schedule in which the server receives and sends at the same time")
    let chunks = 16;
    let mut rounds = vec![vec![]; chunks + 1];
    for chunk in 0..chunks {
        rounds[chunk].push(add(0, &[1, 2, 3], chunk));
        rounds[chunk + 1].extend((1..4).map(|worker| copy(worker, 0, chunk)));
    }
    Schedule {
        members: 4,
        chunks,
        rounds,
    }
    // end of gap
}
