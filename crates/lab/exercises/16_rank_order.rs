// 16. Puzzle: the bits of the star
//
// The star sums in the order of the devices: 0+1+2+3. The ring and the halves
// of puzzle 13 sum in other orders, so their bits can differ. Write an
// all-reduce of four devices that sums every chunk as 0+1+2+3, with
//
// * at most 1.5 N bytes through the busiest device,
// * at most 5 messages one after the other.
//
// `add` puts the device's own chunk first. A `Sum` can have another order:
//
//     Sum::new(1, vec![0, 1], 0) // device 1 keeps the sum 0+1 of chunk 0
//
// Neither number can be smaller. In this order, each message adds at most one
// value to the sum so far. So the sum is complete after three messages, and
// only one device has it then. Each further message at most doubles the number
// of devices that have the sum. So all four have it after two more messages.
//
// Puzzle 12 explains `Schedule`, `add` and `copy`.

use collective::{Schedule, Sum};
use lab::puzzle::copy;

pub fn schedule() -> Schedule {
    todo!("write a schedule that sums every chunk as 0+1+2+3")
}
