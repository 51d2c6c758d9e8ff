// The goals of the puzzle of the bits of the star.

lab::puzzle!(4, [Goal::Order("0+1+2+3"), Goal::Bytes(1.5), Goal::Messages(5)]);
