//! Exit status of a program.
//!
//! | status | when |
//! |---|---|
//! | 0 | the run went to its end |
//! | 1 | something went wrong in the run |
//! | 2 | an option, the data or the parameters that were named cannot be used |
//! | 130 | Ctrl-C ended the run; what was reached is written |
//!
//! **Every failure is named.** A panic becomes an error, an error gets its device as prefix, and the program prints
//! one line. `BadInput` marks errors that the user can mend: status 2. The library returns candle's `Result`, the
//! programs of the book use anyhow.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use devices::{catch_panic, quietly};

use crate::bad_input::BadInput;
use crate::command_line::parse;
use crate::interrupt::{self, INTERRUPTED_STATUS};
use crate::options::{Book, ProgramOptions};
use crate::out_of_memory;
use crate::run::Summary;
use crate::say::one_line;

/// A program of the book: reads its options in `args`, of which the first is the program's own name, and runs `train` with them. Ctrl-C ends it in order, an error or a panic is one line
/// on stderr, and the exit status says what happened: 0 the end was reached, 1 something went wrong, 2 what
/// was named cannot be used, 130 Ctrl-C.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     # const BOOK: run::Book = run::Book { program: "", section: "", network: "", batch_size: |k| k, lr: |_| 0.1 };
///     # fn train(_: &run::Options) -> anyhow::Result<run::Summary> { anyhow::bail!("") }
///     run::program(&BOOK, train, std::env::args_os())
/// }
/// ```
pub fn program<O: ProgramOptions>(
    book: &Book,
    train: impl FnOnce(&O) -> anyhow::Result<Summary>,
    args: impl IntoIterator<Item = OsString>,
) -> ExitCode {
    // first, while this is the only thread
    functional::threads::leave_the_cores_to_us();
    let caught = interrupt::catch();
    let options: O = match parse(book, args) {
        Ok(options) => options,
        Err(error) => return failed(&error, ""),
    };
    let epochs = options.run().epochs;
    let run = || caught.and_then(|()| train(&options));
    // with a backtrace, a panic is shown where it happens, and not in the line at the end alone
    let trained = if std::env::var_os("RUST_BACKTRACE").is_some_and(|wanted| wanted != "0") {
        catch_panic(run)
    } else {
        quietly(run)
    };
    match trained.unwrap_or_else(|panicked| Err(out_of_memory::with_devices(panicked))) {
        Ok(reached) if reached.test_acc.len() < epochs => ExitCode::from(INTERRUPTED_STATUS),
        Ok(_) => ExitCode::SUCCESS,
        Err(error) if error.is::<dataset::Interrupted>() => ExitCode::from(INTERRUPTED_STATUS),
        Err(error) => failed(&error, out_of_memory::hint(&format!("{error:#}"))),
    }
}

fn failed(error: &anyhow::Error, hint: &str) -> ExitCode {
    let line = one_line(format_args!("{error:#}{hint}"));
    let _ = writeln!(std::io::stderr(), "error: {line}");
    let bad = error.is::<BadInput>() || line.contains(out_of_memory::REFUSED);
    ExitCode::from(if bad { 2 } else { 1 })
}
