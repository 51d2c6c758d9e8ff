//! What a program says to the shell.
//!
//! | status | when |
//! |---|---|
//! | 0 | the run went to its end |
//! | 1 | something went wrong in the run |
//! | 2 | an option, the data or the parameters that were named cannot be used |
//! | 130 | Ctrl-C ended the run; what was reached is written |

use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::process::ExitCode;

use clap::{Args, FromArgMatches};

use crate::{Book, Options, Summary, interrupt};

pub(crate) const INTERRUPTED_STATUS: u8 = 130;

/// An error that the user can mend: what was named on the command line cannot be used.
#[derive(Debug)]
pub struct BadInput(anyhow::Error);

impl BadInput {
    /// Marks `error` as one of what was named.
    pub fn from(error: impl Into<anyhow::Error>) -> Self {
        Self(error.into())
    }
}

impl fmt::Display for BadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.0)
    }
}

impl std::error::Error for BadInput {}

const STATUS: &str = "\
Exit status: 0 the run went to its end; 1 something went wrong in it; 2 an option, the data or \
the parameters that were named cannot be used; 130 Ctrl-C ended it, and what was reached is \
reported and written.";

/// A program of the book: reads the options in `args`, of which the first is the program's own
/// name, and runs `train` with them. Ctrl-C ends it in order, an error is one line on stderr,
/// and the exit status says what happened: 0 the end was reached, 1 something went wrong, 2 what
/// was named cannot be used, 130 Ctrl-C.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     # const BOOK: d2l::Book = d2l::Book { program: "", section: "", network: "", batch_size: |k| k, lr: |_| 0.1, plain_sgd: true };
///     # fn train(_: &d2l::Options) -> anyhow::Result<d2l::Summary> { anyhow::bail!("") }
///     d2l::program(&BOOK, train, std::env::args_os())
/// }
/// ```
pub fn program(
    book: &Book,
    train: impl FnOnce(&Options) -> anyhow::Result<Summary>,
    args: impl IntoIterator<Item = OsString>,
) -> ExitCode {
    // first, while this is the only thread
    functional::threads::leave_the_cores_to_us();
    interrupt::catch();
    match train(&parse(book, args)) {
        Ok(_) if crate::interrupted() => ExitCode::from(INTERRUPTED_STATUS),
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::from(if error.is::<BadInput>() { 2 } else { 1 })
        }
    }
}

/// What clap cannot read ends the process with status 2, and so does `--help` with 0.
fn parse(book: &Book, args: impl IntoIterator<Item = OsString>) -> Options {
    let command = clap::Command::new(book.program)
        .version(env!("CARGO_PKG_VERSION"))
        .after_help(STATUS)
        .max_term_width(100);
    // said last: the options have an `about` of their own
    let command = Options::augment_args(command).about(book.section);
    let matches = command.get_matches_from(args);
    Options::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}
