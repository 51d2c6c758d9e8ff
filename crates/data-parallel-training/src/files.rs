//! Files that are read with care and written as a whole.

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Opens a file to be read.
///
/// # Errors
/// If it cannot be opened, or is no regular file: opening a FIFO would wait, and a device has no end.
pub fn open(path: &Path) -> io::Result<File> {
    check_is_file(&fs::metadata(path)?)?;
    File::open(path)
}

/// An error that names the kind of what is there, if it is no regular file.
///
/// # Errors
/// As above.
pub fn check_is_file(found: &Metadata) -> io::Result<()> {
    let kind = found.file_type();
    #[cfg(unix)]
    let is_fifo = std::os::unix::fs::FileTypeExt::is_fifo(&kind);
    #[cfg(not(unix))]
    let is_fifo = false;
    let what = if kind.is_file() {
        return Ok(());
    } else if kind.is_dir() {
        "a folder"
    } else if is_fifo {
        "a FIFO"
    } else {
        "a device or a socket"
    };
    Err(io::Error::other(format!("it is {what}, not a file")))
}

/// Writes a file: it appears whole or not at all, whatever ends the program, also where several programs write it. The
/// disk has it when this returns, as far as the file system can be asked. A file that is a mount point cannot be replaced:
/// it is written in place, and is not whole if that is interrupted.
///
/// # Errors
/// If the file cannot be written. Then a file that had the name before is unchanged.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    put(path, |partial| {
        let mut file = File::create(partial)?;
        file.write_all(bytes)?;
        flush(&file)
    })?;
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    flush_folder(folder.unwrap_or(Path::new(".")))
}

/// Waits until the disk has a file. Some file systems cannot be asked: then they have done what they do.
///
/// # Errors
/// If the disk fails, or is full.
pub(crate) fn flush(file: &File) -> io::Result<()> {
    match file.sync_all() {
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::InvalidInput | ErrorKind::Unsupported
            ) =>
        {
            Ok(())
        }
        flushed => flushed,
    }
}

/// Like [`write()`], without waiting for the disk.
///
/// # Errors
/// As there.
pub fn write_unflushed(path: &Path, bytes: &[u8]) -> io::Result<()> {
    put(path, |partial| fs::write(partial, bytes))
}

/// Waits until the disk has the names of the files of a folder. Some systems cannot do this: then it does nothing.
///
/// # Errors
/// If the disk fails.
pub fn flush_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder) {
        Ok(folder) if cfg!(unix) => flush(&folder),
        _ => Ok(()),
    }
}

/// Writes a file under a name of its own, and gives it its name.
fn put(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    static WRITTEN: AtomicUsize = AtomicUsize::new(0);
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::other("its name is empty"))?;
    // no other thread or process has this name
    let process = std::process::id();
    let number = WRITTEN.fetch_add(1, Relaxed);
    let mut partial = OsString::from(".");
    partial.push(name);
    partial.push(format!(".{process}-{number}.partial"));
    let partial = path.with_file_name(partial);
    write(&partial)
        .and_then(|()| replace(&partial, path))
        .inspect_err(|_| drop(fs::remove_file(&partial)))
}

fn replace(partial: &Path, path: &Path) -> io::Result<()> {
    match fs::rename(partial, path) {
        // a mount point, such as a file that a container was given
        Err(error) if error.kind() == ErrorKind::ResourceBusy => {
            fs::copy(partial, path)?;
            flush(&File::open(path)?)?;
            let _ = fs::remove_file(partial);
            Ok(())
        }
        renamed => renamed,
    }
}

/// True if a file of this name is an unfinished one of `name`.
pub fn is_partial(found: &str, name: &str) -> bool {
    let number = found
        .strip_prefix('.')
        .and_then(|rest| rest.strip_prefix(name))
        .and_then(|rest| rest.strip_suffix(".partial"));
    number.is_some_and(|number| number.is_empty() || number.starts_with('.'))
}

/// Text of a file between quotation marks, its first 80 characters at most: a file may contain anything.
pub fn quote(text: &str) -> String {
    match text.char_indices().nth(80) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?} …", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each writes the same letter only; a reader finds one letter, and as many as were written.
    #[test]
    fn files_of_several_writers_are_never_mixed() -> io::Result<()> {
        let place = tempfile::tempdir()?;
        let path = place.path().join("best.safetensors");
        write(&path, &[b'a'; 5000])?;
        std::thread::scope(|scope| {
            let writers = (b'a'..=b'd').map(|letter| {
                let path = &path;
                scope.spawn(move || {
                    (0..50).try_for_each(|i| match i % 2 {
                        0 => write(path, &[letter; 5000]),
                        _ => write_unflushed(path, &[letter; 5000]),
                    })
                })
            });
            let writers: Vec<_> = writers.collect();
            for _ in 0..200 {
                let found = fs::read(&path)?;
                assert!(found.len() == 5000 && found.iter().all(|byte| *byte == found[0]));
            }
            writers
                .into_iter()
                .try_for_each(|writer| writer.join().expect("no panic"))
        })?;
        assert_eq!(
            fs::read_dir(place.path())?.count(),
            1,
            "a partial file is left"
        );
        Ok(())
    }

    /// Linux's own file systems answer as disks do that cannot flush.
    #[cfg(target_os = "linux")]
    #[test]
    fn what_cannot_be_flushed_is_written_all_the_same() -> io::Result<()> {
        let file = File::open("/proc/self/comm")?;
        assert!(file.sync_all().is_err(), "it can be flushed");
        flush(&file)?;
        flush_folder(Path::new("/proc/self"))
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_name_may_be_any() -> io::Result<()> {
        use std::os::unix::ffi::OsStrExt;

        let place = tempfile::tempdir()?;
        let latin_1 = std::ffi::OsStr::from_bytes(b"caf\xe9 \"1\".safetensors");
        let path = place.path().join(latin_1);
        write(&path, b"parameters")?;
        assert_eq!(fs::read(path)?, b"parameters");
        Ok(())
    }

    #[test]
    fn unfinished_files_are_known_by_their_name() {
        assert!(is_partial(
            ".best.safetensors.17-3.partial",
            "best.safetensors"
        ));
        assert!(is_partial(".best.safetensors.partial", "best.safetensors"));
        assert!(!is_partial("best.safetensors", "best.safetensors"));
        assert!(!is_partial(
            ".best.safetensors.old.17-3",
            "best.safetensors"
        ));
        assert!(!is_partial(".better.17-3.partial", "best"));
    }
}
