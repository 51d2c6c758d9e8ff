// 14. Puzzle: a slow device
//
// The links among devices 0, 1 and 2 carry 10 GB/s. The links to and from
// device 3 carry only 1 GB/s. No link has a latency. Write an all-reduce of 1
// MB among the four devices that takes at most 1.2 ms.
//
// The ring takes 1.5 ms, because device 3 sends 1.5 N bytes. Device 3 has to
// send N bytes, 1 ms, because its data must leave it. It has to receive N
// bytes, another millisecond. Its link works in both directions at the same
// time. So an all-reduce cannot take less than 1 ms.
//
// Puzzle 6 explains `Schedule`, `add` and `copy`.

// gap:
// A pipeline: every chunk has an owner among the fast devices, which take
// turns. The owner adds the chunks of the two other fast devices. Two rounds
// later, device 3 sends its chunk and the owner adds it. Then device 3 gets the
// sum. Two rounds later the others get it. So in each round one fast device
// receives from device 3, and another one sends to it. The first one receives
// nothing else, and the second one sends nothing else. So the fast messages
// cost no time. With c chunks, c + 1 rounds take 1/c ms, and the first two and
// the last two take 0.2/c ms: (1 + 1.8/c) ms together. That is 1.08 ms for c =
// 24, and close to the bound of 1 ms for more chunks.
//
// It is simpler to sum and copy among the fast devices before and after the
// slow messages. That takes 0.07 ms twice: (1.13 + 1/c) ms together, which is
// enough here.

// end of gap
use collective::Schedule;
use lab::puzzle::{add, copy};

pub fn schedule() -> Schedule {
    // gap: todo!("write a schedule that keeps the slow link busy in both directions")
    let chunks = 24;
    let mut rounds = vec![vec![]; chunks + 5];
    for chunk in 0..chunks {
        let owner = chunk % 3;
        let others = [(owner + 1) % 3, (owner + 2) % 3];
        rounds[chunk].push(add(owner, &others, chunk));
        rounds[chunk + 2].push(add(owner, &[3], chunk));
        rounds[chunk + 3].push(copy(3, owner, chunk));
        rounds[chunk + 5].extend(others.map(|other| copy(other, owner, chunk)));
    }
    Schedule {
        members: 4,
        chunks,
        rounds,
    }
    // end of gap
}
