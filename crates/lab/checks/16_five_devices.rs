// The goals of the puzzle of five devices.

lab::puzzle!(5, [Goal::Messages(6), Goal::Bytes(1.6)]);
