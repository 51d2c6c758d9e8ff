//! Reads the command line. A resumed run reads that of the earlier run first.

use std::ffi::{OsStr, OsString};

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command};
use dataset::Data;

use crate::bad_input::BadInput;
use crate::options::{Book, ProgramOptions};

const STATUS: &str = "\
Exit status: 0 the run completed; 1 the run failed; 2 an option, the data or the initial \
parameters cannot be used; 130 Ctrl-C ended the run, after its results so far were printed and \
written.";

/// Reads the options. An error of clap ends the process with status 2, `--help` with status 0. The arguments of an
/// earlier run that goes on come first.
pub(crate) fn parse<O: ProgramOptions>(
    book: &Book,
    args: impl IntoIterator<Item = OsString>,
) -> anyhow::Result<O> {
    let mut command = command::<O>(book);
    let mut args: Vec<OsString> = args.into_iter().collect();
    let mut matches = command
        .clone()
        .try_get_matches_from(&args)
        .unwrap_or_else(|error| named(error, &mut command, &args).exit());
    let mut options = read::<O>(&matches);
    let earlier = options.earlier_arguments().map_err(BadInput::from)?;
    if !earlier.is_empty() {
        args.splice(1..1, earlier.into_iter().map(OsString::from));
        // an option that is repeated replaces the earlier one; settings are compared later
        let command = command.clone().args_override_self(true);
        matches = command.get_matches_from(&args);
        options = read(&matches);
    }
    options.run_mut().arguments = arguments(&command, &matches);
    Ok(options)
}

fn read<O: ProgramOptions>(matches: &ArgMatches) -> O {
    O::from_arg_matches(matches).unwrap_or_else(|error| error.exit())
}

/// The options that a resumed run needs again: not what becomes of its files, nor in which processes it is.
fn arguments(command: &Command, matches: &ArgMatches) -> Vec<String> {
    const OF_THIS_RUN: [&str; 5] = ["out", "resume", "overwrite", "trace", "backend"];
    let given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let mut words = Vec::new();
    for arg in command.get_arguments() {
        let id = arg.get_id().as_str();
        let name = arg.get_long().unwrap_or_default();
        if !given(id) || OF_THIS_RUN.contains(&id) {
            continue;
        }
        let mut values = matches.get_raw(id).into_iter().flatten();
        match values.next_back() {
            Some(value) if arg.get_action().takes_values() => {
                words.push(format!("--{name}={}", from_anywhere(name, value)));
            }
            _ => words.push(format!("--{name}")),
        }
    }
    words
}

/// The value of an option. A folder of `--data` becomes absolute, because `--resume` may start elsewhere.
fn from_anywhere(name: &str, value: &OsStr) -> String {
    let value = match Data::from(value) {
        Data::Dir(folder) if name == "data" => std::path::absolute(&folder).unwrap_or(folder),
        _ => value.into(),
    };
    value.to_string_lossy().into_owned()
}

/// clap does not say which argument is not UTF-8.
fn named(error: clap::Error, command: &mut Command, args: &[OsString]) -> clap::Error {
    let kind = error.kind();
    let broken = args.windows(2).find(|pair| pair[1].to_str().is_none());
    match broken {
        Some([before, arg]) if kind == ErrorKind::InvalidUtf8 => {
            command.error(kind, format!("{before:?} {arg:?}: this is not valid UTF-8"))
        }
        _ => error,
    }
}

fn command<O: Args>(book: &Book) -> Command {
    let command = Command::new(book.program)
        .version(env!("CARGO_PKG_VERSION"))
        .after_long_help(STATUS)
        .max_term_width(100);
    let batch_size = of_the_book(|k| (book.batch_size)(k) as f64);
    let lr = of_the_book(book.lr);
    O::augment_args(command)
        .mut_arg("batch_size", |arg| with_default(arg, &batch_size))
        .mut_arg("lr", |arg| with_default(arg, &lr))
        .about(book.section) // the last one counts: the options have one of their own
}

/// `256`; or `256·K`, if the book's value depends on the number of devices.
fn of_the_book(value: impl Fn(usize) -> f64) -> String {
    if value(1) == value(2) {
        value(1).to_string()
    } else {
        format!("{}·K", value(1))
    }
}

fn with_default(arg: Arg, default: &str) -> Arg {
    let help = arg.get_help().cloned().unwrap_or_default();
    arg.help(format!("{help} [default: {default}]"))
}
