// The goals of the puzzle of three hosts.

lab::puzzle!(6, [Goal::Leaves(4.0 / 3.0, &|member| member / 2), Goal::Bytes(5.0 / 3.0)]);
