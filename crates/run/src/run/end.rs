//! What a run prints at its end.

use std::fmt;

use super::Run;
use crate::say;

impl Run {
    pub(super) fn print_end(&self) {
        let p = &self.progress;
        if p.losses.len() < self.num_epochs {
            let go_on = match self.writes_in() {
                Some(folder) if self.files.kept == p.step => {
                    format!("; continue with --resume {}", folder.display())
                }
                Some(folder) => {
                    let (folder, kept) = (folder.display(), self.files.kept);
                    format!("; --resume {folder} continues after step {kept}")
                }
                None => String::new(),
            };
            say(format_args!(
                "interrupted in epoch {} of {}, after step {}{go_on}",
                p.losses.len() + 1,
                self.num_epochs,
                p.step
            ));
        }
        let columns = console::Term::stdout()
            .size_checked()
            .map_or(80, |(_, c)| c);
        if let Some(curve) = self.animator.text(0, columns.into()) {
            say(format_args!("{curve}"));
        }
        say(format_args!("{}", LastLine(self)));
    }

    /// The mean over the epochs that were completed.
    pub(super) fn sec_per_epoch(&self) -> f64 {
        let completed = self.progress.losses.len();
        self.timer.times().iter().take(completed).sum::<f64>() / completed.max(1) as f64
    }
}

/// `test acc: 0.84, 2.5 sec/epoch on [cpu(0), cpu(1)]`, as in the book.
struct LastLine<'a>(&'a Run);

impl fmt::Display for LastLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let run = self.0;
        match run.animator.y(0).last() {
            Some(test_acc) => {
                write!(
                    f,
                    "test acc: {test_acc:.2}, {:.1} sec/epoch",
                    run.sec_per_epoch()
                )?;
            }
            None => write!(f, "test acc: none, no epoch was completed,")?,
        }
        write!(f, " on {}", run.places())?;
        if run.setup.synthetic {
            write!(f, " (synthetic data)")?;
        }
        Ok(())
    }
}
