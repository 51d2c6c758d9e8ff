// 9. Puzzle: one-way links
//
// Four devices have only four links, and each link works in one direction:
//
//     0 -> 2      2 -> 1      1 -> 3      3 -> 0
//
// Write an all-reduce in which at most 1.5 N bytes go through the busiest
// device. It uses only these links.
//
// It cannot be less: with any links, 2 (k - 1) / k * N bytes are needed (the
// page "Communication", "A lower bound").
//
// Puzzle 6 explains `Schedule`, `add` and `copy`.

// gap:
// The four links are a ring in the order 0, 2, 1, 3. In each of the six rounds,
// every device receives one chunk of N/4 bytes from the left and sends one to
// the right: 1.5 N, the least that is possible.

// end of gap
use collective::Schedule;
use lab::puzzle::{add, copy};

// gap:
/// The devices in the order of the links.
const RING: [usize; 4] = [0, 2, 1, 3];

// end of gap
pub fn schedule() -> Schedule {
    // gap: todo!("write a schedule that uses only the four links")
    let mut rounds = vec![vec![]; 6];
    for (i, round) in rounds.iter_mut().enumerate() {
        for place in 0..4 {
            let (left, me) = (RING[(place + 3) % 4], RING[place]);
            let chunk = (place + 7 - i) % 4; // the one that `left` wrote in the round before
            let adds = i < 3;
            round.push(if adds {
                add(me, &[left], chunk)
            } else {
                copy(me, left, chunk)
            });
        }
    }
    Schedule {
        members: 4,
        chunks: 4,
        rounds,
    }
    // end of gap
}
