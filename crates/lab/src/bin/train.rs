//! Trains with one answer to each of exercises 1 to 5: the files of LAB_1 to LAB_5, which `lab` sets when it compiles
//! this.

use std::io;
use std::process::ExitCode;

use clap::Parser;
use console::style;
use lab::training::{Functions, Settings, train};

/// The crate `scratch` as the answers see it: its network, and the functions of the other answers.
#[allow(unused_imports)] // an answer may use any of them
mod page {
    pub use super::exercise_1::get_params;
    pub use super::exercise_2::allreduce;
    pub use super::exercise_3::split_batch;
    pub use scratch::*;
}

/// The answer to an exercise.
macro_rules! exercise {
    ($module:ident, $file:literal) => {
        #[allow(unused, missing_docs)]
        mod $module {
            use super::page as scratch;
            include!(env!($file));
        }
    };
}

exercise!(exercise_1, "LAB_1");
exercise!(exercise_2, "LAB_2");
exercise!(exercise_3, "LAB_3");
exercise!(exercise_4, "LAB_4");
exercise!(exercise_5, "LAB_5");

#[global_allocator]
static MEMORY: data_parallel_functional::Allocator = run::ALLOCATOR;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    settings: Settings,
}

fn main() -> ExitCode {
    data_parallel_functional::threads::leave_the_cores_to_us(); // first, while this is the only thread
    let functions = Functions {
        get_params: exercise_1::get_params,
        train_batch: exercise_4::train_batch,
        accuracy: exercise_5::evaluate_accuracy_on_all,
    };
    let is_closed_pipe = |error: &anyhow::Error| {
        let io = error.downcast_ref::<io::Error>();
        io.is_some_and(|io| io.kind() == io::ErrorKind::BrokenPipe) // `… | head`
    };
    match train(&functions, &Cli::parse().settings, &mut io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{} {error:#}", style("error:").red().bold());
            ExitCode::FAILURE
        }
    }
}
