// The goals of the puzzle of a line.

lab::puzzle!(
    4,
    [
        Goal::Only(&|from, to| from.abs_diff(to) == 1),
        Goal::Order("0+1+2+3"),
        Goal::Bytes(2.25)
    ]
);
