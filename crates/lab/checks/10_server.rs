// The goals of the puzzle of a server.

lab::puzzle!(4, [Goal::Only(&|from, to| from == 0 || to == 0), Goal::Bytes(3.2)]);
