// The bound of a pair: N bytes.

lab::puzzle!(2, [Goal::Bytes(1.0)]);
