//! Bad input is an error that names it: 1,000 damaged files and more than 200 bad command lines, without a panic
//! and without more memory than the input is worth. What is damaged, and how, is drawn from a fixed seed.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

mod damage;

use damage::{Damaged, Sample, bombs, damage, idx, weights};

use crate::kit::{command, times};

trials![damaged_files, bad_command_lines];

/// So many damaged files that cannot be read; what does no harm comes on top.
const FILES: usize = 1000;
/// What a reader may allocate beyond what it reads.
const SPARE: usize = 64 << 20;

/// In a process of its own, because a reader that wants too much memory is ended by the allocator.
fn damaged_files() -> Result<()> {
    let mut command = command("reader", "")?;
    // to write down where it was takes memory
    let child = command.env("RUST_BACKTRACE", "0").output()?;
    let says = String::from_utf8_lossy(&child.stdout);
    let last = says.lines().last().unwrap_or("nothing");
    let stderr = String::from_utf8_lossy(&child.stderr);
    let well = child.status.success() && last.ends_with("harmless");
    ensure!(well, "{last}\n{stderr}");
    Ok(())
}

/// `claims --as reader`: reads the damaged files one after another, and says what became of them.
pub fn read_damaged_files() -> ExitCode {
    match read_all() {
        Ok([refused, harmless]) => {
            println!("{refused} files refused, {harmless} harmless");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn read_all() -> Result<[usize; 2]> {
    let folder = tempfile::tempdir()?;
    let samples = [idx(folder.path())?, weights(folder.path())?].concat();
    let rng = &mut ChaCha8Rng::seed_from_u64(7);
    let mut counts = [0, 0];
    let mut read = |what: String, sample: &Sample, damaged: Damaged| -> Result<usize> {
        let what = format!("{what}, {}, {}", sample.path.display(), damaged.how);
        println!("{what}");
        let harmless = read_one(sample, &damaged).context(what)?;
        counts[usize::from(harmless)] += 1;
        Ok(counts[0])
    };
    for (sample, bomb) in bombs(&samples) {
        read("bomb".into(), sample, bomb)?;
    }
    for i in 0.. {
        // every other file has parameters
        let sample = match i % 2 {
            0 => &samples[i / 2 % (samples.len() - 1)],
            _ => samples.last().context("no sample")?,
        };
        let damaged = damage(sample, &sample.bytes, rng);
        if read(format!("damaged file {i}"), sample, damaged)? == times(FILES) {
            break;
        }
    }
    Ok(counts)
}

/// Whether the damage did no harm: then the file has to be read for what is in it.
fn read_one(sample: &Sample, damaged: &Damaged) -> Result<bool> {
    fs::write(&sample.path, &damaged.bytes)?;
    let limit = crate::MEMORY.allocated() + SPARE + 4 * damaged.bytes.len();
    let bar = |bytes| {
        let set = crate::MEMORY.set_limit(bytes);
        set.map_err(|()| anyhow!("{bytes} bytes are in use already"))
    };
    bar(limit)?;
    let read = catch_unwind(|| (sample.read)(&sample.path));
    bar(usize::MAX)?;
    fs::write(&sample.path, &sample.bytes)?;
    match read.map_err(|_| anyhow!("a panic"))? {
        Ok(values) => {
            ensure!(!damaged.fatal, "the damage is not noticed");
            ensure!(values == damaged.payload, "other values than the file has");
            Ok(true)
        }
        Err(error) => {
            let (error, name) = (format!("{error:#}"), sample.path.file_name());
            let name = name.and_then(OsStr::to_str).context("no name")?;
            ensure!(error.contains(name), "{error:?} does not name {name}");
            // where the reader asks whether it may have so much
            ensure!(!error.contains("out of memory"), "{error}");
            Ok(false)
        }
    }
}

/// A program, what is wrong in its command line, and the option and the value of which the error names one.
type Line = (&'static str, Vec<OsString>, [String; 2]);

fn bad_command_lines() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("file");
    fs::write(&file, "no tensors, no folder")?;
    let mut lines = Vec::new();
    for program in ["scratch", "concise"] {
        let help = command(program, "--help")?.output()?.stdout;
        lines.extend(lines_of(program, &String::from_utf8(help)?, &file));
    }
    ensure!(lines.len() >= 200, "{} command lines", lines.len());
    let run = |lines: &[Line]| -> Vec<String> {
        let wrong = lines
            .iter()
            .filter_map(|l| check_line(l, folder.path()).err());
        wrong.map(|error| format!("{error:#}")).collect()
    };
    let wrong: Vec<String> = thread::scope(|scope| {
        let shares = lines.chunks(lines.len().div_ceil(8));
        let threads: Vec<_> = shares.map(|share| scope.spawn(|| run(share))).collect();
        let wrong = threads.into_iter().map(|t| t.join().expect("no panic"));
        wrong.flatten().collect()
    });
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Every option that `--help` lists, with all that is wrong for it.
fn lines_of(program: &'static str, help: &str, file: &Path) -> Vec<Line> {
    // an option's explanation, which may begin with another one, stands further to the right
    let lines = help.lines().filter_map(|line| line.strip_prefix("      "));
    let options = lines.filter(|line| line.starts_with("--"));
    let line = |option: &str, args: Vec<OsString>| {
        let value = args.last().map(|arg| arg.to_string_lossy());
        let value = value.filter(|value| !value.is_empty());
        let words = [
            option.to_owned(),
            value.map_or(option.into(), |v| format!("{v}")),
        ];
        (program, args, words)
    };
    let mut bad = Vec::new();
    for help in options {
        let (option, value) = help.split_once(' ').unwrap_or((help, ""));
        bad.push(line(option, vec![format!("{option}x").into()]));
        if value.is_empty() {
            bad.push(line(option, vec![format!("{option}=yes").into()]));
            continue;
        }
        bad.push(line(option, vec![option.into()]));
        let values = wrong_for(option, value, file).into_iter();
        bad.extend(values.map(|value| line(option, vec![option.into(), value])));
    }
    bad
}

/// Values that an option cannot have; `file` is there, and holds nothing of use.
fn wrong_for(option: &str, value: &str, file: &Path) -> Vec<OsString> {
    let empty = PathBuf::new();
    let missing = file.with_file_name("no such \u{1f43f}");
    let inside = file.join("x");
    let dev = |name: &str| Path::new("/dev").join(name);
    let paths = match option {
        "--data" => [empty, missing, file.into(), dev("null")],
        "--init" => [empty, missing, file.into(), dev("zero")],
        "--trace" => [empty, inside, file.with_extension("svg"), dev("null/x")],
        _ => [inside, file.into(), dev("null"), dev("null/x")],
    };
    let words: &[&str] = match value {
        "<FILE>" | "<DIR>" | "<DIR|synthetic>" => return paths.map(OsString::from).to_vec(),
        "<NAME>" | "<KIND>" | "<P>" | "<WAY>" | "<PLACE>" | "<SHELL>" => {
            &["", "nothing", "AUTO", "-", "\u{202e}", "7"]
        }
        _ => &[
            "", "two", "-1", "1e400", "NaN", "inf", "0x1p", "½", "１", "1,", "1 2",
        ],
    };
    let words = words.iter().map(OsString::from);
    words.chain([not_utf8()]).collect()
}

#[cfg(unix)]
fn not_utf8() -> OsString {
    std::os::unix::ffi::OsStringExt::from_vec(b"\xff1".to_vec())
}

#[cfg(not(unix))]
fn not_utf8() -> OsString {
    "\u{fffd}1".into()
}

fn check_line((program, args, [option, value]): &Line, folder: &Path) -> Result<()> {
    const SMALL: [(&str, &str); 6] = [
        ("--batch-size", "8"),
        ("--device", "cpu"),
        ("--data", "synthetic"),
        ("--limit-train", "8"),
        ("--limit-test", "4"),
        ("--epochs", "1"),
    ];
    let mut command = command(program, "")?;
    for (small, n) in SMALL {
        if option != small {
            command.args([small, n]);
        }
    }
    let output = command.args(args).current_dir(folder).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let claps = stderr.contains("For more information");
    let good = output.status.code() == Some(2)
        && stderr.starts_with("error: ")
        && (claps || stderr.lines().count() == 1)
        && !stderr.contains("panicked")
        && (stderr.contains(option) || stderr.contains(value));
    ensure!(good, "{program} {args:?}: {}\n{stderr}", output.status);
    Ok(())
}
