// The goals of the puzzle of four devices, four messages.

lab::puzzle!(4, [Goal::Messages(4), Goal::Bytes(1.5)]);
