//! What the result of a run depends on, in lines: `batch size 256`.

use std::path::Path;

use anyhow::{Result, bail};
use dataset::Dataset;

use super::Run;
use crate::options::Book;
use devices::Process;

impl Run {
    pub(super) fn settings_of(&self, book: &Book, process: Process, data: &Dataset) -> String {
        let options = &self.options;
        // sums of sums have other last digits
        let replicas = match (self.devices.len(), process.of) {
            (own, 1) => own.to_string(),
            (1, of) => of.to_string(),
            (own, of) => format!("{own} in each of {of} processes"),
        };
        let (precision, deterministic) = (options.precision, options.deterministic);
        let device = match self.devices[0].is_cpu() {
            true => "cpu".to_owned(),
            false => format!("cuda, {precision:?}, deterministic: {deterministic}").to_lowercase(),
        };
        let init = options.init.as_deref().map(Path::display);
        let init = init.map_or("random".to_owned(), |file| file.to_string());
        let order = match options.no_shuffle {
            true => "as in the file",
            false => "shuffled",
        };
        let drawn = match data.source.is_synthetic {
            true => "synthetic ",
            false => "",
        };
        let [train, test] = [&data.train, &data.test].map(|split| split.checksum());
        let lines = [
            format!("network {}", book.network),
            format!("replicas {replicas}"),
            format!("device {device}"),
            format!("batch size {}", self.train_iter.batch_size()),
            format!("lr {}", self.lr),
            format!("epochs {}", options.epochs),
            format!("seed {}", options.seed),
            format!("init {init}"),
            format!("training examples {}", self.record.sizes.train),
            format!("test examples {}", self.record.sizes.test),
            format!("order {order}"),
            format!("images {drawn}{} {train:08x} {test:08x}", options.dataset),
        ];
        lines.join("\n")
    }
}

/// An error that names the first setting of the other run which this one does not have.
pub(super) fn check_same(own: &str, other: &str) -> Result<()> {
    let missing = |line: &&str| !own.lines().any(|own| own == *line);
    let Some(line) = other.lines().find(missing) else {
        return Ok(());
    };
    let key = |line: &str| line.split(' ').next().unwrap_or(line).to_owned();
    let same_key = own.lines().filter(|own| key(own) == key(line));
    let instead = same_key.collect::<Vec<_>>().join(", ");
    bail!("the run there has {line:?}, this one has {instead:?}; resume with the same options")
}
