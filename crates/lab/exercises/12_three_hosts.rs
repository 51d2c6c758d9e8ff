// 12. Puzzle: three hosts
//
// Six devices are on three hosts: 0 and 1, 2 and 3, 4 and 5. The hosts have
// slow network cards. Write an all-reduce in which
//
// * at most 4/3 N bytes leave each host,
// * at most 5/3 N bytes go through the busiest device.
//
// Neither number can be smaller. The second one is 2 (k - 1) / k * N with k =
// 6. For the first one, see each host as one device with k = 3: together the
// hosts send at least 2 (k - 1) N = 4 N bytes, and that is 4/3 N for each host.
//
// Puzzle 6 explains `Schedule`, `add` and `copy`.

// gap:
// Inside a host, the two devices exchange halves, as in puzzle 8. So each
// device has one half of its host's sum. Then the three devices with the same
// half are owners of a third each, N/6 bytes. At last the devices of a host
// copy their halves. Bytes through a device: 1/2 + 2/6 + 2/6 + 1/2 = 5/3. Bytes
// that leave a host: two devices send 2/6 N in each of the middle rounds,
// together 4/3 N. Both numbers are the least that is possible.

// end of gap
use collective::Schedule;
use lab::puzzle::{add, copy};

pub fn schedule() -> Schedule {
    // gap: todo!("write a schedule of six devices in which little leaves each host")
    let mut rounds = vec![vec![]; 4];
    for me in 0..6 {
        let (host, half, beside) = (me / 2, me % 2, me ^ 1);
        for third in 0..3 {
            rounds[0].push(add(me, &[beside], 3 * half + third));
            rounds[3].push(copy(me, beside, 3 * (1 - half) + third));
        }
        let others = [(me + 2) % 6, (me + 4) % 6]; // with the same half
        rounds[1].push(add(me, &others, 3 * half + host));
        rounds[2].extend(others.map(|other| copy(me, other, 3 * half + other / 2)));
    }
    Schedule {
        members: 6,
        chunks: 6,
        rounds,
    }
    // end of gap
}
