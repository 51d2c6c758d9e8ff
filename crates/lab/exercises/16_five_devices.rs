// 16. Puzzle: five devices
//
// Five is no power of two, so the halves of puzzle 8 do not fit. The owner has
// 8 messages one after the other. The tree has 6, but 6 N bytes go through its
// busiest devices. Write an all-reduce of five devices with
//
// * at most 6 messages one after the other,
// * at most 1.6 N bytes through the busiest device.
//
// This is the hardest puzzle. 1.6 N is 2 (k - 1) / k * N with k = 5, the least
// that is possible. With so few bytes, each chunk moves exactly 8 times: 4
// times until one device has its sum, and then 4 devices copy the sum. Each
// message at most doubles the number of values in a sum, so five values need 3
// messages. Each further message at most doubles the number of devices that
// have the sum, so five devices need 3 more. So 6 is the least with so few
// bytes.
//
// Puzzle 6 explains `Schedule`, `add` and `copy`.

// gap:
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

// end of gap
use collective::Schedule;
use lab::puzzle::{add, copy};

// gap:
/// A skip, and how many places further on the owners of the chunks are.
const SKIPS: [(usize, &[usize]); 3] = [(3, &[3, 4]), (2, &[2]), (1, &[1])];

// end of gap
pub fn schedule() -> Schedule {
    // gap: todo!("write a schedule of five devices with six messages one after the other")
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
    // end of gap
}
