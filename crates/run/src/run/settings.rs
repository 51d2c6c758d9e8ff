//! What the result of a run depends on.

use anyhow::{Result, bail};

use super::Run;
use crate::{Book, Options};

impl Run {
    /// What the result of the run depends on, a line each: a checkpoint of another run is refused, and processes that
    /// train together have it in common.
    pub fn settings(&self) -> String {
        self.setup.settings.join("\n")
    }

    /// Adds a line to [`settings`](Self::settings).
    pub fn depends_on(&mut self, line: String) {
        self.setup.settings.push(line);
    }

    /// When checkpoints are taken and replicas compared, which processes that train together do at the same time.
    pub fn keeping(&self) -> String {
        let Options {
            checkpoint_every: every,
            check_replicas: check,
            ..
        } = self.setup.options;
        format!(
            "--out or --resume: {}, --checkpoint-every {every:?}, --check-replicas: {check}",
            self.kept_in().is_some()
        )
    }

    pub(super) fn settings_of(&self, book: &Book) -> Vec<String> {
        let options = &self.setup.options;
        let images = format!(
            "{}{} {:08x} {:08x}",
            if self.setup.synthetic {
                "synthetic "
            } else {
                ""
            },
            options.dataset,
            self.train_iter.checksum(),
            self.test_iter.checksum()
        );
        let init = match &options.init {
            Some(file) => file.display().to_string(),
            None => "random".to_owned(),
        };
        let order = if options.no_shuffle {
            "as in the file"
        } else {
            "shuffled"
        };
        let device = match self.devices[0].is_cpu() {
            true => "cpu".to_owned(),
            false => format!(
                "cuda, {:?}, deterministic: {}",
                options.precision, options.deterministic
            )
            .to_lowercase(),
        };
        // sums of sums have other last digits
        let own = self.devices.len();
        let replicas = match (own, self.setup.process.of) {
            (_, 1) | (1, _) => (own * self.setup.process.of).to_string(),
            (_, n) => format!("{own} in each of {n} processes"),
        };
        vec![
            format!("network {}", book.network),
            format!("replicas {replicas}"),
            format!("device {device}"),
            format!("batch size {}", self.batch_size),
            format!("lr {}", self.lr),
            format!("epochs {}", self.num_epochs),
            format!("seed {}", self.seed),
            format!("init {init}"),
            format!("training examples {}", self.train_iter.num_examples()),
            format!("test examples {}", self.test_iter.num_examples()),
            format!("order {order}"),
            format!("images {images}"),
        ]
    }
}

/// An error that names the first setting of a run that another one does not have.
pub(super) fn same_settings(of_the_run: &str, own: &str) -> Result<()> {
    let other = |line: &&str| !own.lines().any(|own| own == *line);
    let Some(line) = of_the_run.lines().find(other) else {
        return Ok(());
    };
    let key = |line: &str| line.split(' ').next().unwrap_or(line).to_owned();
    let same_key = own.lines().filter(|own| key(own) == key(line));
    let instead = same_key.collect::<Vec<_>>().join(", ");
    bail!("the run there has {line:?}, this one has {instead:?}; resume with the same options")
}
