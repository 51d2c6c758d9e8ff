//! A CSV file that grows by lines. A full disk does not tear it: lines that cannot be written wait in memory.

use std::io::{ErrorKind, Read, Write};

use anyhow::{Context, Result};
use cap_std::fs::File;
use serde::Serialize;

use crate::folder::Folder;

/// So many bytes of lines wait for the next flush.
const WAITING: usize = 8 << 10;

#[derive(Debug)]
pub(crate) struct Table {
    name: &'static str,
    file: File,
    /// Bytes of whole lines that are in the file.
    written: u64,
    waiting: Vec<u8>,
}

impl Table {
    /// Opens a table that begins with `text`, and cuts off what follows. If the file is missing or begins with
    /// something else, it is written anew; the second value says what was wrong with it.
    pub fn open(
        folder: &Folder,
        name: &'static str,
        text: &[u8],
    ) -> Result<(Self, Option<String>)> {
        let wrong = wrong(folder, name, text)?;
        if wrong.is_some() {
            let written = folder.write(name, text);
            written.with_context(|| folder.cannot_write(name))?;
        }
        let file = folder.append(name);
        let table = Self {
            name,
            file: file.with_context(|| folder.cannot_write(name))?,
            written: text.len() as u64,
            waiting: Vec::new(),
        };
        table.cut().with_context(|| folder.cannot_write(name))?;
        Ok((table, wrong))
    }

    pub fn add(&mut self, row: &impl Serialize) -> Result<()> {
        self.waiting.append(&mut csv(&[row])?);
        if self.waiting.len() >= WAITING {
            let _ = self.write(); // it is tried again, and then said
        }
        Ok(())
    }

    /// Writes the lines that wait, and waits until the disk has them. Where that fails they wait on, and the file ends
    /// with a whole line.
    pub fn flush(&mut self, folder: &Folder) -> Result<()> {
        let written = self.write().and_then(|()| self.file.sync_data());
        written.with_context(|| folder.cannot_write(self.name))
    }

    fn write(&mut self) -> std::io::Result<()> {
        if let Err(error) = self.file.write_all(&self.waiting) {
            let _ = self.cut();
            return Err(error);
        }
        self.written += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }

    /// Cuts off what follows the whole lines.
    fn cut(&self) -> std::io::Result<()> {
        self.file.set_len(self.written)
    }

    /// Whether the folder has the file that was written here, and it is as long.
    pub fn is_intact(&self, folder: &Folder) -> bool {
        let (Ok(own), Ok(there)) = (self.file.metadata(), folder.dir.metadata(self.name)) else {
            return false;
        };
        there.len() == self.written && is_same(&own, &there)
    }
}

#[cfg(unix)]
fn is_same(a: &cap_std::fs::Metadata, b: &cap_std::fs::Metadata) -> bool {
    use cap_std::fs::MetadataExt;

    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

#[cfg(not(unix))]
fn is_same(_: &cap_std::fs::Metadata, _: &cap_std::fs::Metadata) -> bool {
    true // an open file cannot be replaced
}

/// Rows as lines of a table.
pub(crate) fn csv(rows: &[impl Serialize]) -> Result<Vec<u8>> {
    let mut writer = csv::WriterBuilder::new();
    let mut writer = writer.has_headers(false).from_writer(Vec::new());
    rows.iter().try_for_each(|row| writer.serialize(row))?;
    Ok(writer.into_inner()?)
}

/// In which way a file does not begin with `text`.
fn wrong(folder: &Folder, name: &str, text: &[u8]) -> Result<Option<String>> {
    let mut found = Vec::new();
    match folder.read(name) {
        Ok(file) => file.take(text.len() as u64).read_to_end(&mut found),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Ok(Some(format!("{name} was missing")));
        }
        Err(error) => Err(error),
    }
    .with_context(|| folder.cannot_write(name))?;
    let same = found.iter().zip(text).take_while(|(a, b)| a == b).count();
    let line = 1 + text[..same].iter().filter(|byte| **byte == b'\n').count();
    Ok(match same {
        same if same == text.len() => None,
        same if same == found.len() => Some(format!("{name} ended in line {line}")),
        _ => Some(format!("{name} was changed in line {line}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// /dev/full is a disk that is always full.
    #[cfg(target_os = "linux")]
    #[test]
    fn lines_wait_for_a_full_disk() -> Result<()> {
        let path = tempfile::tempdir()?;
        let folder = Folder::open(path.path())?;
        let (mut table, _) = Table::open(&folder, "steps.csv", b"step,loss\n")?;
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full")?;
        let disk = std::mem::replace(&mut table.file, File::from_std(full));
        table.add(&(1, 0.5))?;
        assert!(table.flush(&folder).is_err());
        table.file = disk;
        table.add(&(2, 0.25))?;
        table.flush(&folder)?;
        let text = std::fs::read_to_string(path.path().join("steps.csv"))?;
        assert_eq!(text, "step,loss\n1,0.5\n2,0.25\n");
        Ok(())
    }
}
