//! The lines of a run: the loss of each step, the result of each epoch. Tables and pictures are drawn from them, and
//! checkpoints keep them.

use anyhow::{Context, Result, bail};
use candle_core::{Device, Tensor};
use d2l::Animator;
use serde::Serialize;
use std::io::{ErrorKind, Read};

use training::Folder;
use training::files::quote;

pub(crate) const STEPS: &str = "steps.csv";
pub(crate) const EPOCHS: &str = "epochs.csv";
pub(crate) const LOSS: &str = "loss.svg";
pub(crate) const ACCURACY: &str = "accuracy.svg";

/// A picture is 560 pixels wide: more points would only make it larger.
const POINTS: usize = 1000;

/// One line of `epochs.csv`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Epoch {
    pub epoch: usize,
    pub loss: f64,
    pub test_acc: f64,
    pub seconds: f64,
}

/// Sizes of a run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sizes {
    pub epochs: usize,
    /// Examples of the training set.
    pub train: usize,
    /// Examples of the test set.
    pub test: usize,
    /// Examples of a minibatch.
    pub batch: usize,
}

impl Sizes {
    pub fn steps_per_epoch(self) -> usize {
        self.train.div_ceil(self.batch)
    }

    /// Number of examples in the first `steps` steps of an epoch.
    pub fn examples(self, steps: usize) -> usize {
        self.train.min(steps.saturating_mul(self.batch))
    }
}

/// All lines so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Lines {
    /// The loss of each step.
    pub losses: Vec<f32>,
    pub epochs: Vec<Epoch>,
}

impl Lines {
    /// The rows of `steps.csv`: epoch, step, examples and loss.
    fn steps(&self, sizes: Sizes) -> impl Iterator<Item = (usize, usize, usize, f32)> {
        self.losses.iter().enumerate().map(move |(i, loss)| {
            let epoch = i / sizes.steps_per_epoch();
            let batch = i % sizes.steps_per_epoch();
            let examples = sizes.examples(batch + 1) - sizes.examples(batch);
            (epoch + 1, i + 1, examples, *loss)
        })
    }

    /// The mean loss of the epoch that ends, over its examples.
    pub fn mean_loss(&self, sizes: Sizes) -> f64 {
        let before = self.epochs.len() * sizes.steps_per_epoch();
        let mut sum = 0.0;
        let mut all = 0;
        for (_, _, examples, loss) in self.steps(sizes).skip(before) {
            sum += f64::from(loss) * examples as f64;
            all += examples;
        }
        sum / all as f64
    }

    /// Tensors for a checkpoint: the loss of each step; loss, accuracy and seconds of each epoch.
    pub fn to_tensors(&self) -> Result<[Tensor; 2]> {
        let losses = Tensor::from_slice(&self.losses, self.losses.len(), &Device::Cpu)?;
        let rows = self
            .epochs
            .iter()
            .flat_map(|epoch| [epoch.loss, epoch.test_acc, epoch.seconds]);
        let epochs = Tensor::from_iter(rows, &Device::Cpu)?;
        Ok([losses, epochs])
    }

    /// From the tensors of a checkpoint.
    pub fn from_tensors(losses: &Tensor, epochs: &Tensor) -> Result<Self> {
        let numbers = epochs.to_vec1::<f64>()?;
        let rows = numbers.as_chunks::<3>().0.iter().zip(1..);
        let epochs = rows.map(|(&[loss, test_acc, seconds], epoch)| Epoch {
            epoch,
            loss,
            test_acc,
            seconds,
        });
        Ok(Self {
            losses: losses.to_vec1()?,
            epochs: epochs.collect(),
        })
    }

    /// An error, if a table in the folder has a row that contradicts these lines: then the lines are those of another
    /// run. A row may be missing, and more may follow.
    pub fn check_tables(&self, sizes: Sizes, folder: &Folder) -> Result<()> {
        let mut tables = self.tables(sizes)?.into_iter();
        tables.try_for_each(|(name, table)| check_table(folder, name, &table))
    }

    /// Both tables, each with its name.
    pub fn tables(&self, sizes: Sizes) -> Result<[(&'static str, Vec<u8>); 2]> {
        let steps = csv("epoch,step,examples,loss\n", self.steps(sizes))?;
        Ok([(STEPS, steps), (EPOCHS, self.epochs_table()?)])
    }

    /// `epochs.csv`.
    pub fn epochs_table(&self) -> Result<Vec<u8>> {
        csv("epoch,loss,test_acc,seconds\n", self.epochs.iter())
    }

    /// Both pictures, each with its name.
    pub fn pictures(&self, sizes: Sizes) -> Result<[(&'static str, Vec<u8>); 2]> {
        let loss = self.loss_curve(sizes)?.svg()?;
        let accuracy = self.accuracy_curve(sizes)?.svg()?;
        Ok([(LOSS, loss.into()), (ACCURACY, accuracy.into())])
    }

    /// Means over equal stretches of steps; the x axis counts epochs.
    fn loss_curve(&self, sizes: Sizes) -> Result<Animator> {
        let mut curve = Animator::new("epoch", &["train loss"], (0.0, sizes.epochs as f64));
        let per_epoch = sizes.steps_per_epoch();
        let stretch = sizes.epochs.saturating_mul(per_epoch).div_ceil(POINTS);
        for (i, losses) in self.losses.chunks_exact(stretch).enumerate() {
            let sum = losses.iter().fold(0.0, |sum, loss| sum + f64::from(*loss));
            // in the middle of its stretch; after the first epoch, x is 1
            let middle = ((i + 1) * stretch) as f64 - (stretch - 1) as f64 / 2.0;
            curve.add(middle / per_epoch as f64, &[sum / stretch as f64])?;
        }
        Ok(curve)
    }

    pub fn accuracy_curve(&self, sizes: Sizes) -> Result<Animator> {
        let mut curve = Animator::new("epoch", &["test acc"], (1.0, sizes.epochs as f64));
        for epoch in &self.epochs {
            curve.add(epoch.epoch as f64, &[epoch.test_acc])?;
        }
        Ok(curve)
    }
}

/// A table: its header, and a line for each row.
fn csv(header: &str, mut rows: impl Iterator<Item: Serialize>) -> Result<Vec<u8>> {
    let mut writer = csv::WriterBuilder::new()
        .has_headers(false)
        .from_writer(header.into());
    rows.try_for_each(|row| writer.serialize(row))?;
    Ok(writer.into_inner()?)
}

/// An error, if a file has other lines than those of a table: it may have fewer or more.
fn check_table(folder: &Folder, name: &str, table: &[u8]) -> Result<()> {
    let path = folder.path().join(name);
    let mut found = Vec::new();
    match folder.read(name) {
        Ok(file) => file.take(table.len() as u64).read_to_end(&mut found),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => Err(error),
    }
    .with_context(|| format!("cannot read {}", path.display()))?;
    let same = found.iter().zip(table).take_while(|(a, b)| a == b).count();
    if same == found.len() {
        return Ok(());
    }
    let begin = table[..same]
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |end| end + 1);
    let line = |text: &[u8]| {
        let line = text[begin..].split(|byte| *byte == b'\n').next();
        quote(&String::from_utf8_lossy(line.unwrap_or_default()))
    };
    bail!(
        "line {} of {} is {}, and the checkpoint has {} there: they are not of the same run; put \
         the right checkpoint back, or remove the table to have it written from the checkpoint",
        1 + table[..begin].iter().filter(|byte| **byte == b'\n').count(),
        path.display(),
        line(&found),
        line(table)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_short_run_is_drawn_step_by_step_and_a_long_one_in_means() -> Result<()> {
        let curve = |epochs, train, losses| {
            let sizes = Sizes {
                epochs,
                train,
                test: 1,
                batch: 1,
            };
            let epochs = vec![];
            Lines { losses, epochs }.loss_curve(sizes)
        };
        let short = curve(2, 4, vec![3.0, 2.0, 1.0])?;
        assert_eq!(short.x(), [0.25, 0.5, 0.75]);
        assert_eq!(short.y(0), [3.0, 2.0, 1.0]);
        // 2010 steps: three make a point
        let long = curve(10, 201, (0..2010u16).map(f32::from).collect())?;
        assert_eq!(long.y(0).len(), 670);
        assert_eq!(long.y(0)[..2], [1.0, 4.0]);
        assert_eq!(long.x()[..2], [2.0 / 201.0, 5.0 / 201.0]);
        Ok(())
    }

    #[test]
    fn a_table_may_be_shorter_or_longer_and_not_another() -> Result<()> {
        const TABLE: &str = "epoch,step,examples,loss\n1,1,1,1.0\n1,2,1,0.5\n";
        let path = tempfile::tempdir()?;
        let folder = Folder::open(path.path())?;
        let check = || check_table(&folder, STEPS, TABLE.as_bytes());
        check()?; // it is missing
        for good in [TABLE, "", &TABLE[..30], &format!("{TABLE}1,3,1,9.0\n1,")] {
            fs::write(path.path().join(STEPS), good)?;
            check()?;
        }
        for (bad, words) in [
            (
                TABLE.replace("0.5", "0.25"),
                "is \"1,2,1,0.25\", and the checkpoint has \"1,2,1,0.5\"",
            ),
            ("x".repeat(1 << 20), "line 1 of "),
        ] {
            fs::write(path.path().join(STEPS), bad)?;
            let error = check().unwrap_err().to_string();
            assert!(error.contains(words) && error.len() < 1000, "{error}");
        }
        Ok(())
    }
}
