//! One answer and its check: the files of LAB_ANSWER and LAB_CHECK, which `lab` sets when it compiles this.

extern crate data_parallel_collective as collective;

#[allow(unused, missing_docs)]
#[deny(unused_must_use)] // a forgotten `?` hides an error
mod exercise {
    include!(env!("LAB_ANSWER"));
}

mod check {
    include!(env!("LAB_CHECK"));
}

fn main() {
    lab::print_verdict(lab::judge(check::check));
}
