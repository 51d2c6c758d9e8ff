//! Stands for the claims about several processes in a build without MPI, so that they are not missed in
//! silence.

use libtest_mimic::Trial;

pub fn trials() -> Vec<Trial> {
    let name = "several_processes (ignored: needs --features mpi and Open MPI)";
    let test = Trial::test(name, || Err("build it with --features mpi".into()));
    vec![test.with_ignored_flag(true)]
}
