//! What the project claims, one module for each claim.
//!
//! One binary of its own (libtest-mimic): a test that needs the real data is listed as ignored,
//! with the reason, where there are none. It is also both programs: `claims --as scratch …` is
//! `scratch …`, so that a test can look at the exit status of a real process.

extern crate data_parallel_functional as functional;

use std::ffi::OsString;
use std::process::ExitCode;

#[macro_use]
mod kit;
mod a_failing_replica_ends_the_run;
mod a_trace_shows_the_step;
mod a_transformer_trains;
mod bad_input_is_named;
mod bits_are_the_same_everywhere;
mod builds_are_shared;
mod candle_models;
#[cfg(target_os = "linux")] // elsewhere nothing says so easily which threads a process has
mod cores_are_shared;
#[cfg(unix)] // Windows has no signal that one process could send another as Ctrl-C
mod ctrl_c_ends_in_order;
mod errors_say_what_to_do;
mod examples_say_what_they_should;
#[cfg(unix)]
mod fuzzed;
mod invariants;
mod k_replicas_are_one;
#[cfg(target_os = "linux")] // its limits are those of Linux
mod limits_end_in_a_line;
mod no_circles;
#[cfg(unix)]
mod nothing_is_lost;
mod nothing_is_wrong_in_silence;
mod one_file_is_scratch;
#[cfg(unix)]
mod ones_own_run_goes_on;
mod only_rounding_differs_from_pytorch;
mod own_project;
mod public_networks_train;
mod real_data;
mod runs_are_taken_up;
mod runs_leave_a_record;
#[cfg(target_os = "linux")] // macOS has no `setsid`
mod scripts_go_on;
mod seven_diffs;
#[cfg_attr(not(feature = "mpi"), path = "needs_mpi.rs")]
mod several_processes;
#[cfg(feature = "mpi")]
mod two_hosts;
#[cfg(unix)]
mod what_fuzzers_kept;
mod what_trains_in_candle;

/// Can be told to give no more: see `bad_input_is_named`.
#[global_allocator]
static MEMORY: cap::Cap<functional::Allocator> = cap::Cap::new(run::ALLOCATOR, usize::MAX);

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    if args.get(1).is_none_or(|arg| arg != "--as") {
        return run_tests();
    }
    a_failing_replica_ends_the_run::listen();
    let program_args = || args.iter().skip(2).cloned();
    match args.get(2).and_then(|program| program.to_str()) {
        Some("reader") => kit::to_its_end(bad_input_is_named::read_damaged_files),
        #[cfg(unix)]
        Some("corpus") => kit::to_its_end(what_fuzzers_kept::replay),
        #[cfg(unix)]
        Some("goes_on") => ones_own_run_goes_on::program::main(),
        Some("seven-diffs") => seven_diffs::run(&args[3..]),
        Some("scratch") => run::program(
            &scratch::program::BOOK,
            scratch::program::train,
            program_args(),
        ),
        _ => run::program(&concise::BOOK, concise::train, program_args()),
    }
}

fn run_tests() -> ExitCode {
    #[cfg(unix)]
    kit::programs_hear_signals().expect("they can be caught");
    let trials = [
        a_failing_replica_ends_the_run::trials(),
        a_trace_shows_the_step::trials(),
        a_transformer_trains::trials(),
        bad_input_is_named::trials(),
        bits_are_the_same_everywhere::trials(),
        builds_are_shared::trials(),
        candle_models::trials(),
        #[cfg(target_os = "linux")]
        cores_are_shared::trials(),
        #[cfg(unix)]
        ctrl_c_ends_in_order::trials(),
        errors_say_what_to_do::trials(),
        examples_say_what_they_should::trials(),
        invariants::trials(),
        k_replicas_are_one::trials(),
        #[cfg(target_os = "linux")]
        limits_end_in_a_line::trials(),
        no_circles::trials(),
        #[cfg(unix)]
        nothing_is_lost::trials(),
        nothing_is_wrong_in_silence::trials(),
        one_file_is_scratch::trials(),
        #[cfg(unix)]
        ones_own_run_goes_on::trials(),
        only_rounding_differs_from_pytorch::trials(),
        own_project::trials(),
        public_networks_train::trials(),
        real_data::trials(),
        runs_are_taken_up::trials(),
        runs_leave_a_record::trials(),
        #[cfg(target_os = "linux")]
        scripts_go_on::trials(),
        seven_diffs::trials(),
        several_processes::trials(),
        #[cfg(feature = "mpi")]
        two_hosts::trials(),
        #[cfg(unix)]
        what_fuzzers_kept::trials(),
        what_trains_in_candle::trials(),
    ];
    let arguments = libtest_mimic::Arguments::from_args();
    let conclusion = libtest_mimic::run(&arguments, trials.into_iter().flatten().collect());
    runs_are_taken_up::remove();
    conclusion.exit_code()
}
