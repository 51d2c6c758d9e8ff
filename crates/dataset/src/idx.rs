//! Finds, checks and reads the official IDX files, gzip-compressed or raw. Trusts no header; repairs nothing.
//! A file may hold 47 MB of data, as the largest published one, or 8 bytes for each of its own bytes. Images
//! compress to a half or a fifth; more data is meant to fill the memory. A user can decompress such a file first.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use flate2::read::MultiGzDecoder;
use md5::{Digest, Md5};

use crate::options::Name;
use crate::say::{quoted, say};
use crate::split::{COUNTS, PIXELS, SIDE, Split};

/// Training images and labels, test images and labels.
const FILES: [&str; 4] = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
];

/// Most names of a folder that are looked at, and that are shown.
const LISTED: usize = 1000;
const SHOWN: usize = 4;

/// Most bytes of data that a file may hold.
const LARGEST: u64 = (COUNTS[0] * PIXELS) as u64;
/// Most bytes of data that a larger file may hold for each byte of its own.
const RATIO: u64 = 8;

/// Content and format of one of the two kinds of files.
struct Kind {
    what: &'static str,
    magic: u32,
    /// Bytes of the header.
    header: u64,
    /// Bytes of one image or label.
    size: u64,
}

const IMAGES: Kind = Kind {
    what: "images",
    magic: 2051,
    header: 16,
    size: PIXELS as u64,
};
const LABELS: Kind = Kind {
    what: "labels",
    magic: 2049,
    header: 8,
    size: 1,
};

/// The MD5 sums of what the published files hold when they are unpacked, in the order of [`FILES`].
const SUMS: [(Name, [&str; 4]); 2] = [
    (
        Name::FashionMnist,
        [
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ],
    ),
    (
        Name::Mnist,
        [
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ],
    ),
];

/// One of the eight published files.
#[derive(Clone, Copy, PartialEq)]
struct Published {
    /// The dataset of which it is.
    name: Name,
    /// Its number in [`FILES`].
    file: usize,
}

/// The published file that holds data of this MD5 sum.
fn published(md5: &str) -> Option<Published> {
    SUMS.iter().find_map(|(name, sums)| {
        let file = sums.iter().position(|sum| *sum == md5)?;
        Some(Published { name: *name, file })
    })
}

/// The training and the test part of a folder, and how many of its files are the published ones. Data of one's own may
/// have these names, but not what is known as another file: then it is not what it is taken for.
pub(crate) fn read_dir(name: Name, dir: &Path) -> Result<(Split, Split, usize)> {
    let paths = find(dir)?;
    let mut contents = Vec::with_capacity(4);
    for (path, kind) in paths.iter().zip([IMAGES, LABELS, IMAGES, LABELS]) {
        contents.push(read_file(path, &kind)?);
    }
    let known: Vec<_> = contents.iter().map(|read| published(&read.md5)).collect();
    check_names(name, dir, &paths, &known)?;
    let as_published = known.iter().flatten().count();
    if as_published > 0 {
        for (i, read) in contents
            .iter()
            .enumerate()
            .filter(|(i, _)| known[*i].is_none())
        {
            let path = paths[i].display();
            let md5 = &read.md5;
            say(&format!(
                "warning: {path} is not {name}'s: its data has the MD5 sum {md5}, and not {}",
                sums(name)[i]
            ));
        }
    }
    let data: Vec<Vec<u8>> = contents.into_iter().map(|read| read.data).collect();
    let [train_x, train_y, test_x, test_y] = data.try_into().expect("four files");
    let train = part(&paths[..2], train_x, train_y)?;
    Ok((train, part(&paths[2..], test_x, test_y)?, as_published))
}

fn sums(name: Name) -> [&'static str; 4] {
    SUMS.iter()
        .find(|(of, _)| *of == name)
        .expect("each dataset is there")
        .1
}

/// An error if a file is known as another one than its name and the dataset say.
fn check_names(
    name: Name,
    dir: &Path,
    paths: &[PathBuf],
    known: &[Option<Published>],
) -> Result<()> {
    let mut others = Vec::new();
    for (file, path) in paths.iter().enumerate() {
        if let Some(is) = known[file].filter(|is| *is != Published { name, file }) {
            others.push(format!(
                "{} is {}'s {}",
                path.display(),
                is.name,
                FILES[is.file]
            ));
        }
    }
    if others.is_empty() {
        return Ok(());
    }
    let whole = SUMS.iter().map(|(name, _)| *name).find(|name| {
        let of_set =
            |(file, is): (usize, &Option<Published>)| *is == Some(Published { name: *name, file });
        known.iter().enumerate().all(of_set)
    });
    match whole {
        Some(set) => bail!(
            "these are the files of {set}, not of {name}; for {set} give --dataset {set} --data {}",
            quoted(dir)
        ),
        None => bail!("{}; put the files of {name} there", others.join(", ")),
    }
}

/// The paths of the four files; a raw file goes before its compressed twin.
fn find(dir: &Path) -> Result<Vec<PathBuf>> {
    let found = dir.metadata();
    let found =
        found.with_context(|| format!("{} is not a folder that can be read", dir.display()))?;
    ensure!(found.is_dir(), "{} is a file, not a folder", dir.display());
    let mut paths = Vec::new();
    let mut missing = Vec::new();
    for file in FILES {
        match with_or_without_gz(dir, file) {
            Some(path) => paths.push(path),
            None => missing.push(file),
        }
    }
    ensure!(
        missing.is_empty(),
        "folder {} lacks {} (with or without .gz); {}",
        dir.display(),
        missing.join(", "),
        there_instead(dir, &missing)
    );
    Ok(paths)
}

/// Path of a file, raw or compressed.
fn with_or_without_gz(dir: &Path, file: &str) -> Option<PathBuf> {
    // a link that leads nowhere is there: reading it says where it leads
    let is_there = |path: &PathBuf| path.symlink_metadata().is_ok_and(|found| !found.is_dir());
    [dir.join(file), dir.join(format!("{file}.gz"))]
        .into_iter()
        .find(is_there)
}

/// Names what a folder has in place of missing files: the same ones in a folder below, or under other names.
fn there_instead(dir: &Path, missing: &[&str]) -> String {
    let names = names_in(dir);
    for name in &names {
        for folder in [dir.join(name), dir.join(name).join("raw")] {
            let mut files = FILES.iter();
            if files.all(|file| with_or_without_gz(&folder, file).is_some()) {
                return format!("they are in {}: name that folder", folder.display());
            }
        }
    }
    let mut renamed = Vec::new();
    for file in missing {
        if let Some(name) = names.iter().find(|name| is_other_spelling(name, file)) {
            let gz = if is_gz(name) { ".gz" } else { "" };
            renamed.push(format!("{name} to {file}{gz}"));
        }
    }
    if !renamed.is_empty() {
        format!("rename {}", renamed.join(", "))
    } else if dir.read_dir().is_err() {
        "it cannot be listed".to_owned()
    } else if names.is_empty() {
        "it is empty".to_owned()
    } else if names.len() <= SHOWN {
        format!("it has {}", names.join(", "))
    } else {
        format!("it has {} and more", names[..SHOWN].join(", "))
    }
}

/// The names in a folder, of very many the first ones; none where it cannot be listed.
fn names_in(dir: &Path) -> Vec<String> {
    let entries = dir.read_dir().into_iter().flatten().flatten().take(LISTED);
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// True if a file has the published name but for capitals, and dots or underscores in place of hyphens.
fn is_other_spelling(name: &str, published: &str) -> bool {
    if name == published {
        return false; // a folder
    }
    let name = name.to_lowercase().replace(['.', '_'], "-");
    name.strip_suffix("-gz").unwrap_or(&name) == published
}

fn is_gz(name: &str) -> bool {
    name.to_lowercase().ends_with(".gz")
}

/// Data of a file behind its header, and the MD5 sum of all that the file holds.
struct Contents {
    data: Vec<u8>,
    md5: String,
}

fn read_file(path: &Path, kind: &Kind) -> Result<Contents> {
    let shown = path.display();
    let cannot_read = || format!("cannot read {shown}");
    let found = path.metadata().with_context(cannot_read)?;
    ensure!(found.is_file(), "{shown} is not a file"); // a FIFO would be waited for
    let file = File::open(path).with_context(cannot_read)?;
    let len = found.len();
    let read = if path.extension().is_some_and(|ext| ext == "gz") {
        let mut summed = Summed(MultiGzDecoder::new(file), Md5::new());
        payload(&mut summed, len, kind, true).map(|data| (data, summed.1))
    } else {
        let mut summed = Summed(file, Md5::new());
        payload(&mut summed, len, kind, false).map(|data| (data, summed.1))
    };
    let (data, md5) = read.with_context(cannot_read)?;
    let md5 = hex(&md5.finalize());
    Ok(Contents { data, md5 })
}

/// A reader, and the sum of what was read of it.
struct Summed<R>(R, Md5);

impl<R: Read> Read for Summed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let n = self.0.read(buffer)?;
        self.1.update(&buffer[..n]);
        Ok(n)
    }
}

/// A sum as it is written.
pub(crate) fn hex(sum: &[u8]) -> String {
    sum.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads the data after the header, and checks it against the header; `len` is the length of the file as it is. The
/// length is compared first: a file that cannot be right takes no memory.
fn payload(mut reader: impl Read, len: u64, kind: &Kind, packed: bool) -> Result<Vec<u8>> {
    let count = count(&take(&mut reader, kind.header)?, kind)?;
    let promise = format!("the header declares {count} {}", kind.what);
    ensure!(count > 0, "{promise}; expected at least 1");
    let expected = count
        .checked_mul(kind.size)
        .context("the header declares too many bytes")?;
    let too_much = format!("the file has more than {expected} bytes of data; {promise}");
    let ends_after =
        |found| format!("the file ends after {found} of {expected} bytes of data; {promise}");
    if packed {
        // compressed data is hardly longer than the data
        ensure!(len <= expected + expected / 8 + (1 << 16), too_much);
    } else {
        ensure!(len >= kind.header + expected, ends_after(len - kind.header));
        ensure!(len == kind.header + expected, too_much);
    }
    let allowed = LARGEST.max(RATIO * len);
    let bytes = take(&mut reader, expected.min(allowed + 1))?;
    let found = bytes.len() as u64;
    ensure!(
        found <= allowed,
        "more than {allowed} bytes of data, over {RATIO} times the {len} bytes of the file; \
         {promise}; decompress the file yourself if that is right"
    );
    ensure!(found == expected, ends_after(found));
    // This last read also makes a gzip decoder check its checksum.
    let more = take(&mut reader, 1)?;
    ensure!(more.is_empty(), too_much);
    Ok(bytes)
}

/// Number of images or labels that a header promises.
fn count(header: &[u8], kind: &Kind) -> Result<u64> {
    let number = |four: &[u8]| u32::from_be_bytes(four.try_into().expect("four bytes"));
    let numbers: Vec<u32> = header.chunks_exact(4).map(number).collect();
    let found = header.len() as u64;
    let expected = kind.header;
    match numbers[..] {
        [magic, ..] if magic != kind.magic => Err(other_magic(magic, kind)),
        _ if found < expected => {
            bail!("the file ends inside its header, after {found} of {expected} bytes")
        }
        [_, _, rows, cols] if [rows, cols] != [SIDE as u32; 2] => {
            bail!("the images are {rows}×{cols}; expected 28×28")
        }
        _ => Ok(u64::from(numbers[1])),
    }
}

/// Tells files of the wrong kind apart.
fn other_magic(magic: u32, kind: &Kind) -> Error {
    let this_is = match magic {
        2049 => "this is a label file",
        2051 => "this is an image file",
        _ if magic >> 16 == 0x1f8b => {
            return anyhow!("this file is gzip-compressed; give it a name that ends in .gz");
        }
        _ => "this is not an IDX file of bytes",
    };
    let what = kind.what;
    let expected = kind.magic;
    anyhow!("{this_is} (magic number {magic}); expected {what} ({expected})")
}

/// At most `limit` bytes: memory grows with what is there, not with what a header promises, and never beyond it.
fn take(reader: &mut impl Read, limit: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let found = bytes.len() as u64;
        // as much again as there is
        let more = found.max(1 << 16).min(limit - found);
        bytes.reserve_exact(usize::try_from(more)?);
        let came = reader
            .take(more)
            .read_to_end(&mut bytes)
            .context("truncated or corrupt gzip data")? as u64;
        if came < more || found + came == limit {
            return Ok(bytes);
        }
    }
}

/// Images with their labels, if there is one for each.
fn part(paths: &[PathBuf], images: Vec<u8>, labels: Vec<u8>) -> Result<Split> {
    let n = images.len() / PIXELS;
    let m = labels.len();
    let x = paths[0].display();
    let y = paths[1].display();
    ensure!(n == m, "{x} has {n} images, {y} has {m} labels");
    Split::new(images, labels).with_context(|| format!("the labels in {y} are invalid"))
}

#[cfg(test)]
#[path = "../tests/fixtures/idx.rs"]
mod fixtures;

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::fixtures::{gzip, images, write_idx};
    use super::*;

    /// A folder with 12 training and 3 test images, raw.
    fn folder() -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        write_idx(dir.path(), 12, 3, "").unwrap();
        dir
    }

    fn write(dir: &TempDir, file: &str, bytes: &[u8]) {
        std::fs::write(dir.path().join(file), bytes).unwrap();
    }

    fn assert_says(error: &Error, expected: &str) {
        let message = format!("{error:#}");
        assert!(message.contains(expected), "{message:?}: no {expected:?}");
    }

    #[test]
    fn raw_and_compressed_files_give_the_same_bytes() {
        let raw = folder();
        let (train, test, as_published) = read_dir(Name::Mnist, raw.path()).unwrap();
        assert_eq!((train.len(), test.len(), as_published), (12, 3, 0));
        assert_eq!(train.image(11), &images(12)[16 + 11 * PIXELS..]);
        assert_eq!(train.label(11), 1);
        let compressed = tempfile::tempdir().unwrap();
        write_idx(compressed.path(), 12, 3, ".gz").unwrap();
        let read = read_dir(Name::Mnist, compressed.path()).unwrap();
        assert_eq!(read, (train, test, 0));
    }

    #[test]
    fn a_raw_file_goes_before_its_compressed_twin() {
        let dir = folder();
        write(&dir, "train-images-idx3-ubyte.gz", b"not even gzip");
        assert!(read_dir(Name::Mnist, dir.path()).is_ok());
    }

    #[test]
    fn a_missing_folder_is_named() {
        let dir = folder();
        let missing = read_dir(Name::Mnist, &dir.path().join("nowhere")).unwrap_err();
        assert_says(&missing, "nowhere is not a folder");
    }

    /// `bad_input_is_named`, a claim, has what else may be wrong with a file.
    #[test]
    fn images_and_labels_are_as_many() {
        let dir = folder();
        write(&dir, FILES[0], &images(11));
        let error = read_dir(Name::Mnist, dir.path()).unwrap_err();
        assert_says(&error, "train-images-idx3-ubyte has 11 images, ");
        assert_says(&error, "train-labels-idx1-ubyte has 12 labels");
    }

    /// A good file of `n` images, all black.
    fn black(n: u32) -> Vec<u8> {
        let mut file = images(0);
        file[4..8].copy_from_slice(&n.to_be_bytes());
        file.resize(16 + n as usize * PIXELS, 0);
        file
    }

    /// What a compressed file of images holds.
    fn unpacked(packed: &[u8]) -> Result<Vec<u8>> {
        let (decoder, len) = (MultiGzDecoder::new(packed), packed.len() as u64);
        payload(decoder, len, &IMAGES, true)
    }

    #[test]
    fn a_small_file_that_unpacks_to_much_is_an_error() {
        let published = COUNTS[0] as u32;
        let read = |file: &[u8]| unpacked(&gzip(file).unwrap());
        assert_eq!(read(&black(published)).unwrap().len() as u64, LARGEST);
        let file = black(published + 1);
        let error = read(&file).unwrap_err();
        let says = "more than 47040000 bytes of data, over 8 times the ";
        assert_says(&error, says);
        let advice =
            "; the header declares 60001 images; decompress the file yourself if that is right";
        assert_says(&error, advice);
        let raw = payload(&file[..], file.len() as u64, &IMAGES, false);
        assert_eq!(raw.unwrap(), file[16..]);
        let fewer = &file[..file.len() - PIXELS];
        let says = "the file ends after 47040000 of 47040784 bytes of data; ";
        assert_says(&read(fewer).unwrap_err(), says);
    }

    #[test]
    fn a_large_file_may_hold_more_than_the_published_ones() {
        let n = COUNTS[0] as u32 + 10_000;
        let mut file = black(n);
        let noise = |i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8;
        // one pixel in four, as a digit has them
        (0..n * 196).for_each(|i| file[16 + 4 * i as usize] = noise(i));
        assert!(
            unpacked(&gzip(&file).unwrap()).unwrap() == file[16..],
            "other bytes"
        );
    }
}
