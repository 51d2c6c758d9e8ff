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

use crate::command_line::parse;
use crate::faults::{catch_panic, quietly};
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

/// A program of the book: reads its options, [`Options`] or more than those, in `args`, of which the
/// first is the program's own name, and runs `train` with them. Ctrl-C ends it in order, an error or a panic is one line
/// on stderr, and the exit status says what happened: 0 the end was reached, 1 something went wrong, 2 what
/// was named cannot be used, 130 Ctrl-C.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     # const BOOK: d2l::Book = d2l::Book { program: "", section: "", network: "", batch_size: |k| k, lr: |_| 0.1 };
///     # fn train(_: &d2l::Options) -> anyhow::Result<d2l::Summary> { anyhow::bail!("") }
///     d2l::program(&BOOK, train, std::env::args_os())
/// }
/// ```
pub fn program<O: Args + FromArgMatches + AsRef<Options> + AsMut<Options>>(
    book: &Book,
    train: impl FnOnce(&O) -> anyhow::Result<Summary>,
    args: impl IntoIterator<Item = OsString>,
) -> ExitCode {
    // first, while this is the only thread
    functional::threads::leave_the_cores_to_us();
    interrupt::catch();
    let options: O = match parse(book, args) {
        Ok(options) => options,
        Err(error) => return failed(&error, ""),
    };
    let run = || train(&options);
    let trained = match wants_backtraces() {
        true => catch_panic(run),
        false => quietly(run),
    };
    match trained.unwrap_or_else(|panicked| Err(panicked.into())) {
        Ok(_) if crate::interrupted() => ExitCode::from(INTERRUPTED_STATUS),
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            let hint = out_of_memory(&format!("{error:#}"), options.as_ref(), book);
            failed(&error, &hint.unwrap_or_default())
        }
    }
}

/// Then a panic is shown where it happens, as a backtrace is behind it, and not in the line at the end alone.
fn wants_backtraces() -> bool {
    std::env::var_os("RUST_BACKTRACE").is_some_and(|wanted| wanted != "0")
}

fn failed(error: &anyhow::Error, hint: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "error: {error:#}{hint}");
    ExitCode::from(if error.is::<BadInput>() { 2 } else { 1 })
}

/// The way out for who has too little memory on a GPU; nothing for other errors.
fn out_of_memory(error: &str, options: &Options, book: &Book) -> Option<String> {
    let ours_or_candles = ["out of memory on cuda", "CUDA_ERROR_OUT_OF_MEMORY"];
    if !ours_or_candles.iter().any(|words| error.contains(words)) {
        return None;
    }
    let batch_size = options.batch_size.or(options.gpus.map(book.batch_size));
    let minibatch = match batch_size {
        Some(n) => format!("a minibatch has {n} examples"),
        None => "a smaller minibatch may fit".to_owned(),
    };
    Some(format!("; {minibatch}, --batch-size makes it smaller"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_memory_has_a_way_out_and_nothing_else_has() {
        let book = Book {
            program: "demo",
            section: "",
            network: "",
            batch_size: |k| 256 * k,
            lr: |_| 0.1,
        };
        let two = Options {
            gpus: Some(2),
            ..Options::default()
        };
        let error = "replica cuda(0): out of memory on cuda(0): 49 MiB more were needed";
        let hint = out_of_memory(error, &two, &book).unwrap();
        assert_eq!(
            hint,
            "; a minibatch has 512 examples, --batch-size makes it smaller"
        );
        let error = "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")";
        let hint = out_of_memory(error, &Options::default(), &book).unwrap();
        assert!(hint.contains("--batch-size"), "{hint}");
        assert_eq!(out_of_memory("no such file", &two, &book), None);
    }
}
