//! Files that are read with care and written as a whole.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A file that is being written is changed more often than this.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// Linux follows the same number of links.
const MOST_LINKS: usize = 40;
/// Attempts at a rename while another program has the file open, a second in all.
const ATTEMPTS: usize = if cfg!(windows) { 200 } else { 1 };
const PAUSE: Duration = Duration::from_millis(5);

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
/// Symbolic links are followed. The new file has the permissions of the one that it replaces. A program that is killed here
/// leaves a hidden file, `.NAME.….partial`; the next call for this name removes it when it is an hour old.
///
/// # Errors
/// If the file cannot be written. Then a file that had the name before is unchanged.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = end_of_links(path)?;
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    remove_left(folder, &path);
    put(&path, |file| {
        file.write_all(bytes)?;
        flush(file)
    })?;
    flush_folder(folder)
}

/// The path to which symbolic links lead, where there may be no file yet.
///
/// # Errors
/// If they lead to no end.
pub fn end_of_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let Ok(target) = fs::read_link(&path) else {
            return Ok(path);
        };
        path = path.with_file_name("").join(target);
    }
    Err(io::Error::other("its symbolic links lead to no end"))
}

/// Waits until the disk has a file. Some file systems cannot be asked: then they have done what they do.
///
/// # Errors
/// If the disk fails, or is full.
pub(crate) fn flush(file: &File) -> io::Result<()> {
    match file.sync_all() {
        Err(error) if cannot_be_asked(&error, cfg!(target_vendor = "apple")) => Ok(()),
        flushed => flushed,
    }
}

/// True if a file system has answered that it cannot flush. On Apple's systems `sync_all` asks with `F_FULLFSYNC`: SMB
/// shares answer `ENOTSUP`, ZFS `ENOTTY`, and WebDAV `EINVAL`. std has no kind for the first two.
fn cannot_be_asked(error: &io::Error, is_apple: bool) -> bool {
    const ENOTTY: i32 = 25;
    const ENOTSUP: i32 = 45;

    let kinds = [ErrorKind::InvalidInput, ErrorKind::Unsupported];
    let numbers = [ENOTTY, ENOTSUP].map(Some);
    kinds.contains(&error.kind()) || is_apple && numbers.contains(&error.raw_os_error())
}

/// Like [`write()`], without waiting for the disk, and without removing anything.
///
/// # Errors
/// As there.
pub fn write_unflushed(path: &Path, bytes: &[u8]) -> io::Result<()> {
    put(&end_of_links(path)?, |file| file.write_all(bytes))
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

/// Writes a file under a name of its own, and gives it its name. It is locked until it is whole.
fn put(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::other("its name is empty"))?;
    let mut partial = OsString::from(".");
    partial.push(name);
    partial.push(format!(".{}.partial", random_name()));
    let partial = path.with_file_name(partial);
    let mut file = File::create_new(&partial)?;
    let _ = file.try_lock(); // a file system may have no locks
    let written = keep_permissions(&file, path).and_then(|()| write(&mut file));
    drop(file);
    written
        .and_then(|()| replace(&partial, path))
        .inspect_err(|_| drop(fs::remove_file(&partial)))
}

/// A name that no other thread, process or host gives. Process numbers would not do: the main process of each container
/// is process 1.
pub fn random_name() -> String {
    // the keys are random
    format!("{:016x}", RandomState::new().hash_one(()))
}

/// Gives a new file the permissions of the file at `path`, which it is to replace, if there is one.
fn keep_permissions(file: &File, path: &Path) -> io::Result<()> {
    let Ok(old) = fs::metadata(path) else {
        return Ok(());
    };
    check_is_file(&old)?;
    // where files have no permissions, they are the same, and cannot be set
    if file.metadata()?.permissions() == old.permissions() {
        return Ok(());
    }
    file.set_permissions(old.permissions())
}

/// Removes what programs that were killed have left of the file at `path`. The file of a program that lives is locked.
/// Where hosts do not see each other's locks, it was changed within the last hour.
fn remove_left(folder: &Path, path: &Path) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let found = entry.file_name();
        let is_partial = found.to_str().is_some_and(|found| is_partial(found, &name));
        if is_partial && is_left(&entry.path()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn is_left(partial: &Path) -> bool {
    let is_locked = |file: File| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    age(partial).is_some_and(|age| age > LONGEST_PAUSE)
        && open(partial).is_ok_and(|file| !is_locked(file))
}

/// Time since a file or a folder was changed, if it is known.
pub fn age(path: &Path) -> Option<Duration> {
    let changed = fs::metadata(path).ok()?.modified().ok()?;
    changed.elapsed().ok()
}

/// Renames a file, over a file of that name. Windows refuses this while another program has one of them open, such as a
/// virus scanner. So there it is tried again for a second.
///
/// # Errors
/// If it cannot be renamed.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    until_free(ATTEMPTS, || fs::rename(from, to))
}

fn until_free(attempts: usize, mut rename: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    const ERROR_SHARING_VIOLATION: i32 = 32;

    for _ in 1..attempts {
        match rename() {
            Err(error)
                if error.kind() == ErrorKind::PermissionDenied
                    || error.raw_os_error() == Some(ERROR_SHARING_VIOLATION) =>
            {
                std::thread::sleep(PAUSE);
            }
            ended => return ended,
        }
    }
    rename()
}

fn replace(partial: &Path, path: &Path) -> io::Result<()> {
    match rename(partial, path) {
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

/// Makes a folder, and those around it, where it is not there.
///
/// # Errors
/// If that is impossible, as where a link leads to a disk that is not mounted; and as [`check_name`].
pub fn make_folder(path: &Path) -> io::Result<()> {
    check_name(path)?;
    fs::create_dir_all(path).map_err(|error| {
        let mut parts = path.ancestors();
        let Some(link) = parts.find(|part| part.is_symlink() && !part.exists()) else {
            return error;
        };
        let target = fs::read_link(link).unwrap_or_default();
        let text = format!(
            "{} is a link to {}, which is not there",
            link.display(),
            target.display()
        );
        io::Error::new(ErrorKind::NotFound, text)
    })
}

/// An error, if a path begins with `~` or `$`. A shell replaces these, but not `~` after `=`, and nothing between single
/// quotation marks.
///
/// # Errors
/// As it says.
pub fn check_name(path: &Path) -> io::Result<()> {
    let name = path.display().to_string();
    if name.starts_with(['~', '$']) {
        let text = format!(
            "no shell has replaced {:?}; write the whole path, or ./{name} if that is its name",
            &name[..1]
        );
        return Err(io::Error::new(ErrorKind::InvalidInput, text));
    }
    Ok(())
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

    #[test]
    fn a_file_that_another_program_has_open_is_renamed_later() {
        let after = |refusals: usize, kind: ErrorKind| {
            let mut calls = 0;
            let renamed = until_free(3, || {
                calls += 1;
                if calls > refusals {
                    Ok(())
                } else {
                    Err(kind.into())
                }
            });
            (calls, renamed.map_err(|error| error.kind()))
        };
        let denied = ErrorKind::PermissionDenied;
        assert_eq!(after(0, denied), (1, Ok(())));
        assert_eq!(after(2, denied), (3, Ok(())));
        assert_eq!(after(3, denied), (3, Err(denied)));
        assert_eq!(after(1, ErrorKind::NotFound), (1, Err(ErrorKind::NotFound)));
    }

    /// A file is open as virus scanners open it: no other program can remove it.
    #[cfg(windows)]
    #[test]
    fn windows_renames_over_a_file_when_it_is_free() -> io::Result<()> {
        use std::os::windows::fs::OpenOptionsExt;

        const FILE_SHARE_READ: u32 = 1;
        let place = tempfile::tempdir()?;
        let path = place.path().join("model");
        write(&path, b"first")?;
        let open = || {
            let mut options = File::options();
            options.read(true).share_mode(FILE_SHARE_READ).open(&path)
        };
        let scanner = open()?;
        assert!(fs::rename(&path, place.path().join("other")).is_err());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(200));
                drop(scanner);
            });
            write(&path, b"second")
        })?;
        assert_eq!(fs::read(&path)?, b"second");
        let _scanner = open()?;
        assert!(write(&path, b"third").is_err());
        assert_eq!(fs::read(&path)?, b"second");
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

    #[test]
    fn what_apples_file_systems_answer_is_no_failure() {
        let answers = |number| {
            let error = io::Error::from_raw_os_error(number);
            [true, false].map(|is_apple| cannot_be_asked(&error, is_apple))
        };
        assert_eq!(answers(25), [true, false]);
        assert_eq!(answers(45), [true, false]);
        // a disk that fails (EIO), and one that is full (ENOSPC)
        assert_eq!([answers(5), answers(28)], [[false; 2]; 2]);
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

    #[cfg(unix)]
    fn mode(path: &Path) -> io::Result<u32> {
        use std::os::unix::fs::PermissionsExt;
        Ok(fs::metadata(path)?.permissions().mode() & 0o777)
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_others_may_not_read_stays_so() -> io::Result<()> {
        use std::os::unix::fs::PermissionsExt;

        let place = tempfile::tempdir()?;
        let path = place.path().join("best.safetensors");
        write(&path, b"first")?;
        for own in [0o600, 0o640, 0o666] {
            fs::set_permissions(&path, fs::Permissions::from_mode(own))?;
            write(&path, b"second")?;
            write_unflushed(&path, b"third")?;
            assert_eq!(mode(&path)?, own);
        }
        Ok(())
    }

    /// As `File::create` follows them: through other links, and to a file that is not there yet.
    #[cfg(unix)]
    #[test]
    fn links_are_followed() -> io::Result<()> {
        use std::os::unix::fs::symlink;

        let place = tempfile::tempdir()?;
        let [latest, other, disk] = ["latest", "other", "disk"].map(|name| place.path().join(name));
        fs::create_dir(&disk)?;
        symlink("other", &latest)?;
        symlink("disk/model", &other)?;
        for bytes in [b"first", b"again"] {
            write(&latest, bytes)?;
            assert!(latest.is_symlink() && other.is_symlink());
            assert_eq!(fs::read(disk.join("model"))?, bytes);
        }
        symlink(disk.join("absolute"), disk.join("link"))?;
        write_unflushed(&disk.join("link"), b"third")?;
        assert_eq!(fs::read(disk.join("absolute"))?, b"third");
        let circle = disk.join("circle");
        symlink("circle", &circle)?;
        assert!(write(&circle, b"").is_err());
        assert!(circle.is_symlink(), "it was replaced");
        Ok(())
    }

    /// The main process of each container is process 1.
    #[test]
    fn another_process_may_have_the_same_number() -> io::Result<()> {
        let place = tempfile::tempdir()?;
        let process = std::process::id();
        for number in 0..1000 {
            let partial = format!(".model.{process}-{number}.partial");
            fs::write(place.path().join(partial), "another's")?;
        }
        for _ in 0..10 {
            write(&place.path().join("model"), b"parameters")?;
        }
        assert_eq!(fs::read_dir(place.path())?.count(), 1001);
        for file in fs::read_dir(place.path())? {
            let path = file?.path();
            let expected = if path.ends_with("model") {
                "parameters"
            } else {
                "another's"
            };
            assert_eq!(fs::read_to_string(path)?, expected);
        }
        Ok(())
    }

    #[test]
    fn what_a_killed_save_has_left_goes_with_a_later_one() -> io::Result<()> {
        let place = tempfile::tempdir()?;
        let old = std::time::SystemTime::now() - 2 * LONGEST_PAUSE;
        let left = |name: &str, modified| -> io::Result<File> {
            let file = File::create_new(place.path().join(name))?;
            file.set_modified(modified)?;
            Ok(file)
        };
        left(".model.1-0.partial", old)?;
        left(".model.0123456789abcdef.partial", old)?;
        left(".other.1-0.partial", old)?;
        left(".model.1-1.partial", std::time::SystemTime::now())?;
        let stopped = left(".model.1-2.partial", old)?;
        stopped.lock()?;
        write(&place.path().join("model"), b"parameters")?;
        let names = fs::read_dir(place.path())?.map(|entry| Ok(entry?.file_name()));
        let mut names = names.collect::<io::Result<Vec<_>>>()?;
        names.sort();
        let stay = [
            ".model.1-1.partial",
            ".model.1-2.partial",
            ".other.1-0.partial",
            "model",
        ];
        assert_eq!(names, stay);
        Ok(())
    }

    #[test]
    fn unfinished_files_are_known_by_their_name() {
        assert!(is_partial(
            ".best.safetensors.0123456789abcdef.partial",
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
