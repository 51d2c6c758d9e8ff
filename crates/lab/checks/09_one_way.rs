// The goals of the puzzle of one-way links.

const LINKS: [(usize, usize); 4] = [(0, 2), (2, 1), (1, 3), (3, 0)];

lab::puzzle!(4, [Goal::Only(&|from, to| LINKS.contains(&(from, to))), Goal::Bytes(1.5)]);
