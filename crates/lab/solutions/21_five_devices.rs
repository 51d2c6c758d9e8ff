// All devices do the same: in a round with the skip s, each one sends to the
// device s places further on. The skips are 3, 2 and 1. Device r begins with
// chunks of five owners: r itself, and those 1 to 4 places further on. In the
// first round it sends the chunks of the owners 3 and 4 places further on, then
// of the one 2 places further on, then of the next one. So it is left with its
// own chunk, which is complete. The copies go back the same way. Each device
// sends four chunks of N/5 in 3 messages, twice: 1.6 N in 6 messages. Both
// numbers are the least that is possible.
//
// This works for any k, with ceil(log2(k)) skips: each is half of the one
// before, rounded up. See Träff, "Optimal, Non-pipelined Reduce-scatter and
// Allreduce Algorithms", 2024, <https://arxiv.org/abs/2410.14234>.

use collective::Schedule;
use lab::puzzle::{add, copy};

/// A skip, and how many places further on the owners of the chunks are.
const SKIPS: [(usize, &[usize]); 3] = [(3, &[3, 4]), (2, &[2]), (1, &[1])];

pub fn schedule() -> Schedule {
    let (mut sums, mut copies) = (Vec::new(), Vec::new());
    for (skip, owners) in SKIPS {
        let (mut sum, mut back) = (Vec::new(), Vec::new());
        for me in 0..5 {
            let next = (me + skip) % 5;
            for owner in owners.iter().map(|further| (me + further) % 5) {
                sum.push(add(next, &[me], owner));
                back.push(copy(me, next, owner));
            }
        }
        sums.push(sum);
        copies.push(back);
    }
    copies.reverse();
    Schedule {
        members: 5,
        chunks: 5,
        rounds: [sums, copies].concat(),
    }
}
