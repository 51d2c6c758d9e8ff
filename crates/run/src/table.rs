//! A CSV file that grows by lines. A full disk does not tear it: lines that cannot be written wait in memory.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use csv::StringRecord;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// So many bytes of lines wait for the next flush.
const WAITING: usize = 8 << 10;

#[derive(Debug)]
pub(crate) struct Table {
    path: PathBuf,
    file: File,
    /// Bytes of whole lines that are in the file.
    written: u64,
    waiting: Vec<u8>,
}

impl Table {
    /// Opens a file, and cuts off what follows its first `rows` rows. Without rows the file is made anew; its header
    /// is written at once.
    pub fn open(path: &Path, header: &[&str], rows: usize) -> Result<Self> {
        let (_, written) = read(path, header, rows)?;
        let file = OpenOptions::new().append(true).create(true).open(path);
        let mut table = Self {
            path: path.to_owned(),
            file: file.with_context(|| cannot_write(path))?,
            written,
            waiting: Vec::new(),
        };
        table.cut()?;
        if rows == 0 {
            table.add(header)?;
            table.flush()?;
        }
        Ok(table)
    }

    /// The first `rows` rows of a file.
    pub fn rows<T: DeserializeOwned>(path: &Path, header: &[&str], rows: usize) -> Result<Vec<T>> {
        let (records, _) = read(path, header, rows)?;
        let rows = records.iter().map(|record| record.deserialize(None));
        let rows = rows.collect::<Result<_, csv::Error>>();
        rows.with_context(|| path.display().to_string())
    }

    pub fn add(&mut self, row: &(impl Serialize + ?Sized)) -> Result<()> {
        let mut writer = csv::WriterBuilder::new()
            .has_headers(false)
            .from_writer(Vec::new());
        writer.serialize(row)?;
        self.waiting.append(&mut writer.into_inner()?);
        if self.waiting.len() >= WAITING {
            let _ = self.flush(); // it is tried again, and then said
        }
        Ok(())
    }

    /// Writes the lines that wait; where that fails they wait on, and the file ends with a whole line.
    pub fn flush(&mut self) -> Result<()> {
        if let Err(error) = self.file.write_all(&self.waiting) {
            let _ = self.cut();
            return Err(error).with_context(|| cannot_write(&self.path));
        }
        self.written += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }

    /// As [`flush`](Self::flush), and waits until the disk has it.
    pub fn sync(&mut self) -> Result<()> {
        self.flush()?;
        let synced = self.file.sync_data();
        synced.with_context(|| cannot_write(&self.path))
    }

    /// Cuts off what follows the whole lines.
    fn cut(&self) -> Result<()> {
        let cut = self.file.set_len(self.written);
        cut.with_context(|| cannot_write(&self.path))
    }
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

/// The first rows, and where they end.
fn read(path: &Path, header: &[&str], rows: usize) -> Result<(Vec<StringRecord>, u64)> {
    if rows == 0 {
        return Ok((Vec::new(), 0)); // there may be no file yet
    }
    let name = || path.display().to_string();
    let mut reader = csv::Reader::from_path(path).with_context(name)?;
    let found: Vec<&str> = reader.headers().with_context(name)?.iter().collect();
    ensure!(
        found == header,
        "{}: the columns are {found:?}, expected {header:?}",
        name()
    );
    let mut kept = Vec::new();
    for record in reader.records().take(rows) {
        kept.push(record.with_context(name)?);
    }
    ensure!(
        kept.len() == rows,
        "{} has {} rows, but the checkpoint was taken after {rows}; restore the file",
        name(),
        kept.len()
    );
    Ok((kept, reader.position().byte()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const HEADER: [&str; 2] = ["step", "loss"];

    fn table(rows: usize) -> Result<(tempfile::TempDir, PathBuf)> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("steps.csv");
        let mut table = Table::open(&path, &HEADER, 0)?;
        for step in 1..=rows {
            table.add(&(step, 1.0 / step as f32))?;
        }
        table.sync()?;
        Ok((folder, path))
    }

    #[test]
    fn what_came_after_the_kept_rows_is_gone() -> Result<()> {
        let (_folder, path) = table(3)?;
        let mut text = fs::read_to_string(&path)?;
        text.push_str("4,0.2"); // torn
        fs::write(&path, text)?;
        let rows: Vec<(usize, f32)> = Table::rows(&path, &HEADER, 2)?;
        assert_eq!(rows, [(1, 1.0), (2, 0.5)]);
        let mut table = Table::open(&path, &HEADER, 2)?;
        table.add(&(3, 7.0))?;
        table.flush()?;
        assert_eq!(
            fs::read_to_string(&path)?,
            "step,loss\n1,1.0\n2,0.5\n3,7.0\n"
        );
        Ok(())
    }

    #[test]
    fn too_few_rows_and_another_table_are_refused() -> Result<()> {
        let (_folder, path) = table(3)?;
        let error = |header: &[&str], rows| {
            let opened = Table::open(&path, header, rows);
            format!("{:#}", opened.unwrap_err())
        };
        let too_few = error(&HEADER, 4);
        assert!(
            too_few.ends_with("has 3 rows, but the checkpoint was taken after 4; restore the file"),
            "{too_few}"
        );
        let another = error(&["step", "gain"], 1);
        assert!(another.contains("the columns are"), "{another}");
        Ok(())
    }

    /// /dev/full is a disk that is always full.
    #[cfg(target_os = "linux")]
    #[test]
    fn lines_wait_for_a_full_disk() -> Result<()> {
        let (_folder, path) = table(1)?;
        let mut table = Table::open(&path, &HEADER, 1)?;
        let full = OpenOptions::new().write(true).open("/dev/full")?;
        let disk = std::mem::replace(&mut table.file, full);
        table.add(&(2, 0.5))?;
        assert!(table.flush().is_err());
        table.file = disk;
        table.add(&(3, 0.25))?;
        table.flush()?;
        assert_eq!(
            fs::read_to_string(&path)?,
            "step,loss\n1,1.0\n2,0.5\n3,0.25\n"
        );
        Ok(())
    }
}
