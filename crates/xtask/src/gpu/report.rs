//! The report of `gpu-check`: a table for each part. What is added is printed and written at once, so that nothing is
//! lost if a later part ends the process.

use std::fs;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use super::Part;

pub struct Report {
    path: PathBuf,
    text: String,
    part: String,
    /// The first row that is not right.
    wrong: Option<String>,
}

impl Report {
    /// # Errors
    /// If the file cannot be written.
    pub fn new(path: &std::path::Path) -> Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| cannot(path))?;
        }
        let mut report = Self {
            path: path.to_owned(),
            text: String::new(),
            part: String::new(),
            wrong: None,
        };
        report.add("# gpu-check\n")?;
        Ok(report)
    }

    /// Begins the table of a part.
    pub fn begin(&mut self, part: Part) -> Result<()> {
        let value = part.to_possible_value().context("a part has a name")?;
        value.get_name().clone_into(&mut self.part);
        let help = value
            .get_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        let part = &self.part;
        self.add(&format!(
            "\n## {part}: {help}\n\n| | found | right |\n|---|---|---|\n"
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
            let of = || format!("{}, {what}: {found}", self.part);
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
        match self.wrong.take() {
            None => self.add(&format!("\nall is well: {gpus} GPU{s}\n")),
            Some(wrong) => {
                self.add(&format!("\nnot right: {wrong}\n"))?;
                bail!("{wrong} (report: {})", self.path.display())
            }
        }
    }

    fn add(&mut self, text: &str) -> Result<()> {
        print!("{text}");
        self.text += text;
        fs::write(&self.path, &self.text).with_context(|| cannot(&self.path))
    }
}

fn cannot(path: &std::path::Path) -> String {
    format!("cannot write {}", path.display())
}
