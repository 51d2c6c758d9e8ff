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
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::ensure;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use clap_complete::Shell;

use crate::checkpoint::Checkpoint;
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

/// A program of the book: reads its options, [`Options`] or more than those, in `args`, of which the
/// first is the program's own name, and runs `train` with them. Ctrl-C ends it in order, an error is one line on stderr,
/// and the exit status says what happened: 0 the end was reached, 1 something went wrong, 2 what
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
    match train(&options) {
        Ok(_) if crate::interrupted() => ExitCode::from(INTERRUPTED_STATUS),
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            let hint = out_of_memory(&format!("{error:#}"), options.as_ref(), book);
            failed(&error, &hint.unwrap_or_default())
        }
    }
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

/// What clap cannot read ends the process with status 2, `--help` and `--completions` with 0. With `--resume` the
/// command line of the run that is there comes first.
fn parse<O>(book: &Book, args: impl IntoIterator<Item = OsString>) -> anyhow::Result<O>
where
    O: Args + FromArgMatches + AsRef<Options> + AsMut<Options>,
{
    let mut command = command::<O>(book);
    let mut args: Vec<OsString> = args.into_iter().collect();
    let matches = command.clone().try_get_matches_from(&args);
    let mut matches = matches.unwrap_or_else(|error| named(error, &mut command, &args).exit());
    if let Some(shell) = matches.get_one::<Shell>("completions") {
        print_completions(command, *shell);
        std::process::exit(0);
    }
    if let Some(folder) = matches.get_one::<PathBuf>("resume") {
        let earlier = arguments_of(folder, book).map_err(BadInput::from)?;
        args.splice(1..1, earlier.into_iter().map(OsString::from));
        // what is said again counts, and is compared later
        let command = command.clone().args_override_self(true);
        matches = command.get_matches_from(&args);
    }
    let mut options = O::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    options.as_mut().arguments = arguments(&command, &matches);
    Ok(options)
}

/// The command line of the run in a folder, which is one of this program.
fn arguments_of(folder: &Path, book: &Book) -> anyhow::Result<Vec<String>> {
    let (run, _) = Checkpoint::load(folder)?;
    let network = run.header.settings.lines().next().unwrap_or_default();
    let network = network.trim_start_matches("network ");
    ensure!(
        network == book.network,
        "--resume {}: that is a run of {network}, and {} trains {}",
        folder.display(),
        book.program,
        book.network
    );
    Ok(run.header.arguments)
}

/// The command line again, as far as another run needs it that goes on with this one.
fn arguments(command: &Command, matches: &ArgMatches) -> Vec<String> {
    const OF_THIS_RUN: [&str; 4] = ["out", "resume", "overwrite", "trace"];
    let given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let args = command.get_arguments().filter(|arg| {
        let id = arg.get_id().as_str();
        given(id) && !OF_THIS_RUN.contains(&id)
    });
    let word = |arg: &Arg| {
        let name = arg.get_long()?;
        match arg.get_action().takes_values() {
            false => Some(format!("--{name}")),
            // what is no text is left out; then the run that goes on has to be told again
            true => {
                let value = matches.get_raw(arg.get_id().as_str())?.next_back()?;
                Some(format!("--{name}={}", value.to_str()?))
            }
        }
    };
    args.filter_map(word).collect()
}

/// clap does not say which argument is not UTF-8.
fn named(error: clap::Error, command: &mut Command, args: &[OsString]) -> clap::Error {
    let kind = error.kind();
    let broken = args.windows(2).find(|pair| pair[1].to_str().is_none());
    match broken {
        Some([before, arg]) if kind == ErrorKind::InvalidUtf8 => {
            command.error(kind, format!("{before:?} {arg:?}: this is not UTF-8"))
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
    // said last: the options have an `about` of their own
    O::augment_args(command)
        .about(book.section)
        .mut_arg("batch_size", |arg| with_default(arg, &batch_size))
        .mut_arg("lr", |arg| with_default(arg, &lr))
        .disable_help_flag(true)
        .disable_version_flag(true)
        .next_help_heading("This program")
        .args(about_the_program())
}

/// `256`, or where the book goes with the number of devices `256·K`.
fn of_the_book(value: impl Fn(usize) -> f64) -> String {
    match value(1) == value(2) {
        true => value(1).to_string(),
        false => format!("{}·K", value(1)),
    }
}

fn with_default(arg: Arg, default: &str) -> Arg {
    let help = arg.get_help().cloned().unwrap_or_default();
    arg.help(format!("{help} [default: {default}]"))
}

/// What is no option of a run; under a heading like all others, clap has it at the end.
fn about_the_program() -> [Arg; 3] {
    let shells = clap::value_parser!(Shell);
    [
        Arg::new("completions")
            .long("completions")
            .value_name("SHELL")
            .value_parser(shells)
            .help("Print what makes a shell complete these options"),
        Arg::new("help")
            .short('h')
            .long("help")
            .action(ArgAction::Help)
            .help("Print help, with -h in short"),
        Arg::new("version")
            .short('V')
            .long("version")
            .action(ArgAction::Version)
            .help("Print the version"),
    ]
}

fn print_completions(mut command: Command, shell: Shell) {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    let _ = std::io::stdout().write_all(&script);
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
