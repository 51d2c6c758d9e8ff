//! The report of `gpu-check`: a table for each part. What is added is printed and written at once.

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use super::options::Part;

pub struct Report {
    path: PathBuf,
    text: String,
    /// The parts, the last one in progress.
    parts: Vec<String>,
    began: Instant,
    /// The first row that is not right.
    wrong: Option<String>,
}

impl Report {
    /// # Errors
    /// If the file cannot be written.
    pub fn new(path: &Path) -> Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| cannot(path))?;
        }
        let mut report = Self {
            path: path.to_owned(),
            text: String::new(),
            parts: Vec::new(),
            began: Instant::now(),
            wrong: None,
        };
        report.add("# gpu-check\n")?;
        Ok(report)
    }

    /// Begins the table of a part.
    pub fn begin(&mut self, part: Part) -> Result<()> {
        let value = part.to_possible_value().context("a part has a name")?;
        let name = value.get_name();
        self.parts.push(name.to_owned());
        let help = value
            .get_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        let seconds = self.began.elapsed().as_secs();
        self.add(&format!(
            "\n## {name}: {help} ({seconds} s)\n\n| | found | right |\n|---|---|---|\n"
        ))
    }

    /// Adds a row that cannot be wrong.
    pub fn row(&mut self, what: &str, found: &str) -> Result<()> {
        self.add(&format!("| {what} | {found} | |\n"))
    }

    /// Adds a row that is right or not.
    pub fn check(&mut self, what: &str, found: &str, is_right: bool) -> Result<()> {
        let word = if is_right { "yes" } else { "**no**" };
        if !is_right {
            let part = self.parts.last().map_or("", String::as_str);
            let of = || format!("{part}, {what}: {found}");
            self.wrong.get_or_insert_with(of);
        }
        self.add(&format!("| {what} | {found} | {word} |\n"))
    }

    /// Adds a number that has to be in a range.
    pub fn bar(&mut self, what: &str, found: f64, bar: &RangeInclusive<f64>) -> Result<()> {
        let wanted = match (bar.start(), bar.end()) {
            (0.0, most) => format!("at most {most:.0e}"),
            (least, most) => format!("{least:.0e} to {most}"),
        };
        self.check(
            what,
            &format!("{found:.1e}, {wanted}"),
            bar.contains(&found),
        )
    }

    /// Adds the last line.
    ///
    /// # Errors
    /// If something was not right.
    pub fn end(mut self, gpus: usize) -> Result<()> {
        let s = if gpus == 1 { "" } else { "s" };
        let seconds = self.began.elapsed().as_secs();
        let parts = std::mem::take(&mut self.parts).join(", ");
        match self.wrong.take() {
            None => self.add(&format!(
                "\nall is well: {gpus} GPU{s} ({parts}; {seconds} s)\n"
            )),
            Some(wrong) => {
                self.add(&format!("\nnot right: {wrong}\n"))?;
                bail!("{wrong} (report: {})", self.path.display())
            }
        }
    }

    /// Adds to the file, whose last line says which part is in progress: that part may end the process.
    fn add(&mut self, text: &str) -> Result<()> {
        print!("{text}");
        self.text += text;
        let unfinished = self
            .parts
            .last()
            .map(|part| format!("\nnot finished: {part}\n"));
        let text = self.text.clone() + &unfinished.unwrap_or_default();
        fs::write(&self.path, text).with_context(|| cannot(&self.path))
    }
}

fn cannot(path: &Path) -> String {
    format!("cannot write {}", path.display())
}
