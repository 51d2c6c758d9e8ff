//! Bad input is an error that names it: damaged files and more than 200 bad command lines, without a panic and without
//! more memory than the input is worth. The fuzzers of `fuzz/` look for more.

use std::ffi::OsString;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, anyhow, bail, ensure};
use candle_core::Tensor;

use crate::kit::{comes_to_its_end, command, gzip, has, write_idx};

trials![damaged_files, bad_command_lines];

/// What a reader may allocate beyond what it reads.
const SPARE: usize = 64 << 20;

/// In a process of its own, because a reader that wants too much memory is ended by the allocator.
fn damaged_files() -> Result<()> {
    comes_to_its_end("reader")
}

/// What is wrong with a file.
#[derive(Debug)]
enum Damage {
    /// So many bytes are left.
    Cut(usize),
    /// Other bytes from here on; below 0, counted from the end.
    At(isize, &'static [u8]),
    Longer,
    /// 306 MB of zeros, compressed, and so many images or labels in the header.
    Bomb(u32),
    /// A header of safetensors, with its length.
    Header(&'static str),
}

const IMAGES: &str = "train-images-idx3-ubyte";
const LABELS: &str = "train-labels-idx1-ubyte";
const PACKED: &str = "train-images-idx3-ubyte.gz";
const PACKED_LABELS: &str = "train-labels-idx1-ubyte.gz";
const LENET: &str = "lenet.safetensors";
const FILES: [&str; 5] = [IMAGES, LABELS, PACKED, PACKED_LABELS, LENET];

const TWICE: &str = "{\"W1\":{\"dtype\":\"U8\",\"shape\":[100],\"data_offsets\":[0,100]},\
                     \"W1\":{\"dtype\":\"U8\",\"shape\":[100],\"data_offsets\":[0,100]}}";
const HUGE: &str = "{\"W1\":{\"dtype\":\"U8\",\"shape\":[1152921504606846976],\
                    \"data_offsets\":[0,1152921504606846976]}}";

/// A file of 12 images or labels or of LeNet's parameters: for each damage what the error says beside its name.
fn damages_of(file: &str) -> &'static [(Damage, &'static str)] {
    use Damage::{At, Bomb, Cut, Header, Longer};
    match file {
        IMAGES => &[
            (Cut(0), "inside its header, after 0 of 16 bytes"),
            (Cut(15), "inside its header, after 15 of 16 bytes"),
            (
                Cut(9423),
                "ends after 9407 of 9408 bytes of data; the header declares 12 images",
            ),
            (Longer, "more than 9408 bytes of data"),
            (At(0, b"\x89PNG\r\n"), "not an IDX file of bytes"),
            (At(0, b"\x1f\x8b\x08"), "give it a name that ends in .gz"),
            (
                At(3, &[1]),
                "this is a label file (magic number 2049); expected images (2051)",
            ),
            (At(4, &[0; 4]), "declares 0 images; expected at least 1"),
            (At(4, &[255; 4]), "9408 of 3367254359280 bytes of data"),
            (
                At(7, &[11]),
                "more than 8624 bytes of data; the header declares 11 images",
            ),
            (At(11, &[27]), "the images are 27×28; expected 28×28"),
            (At(8, &[255; 8]), "4294967295×4294967295; expected 28×28"),
        ],
        LABELS => &[
            (Cut(7), "inside its header, after 7 of 8 bytes"),
            (Cut(19), "ends after 11 of 12 bytes of data"),
            (Longer, "more than 12 bytes of data"),
            (At(3, &[3]), "this is an image file"),
            (At(-1, &[10]), "label 10"),
        ],
        PACKED => &[
            (Cut(100), "corrupt"),
            (Longer, "gzip"),
            (At(0, b"PK\x03\x04"), "invalid gzip header"),
            (At(40, &[0; 16]), "corrupt"),
            (At(-8, &[0; 4]), "checksum"),
            (Bomb(390_000), "the header declares 390000 images"),
        ],
        PACKED_LABELS => &[
            (Cut(10), "truncated or corrupt gzip data"),
            (Bomb(305_760_000), "the header declares 305760000 labels"),
        ],
        LENET => &[
            (Cut(0), "no safetensors file, or it is damaged"),
            (Cut(7), "no safetensors file, or it is damaged"),
            (Cut(1000), "the file has 1000 bytes, its header declares"),
            (Longer, "bytes, its header declares"),
            (At(0, &[255; 8]), "no safetensors file, or it is damaged"),
            (At(0, b"PK\x03\x04\0\0\0\0\x08"), "PyTorch's own format"),
            (
                At(0, b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9"),
                "PyTorch's own format",
            ),
            (
                At(0, b"\x1f\x8b\x08\0\0\0\0\0\0"),
                "this file is gzip-compressed",
            ),
            (Header(TWICE), "2 tensors with 1 different names"),
            (At(8, b"["), "its header is damaged"),
            (At(-4, &[0, 0, 192, 127]), "contains NaN or infinity"),
            (Header("{}"), "bytes, its header declares 10"),
            (Header(HUGE), "its header declares 11529215"),
            (Header("{\"W1\":7}"), "its header is damaged"),
        ],
        _ => unreachable!("{file} is none of the files"),
    }
}

/// `claims --as reader`: reads the damaged files one after another, and says which one is next.
pub fn read_damaged_files() -> Result<()> {
    for file in FILES {
        for (damage, words) in damages_of(file) {
            let folder = tempfile::tempdir()?;
            let what = format!("{file}: {damage:?}");
            println!("{what}");
            let path = folder.path().join(file);
            let good = good(folder.path(), file)?;
            fs::write(&path, damaged(&good, damage)?)?;
            is_refused(&path, words).context(what)?;
        }
    }
    Ok(())
}

/// The bytes of a file without damage; the others of its folder are written.
fn good(folder: &Path, file: &str) -> Result<Vec<u8>> {
    match file {
        LENET => run::weights::save(&folder.join(file), &lenet()?)?,
        PACKED | PACKED_LABELS => write_idx(folder, 12, 3, ".gz")?,
        _ => write_idx(folder, 12, 3, "")?,
    }
    Ok(fs::read(folder.join(file))?)
}

fn lenet() -> Result<Vec<(String, Tensor)>> {
    let names = ["W1", "b1", "W2", "b2", "W3", "b3", "W4", "b4"].map(str::to_owned);
    Ok(names.into_iter().zip(scratch::init_params(0)?).collect())
}

fn damaged(good: &[u8], damage: &Damage) -> Result<Vec<u8>> {
    // gzip allows for the same ten megabytes thirty times
    const PIECE: usize = 13_000 * 784;
    let mut bytes = good.to_vec();
    match damage {
        Damage::Cut(len) => bytes.truncate(*len),
        Damage::At(at, other) => {
            let from_end = bytes.len().wrapping_add_signed(*at);
            let at = if *at < 0 { from_end } else { at.unsigned_abs() };
            bytes[at..at + other.len()].copy_from_slice(other);
        }
        Damage::Longer => bytes.push(7),
        Damage::Bomb(count) => {
            let (magic, size) = match PIECE * 30 / *count as usize {
                784 => (2051u32, &[0, 0, 0, 28, 0, 0, 0, 28][..]),
                _ => (2049, &[][..]),
            };
            let head = [&magic.to_be_bytes(), &count.to_be_bytes()[..], size].concat();
            bytes = [gzip(&head)?, gzip(&vec![0; PIECE])?.repeat(30)].concat();
        }
        Damage::Header(header) => {
            let len = header.len() as u64;
            bytes = [&len.to_le_bytes(), header.as_bytes(), &[0; 100]].concat();
        }
    }
    Ok(bytes)
}

/// The reader refuses a file, with its name and all of `words`, and takes no memory for what is not there.
fn is_refused(path: &Path, words: &str) -> Result<()> {
    let lenet = lenet()?;
    let read = || match path.ends_with(LENET) {
        true => Ok(run::weights::load(path, &lenet).map(drop)?),
        false => {
            let data = path.parent().map(dataset::Data::from);
            let options = dataset::Options {
                data,
                ..dataset::Options::default()
            };
            dataset::load(&options).map(|_| ())
        }
    };
    let bar = |bytes| {
        let set = crate::MEMORY.set_limit(bytes);
        set.map_err(|()| anyhow!("{bytes} bytes are in use already"))
    };
    let len = fs::metadata(path)?.len() as usize;
    bar(crate::MEMORY.allocated() + SPARE + 4 * len)?;
    let read = catch_unwind(std::panic::AssertUnwindSafe(read));
    bar(usize::MAX)?;
    let Err(error) = read.map_err(|_| anyhow!("a panic"))? else {
        bail!("the damage is not noticed");
    };
    let error = format!("{error:#}");
    has(&error, &path.display().to_string())?;
    has(&error, words)?;
    // where the reader asks whether it may have so much
    ensure!(!error.contains("out of memory"), "{error}");
    Ok(())
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
