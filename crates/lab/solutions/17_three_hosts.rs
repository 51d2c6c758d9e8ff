// Inside a host, the two devices exchange halves, as in puzzle 13. So each
// device has one half of its host's sum. Then the three devices with the same
// half are owners of a third each, N/6 bytes. At last the devices of a host
// copy their halves. Bytes through a device: 1/2 + 2/6 + 2/6 + 1/2 = 5/3. Bytes
// that leave a host: two devices send 2/6 N in each of the middle rounds,
// together 4/3 N. Both numbers are the least that is possible.

use collective::Schedule;
use lab::puzzle::{add, copy};

pub fn schedule() -> Schedule {
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
}
