//! What the result of a run depends on, in lines: `batch size 256`.

use std::fmt;

use anyhow::{Result, bail};

#[derive(Debug, Default)]
pub(super) struct Settings {
    pub lines: Vec<String>,
    /// Whether the images are drawn ones.
    pub synthetic: bool,
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

impl Settings {
    /// An error that names the first setting of the other run which this one does not have.
    pub fn check_same(&self, other: &str) -> Result<()> {
        let missing = |line: &&str| !self.lines.iter().any(|own| own == line);
        let Some(line) = other.lines().find(missing) else {
            return Ok(());
        };
        let key = |line: &str| line.split(' ').next().unwrap_or(line).to_owned();
        let same_key = self.lines.iter().filter(|own| key(own) == key(line));
        let instead = same_key.cloned().collect::<Vec<_>>().join(", ");
        bail!("the run there has {line:?}, this one has {instead:?}; resume with the same options")
    }
}
