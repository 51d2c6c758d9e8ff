//! What a run keeps while it goes on, and what it looks at: checkpoints, replicas, a loss that is no number.

use std::path::Path;

use anyhow::{Context, Result, anyhow};

use super::Run;
use crate::checkpoint::Header;
use crate::record::Step;
use crate::trained::largest_gradient;
use crate::{Options, Trained, weights};

impl Run {
    /// Why the run ends where a loss is no number.
    pub(super) fn diverged<T: Trained>(&mut self, step: &Step, trained: &T) -> Result<String> {
        if let Some(record) = &mut self.files.record {
            let _ = record.flush(); // there is something worse to say
        }
        let gradients = trained.gradients(&self.names, step.examples)?;
        let largest = largest_gradient(&gradients)?;
        let (lr, taken) = (self.lr, self.progress.taken);
        let Step {
            epoch, step, loss, ..
        } = step;
        let then = match taken - step {
            0 => String::new(),
            _ => format!(" (in step {taken})"),
        };
        let kept = self.has_kept();
        Ok(format!(
            "the loss is {loss} in step {step} (epoch {epoch}, lr {lr}); {largest}{then}; \
             try a smaller --lr{kept}"
        ))
    }

    /// Where an error leaves the reader.
    fn has_kept(&self) -> String {
        match self.writes_in() {
            None => String::new(),
            Some(folder) => format!(
                "; {} holds the checkpoint of step {}",
                folder.display(),
                self.files.kept
            ),
        }
    }

    /// A loss that is no number says more than replicas which differ after it.
    pub(super) fn check_replicas<T: Trained>(&mut self, trained: &T) -> Result<()> {
        self.read_losses(trained)?;
        let agree = trained.check_replicas(&self.names);
        agree.map_err(|error| {
            anyhow!(
                "after step {}: {error:#}{}",
                self.progress.taken,
                self.has_kept()
            )
        })
    }

    /// The folder that holds checkpoints, where there is to be one.
    pub(super) fn kept_in(&self) -> Option<&Path> {
        let Options { out, resume, .. } = &self.setup.options;
        out.as_deref().or(resume.as_deref())
    }

    /// That folder, in the process that writes there.
    pub(super) fn writes_in(&self) -> Option<&Path> {
        self.kept_in().filter(|_| self.files.record.is_some())
    }

    pub(super) fn is_time_to_keep(&self) -> bool {
        let since = self.progress.taken - self.files.tried;
        self.setup
            .options
            .checkpoint_every
            .is_some_and(|n| since >= n)
    }

    /// Keeps a checkpoint where `--out` asks for it, of replicas that agree. All processes come here, one writes.
    pub(super) fn keep<T: Trained>(&mut self, trained: &T, seconds: f64) -> Result<()> {
        if self.kept_in().is_none() {
            return Ok(());
        }
        let mut tensors = self.named(trained.tensors()?);
        for (name, tensor) in &tensors {
            let step = self.progress.taken;
            weights::check_finite(name, tensor)
                .with_context(|| format!("after step {step}, at lr {}", self.lr))?;
        }
        tensors.extend(trained.rest()?);
        let header = Header {
            seconds,
            ..self.header()
        };
        self.files.tried = self.progress.taken;
        if let Some(record) = &mut self.files.record
            && record.checkpoint(&header, &tensors)
        {
            self.files.kept = self.files.tried;
        }
        Ok(())
    }

    pub(super) fn header(&self) -> Header {
        Header {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            settings: self.settings(),
            arguments: self.setup.options.arguments.clone(),
            epochs: self.progress.losses.len(),
            steps: self.progress.step,
            seconds: 0.0,
        }
    }
}
