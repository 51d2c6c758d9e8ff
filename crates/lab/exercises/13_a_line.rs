// 13. Puzzle: a line
//
// Four devices stand in a line, and only neighbors have links: 0 and 1, 1 and
// 2, 2 and 3. Write an all-reduce that sums every chunk as 0+1+2+3, the order
// of the star. At most 2.25 N bytes go through the busiest device of each
// round, all rounds together. You choose the number of chunks.
//
// Without chunks, N bytes go along the line and back. That is 6 N, because only
// one device sends at a time.
//
// It must be more than 2 N. Device 1 receives N bytes from the left, because
// device 0 has no other link. It also receives N bytes from the right. At the
// end, the last sum still has to reach the other devices.
//
// Puzzle 6 explains `Schedule`, `add` and `copy`.

// gap:
// Each chunk goes along the line and back, and each one begins a round after
// the one before: a pipeline. In most rounds devices 1 and 2 receive two
// chunks, one from each side. With c chunks, c - 1 rounds take 2 N/c and six
// rounds take N/c, together (2 + 4/c) N: 2.25 N for c = 16.
//
// (2 + 3/c) N is possible. Device 2 sums: it receives from 1 and 3 in the same
// round, and both copy from it. Only the last sum goes to device 1 first. Then
// it goes from 1 to 0 and from 2 to 3 in the same round. For 1 to 4 chunks, a
// search by computer found nothing less. For more chunks, we have no proof that
// it is the least.

// end of gap
use collective::{Schedule, Sum};

pub fn schedule() -> Schedule {
    // gap: todo!("write a schedule in which all links of the line work at the same time")
    let chunks = 16;
    let path = [(0, 1), (1, 2), (2, 3), (3, 2), (2, 1), (1, 0)];
    let round = |chunk, step| chunk + step;
    let mut rounds = vec![vec![]; round(chunks, 5)];
    for chunk in 0..chunks {
        for (step, (from, by)) in path.into_iter().enumerate() {
            let from = if step < 3 { vec![from, by] } else { vec![from] };
            rounds[round(chunk, step)].push(Sum::new(by, from, chunk));
        }
    }
    Schedule {
        members: 4,
        chunks,
        rounds,
    }
    // end of gap
}
