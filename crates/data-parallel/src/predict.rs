//! The outputs of a network for a whole dataset, in order, in every process.

use std::cell::Cell;

use candle_core::{Device, Result, Tensor, safetensors};
use devices::{Context, bail, ensure};
use training::{Minibatches, weights, with_tensors};

use crate::batch_tensors::{BatchTensors, first_twins};
use crate::data_parallel::DataParallel;
use crate::evaluate::in_all_processes;
use crate::replica::Replica;

/// The outputs of `net` for a dataset, and its labels or targets: each example once and in the order of the data, on the
/// CPU. All devices compute them. For a metric that needs all examples at once, such as AUC or BLEU.
///
/// Several processes call this together, and each gets all outputs. They may give the same [`DataIter`](training::DataIter),
/// of which each computes its part, or their [parts](DataParallel::part) of it. An iterator of one's own gives the process's
/// part of each minibatch. If another thread trains, its steps come between the minibatches, so the outputs are of
/// different parameters.
///
/// ```
/// # use data_parallel::prelude::*;
/// let net = DataParallel::new(&devices(2)?, Initializer::Normal(0.01), 0, |vb| {
///     Linear::new(3, 2, vb)
/// })?;
/// let (x, y) = (Tensor::ones((5, 3), DType::F32, &Device::Cpu)?, Tensor::arange(0u32, 5, &Device::Cpu)?);
/// // also from an iterator that trains in another order
/// let (outputs, labels) = predict(&net, &DataIter::of_tensors(&x, &y, 2, Some(0))?)?;
/// assert_eq!(outputs.dims(), [5, 2]);
/// assert_eq!(labels.to_vec1::<u32>()?, [0, 1, 2, 3, 4]);
/// # data_parallel::Result::Ok(())
/// ```
///
/// What the data leaves out is left out: [`DataIter::drop_last`](training::DataIter::drop_last) the last examples, and a
/// [`stop_when`](training::DataIter::stop_when) whose flag is set the rest.
///
/// # Errors
/// If no minibatch came to a process. If outputs or targets of two minibatches have different shapes: pad what has no fixed
/// length. If the iterators of two processes begin with the same minibatch. And as [`evaluate`](crate::evaluate).
#[tracing::instrument(skip_all)]
pub fn predict<M: Minibatches>(net: &DataParallel, data_iter: M) -> Result<(Tensor, M::Y)> {
    let (own, like) = in_all_processes(net, predict_here(net, data_iter))?;
    let all = if net.processes.are_one() {
        vec![own]
    } else {
        let bytes = in_all_processes(net, own.to_bytes())?;
        let of_processes = net.processes.gather_in_pieces(&bytes)?;
        let read = of_processes
            .iter()
            .map(|bytes| Predicted::from_bytes(bytes));
        read.collect::<Result<Vec<_>>>()?
    };
    let mut tensors = joined(&all)?.into_iter();
    let outputs = tensors.next().context("predict: the data has no example")?;
    Ok((outputs, with_tensors(&like, tensors)?))
}

/// What a process has computed.
#[derive(Default)]
struct Predicted {
    /// The examples of each of its minibatches.
    examples: Vec<u32>,
    /// The outputs, and each of the targets, of all its examples. There is none without an example.
    tensors: Vec<Tensor>,
    /// Of the first minibatch of an iterator of one's own, to tell it from those of other processes.
    fingerprint: Vec<u8>,
}

/// The names of its entries in bytes.
const EXAMPLES: &str = "examples";
const FINGERPRINT: &str = "fingerprint";

impl Predicted {
    fn to_bytes(&self) -> Result<Vec<u8>> {
        let examples = Tensor::new(&self.examples[..], &Device::Cpu)?;
        let fingerprint = Tensor::new(&self.fingerprint[..], &Device::Cpu)?;
        let mut entries = vec![
            (EXAMPLES.to_owned(), examples),
            (FINGERPRINT.to_owned(), fingerprint),
        ];
        for (i, tensor) in self.tensors.iter().enumerate() {
            entries.push((i.to_string(), tensor.clone()));
        }
        weights::to_bytes(&entries, None)
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut entries = safetensors::load_buffer(bytes, &Device::Cpu)?;
        let mut take = |name: &str| {
            let entry = entries.remove(name);
            entry.with_context(|| format!("predict: a process has brought no {name}"))
        };
        let examples = take(EXAMPLES)?;
        let fingerprint = take(FINGERPRINT)?;
        let tensors = (0..).map_while(|i| entries.remove(&i.to_string()));
        Ok(Self {
            examples: examples.to_vec1()?,
            tensors: tensors.collect(),
            fingerprint: fingerprint.to_vec1()?,
        })
    }
}

/// The outputs for the minibatches of this process, and the targets of the first of them, for their form.
fn predict_here<M: Minibatches>(net: &DataParallel, data_iter: M) -> Result<(Predicted, M::Y)> {
    net.check_numbers()?;
    let is_cut = Cell::new(false);
    let minibatches = data_iter.minibatches(|data| {
        is_cut.set(true);
        net.part(data)
    });
    let mut predicted = Predicted::default();
    let mut like = None;
    let mut rows: Vec<Vec<Tensor>> = Vec::new();
    for (i, batch) in minibatches.enumerate() {
        let (x, y) = batch?;
        let data = BatchTensors::new(&x, &y)?;
        if i == 0 && !is_cut.get() && !net.processes.are_one() {
            predicted.fingerprint = data.fingerprint()?;
        }
        like.get_or_insert(y);
        predicted.examples.push(data.examples as u32);
        if data.examples > 0 {
            let of_minibatch = outputs_and_targets(net, &data)?;
            check_alike(rows.first().unwrap_or(&of_minibatch), &of_minibatch, i)?;
            rows.push(of_minibatch);
        }
    }
    let count = rows.first().map_or(0, Vec::len);
    for t in 0..count {
        let of_all: Vec<&Tensor> = rows.iter().map(|tensors| &tensors[t]).collect();
        predicted.tensors.push(Tensor::cat(&of_all, 0)?);
    }
    Ok((predicted, like.context("predict: no minibatch came")?))
}

/// Of one minibatch, on the CPU.
fn outputs_and_targets(net: &DataParallel, data: &BatchTensors) -> Result<Vec<Tensor>> {
    let inputs = BatchTensors {
        x: data.x.clone(),
        y: Vec::new(), // they need not go to the devices
        examples: data.examples,
    };
    let rows = |replica: &mut Replica, shard: BatchTensors| to_host(&replica.infer_rows(&shard)?);
    let shards = net.infer_on_each(&inputs, rows)?;
    let mut all = vec![Tensor::cat(&shards, 0)?];
    for target in &data.y {
        all.push(to_host(target)?);
    }
    Ok(all)
}

fn to_host(tensor: &Tensor) -> Result<Tensor> {
    devices::to_device(tensor, &Device::Cpu)?.contiguous()
}

/// An error unless outputs and targets of a minibatch go together with those of the first one.
fn check_alike(first: &[Tensor], these: &[Tensor], minibatch: usize) -> Result<()> {
    let all = first.len() - 1;
    let found = these.len() - 1;
    ensure!(
        found == all,
        "predict: minibatch {minibatch} has {found} targets, the first has {all}"
    );
    for (i, (first, this)) in first.iter().zip(these).enumerate() {
        if first.dims()[1..] != this.dims()[1..] || first.dtype() != this.dtype() {
            let of = match i {
                0 => "outputs".to_owned(),
                1 if all == 1 => "y".to_owned(),
                _ => format!("y[{}]", i - 1),
            };
            bail!(
                "predict: {of} of minibatch {minibatch} are {:?} {:?}, those of the first {:?} {:?}; pad them to one shape",
                this.dtype(),
                this.dims(),
                first.dtype(),
                first.dims()
            )
        }
    }
    Ok(())
}

/// The tensors of all processes: of each minibatch the rows of the first process, then those of the second, and so on.
fn joined(all: &[Predicted]) -> Result<Vec<Tensor>> {
    if let [one] = all {
        return Ok(one.tensors.clone());
    }
    let fingerprints: Vec<Vec<u8>> = all.iter().map(|one| one.fingerprint.clone()).collect();
    if let Some((first, other)) = first_twins(&fingerprints) {
        bail!(
            "predict: processes {first} and {other} have the same minibatch: each gives its part, as net.part(data) makes it"
        )
    }
    let with_rows = || all.iter().filter(|one| !one.tensors.is_empty());
    let count = with_rows().next().map_or(0, |one| one.tensors.len());
    let alike = with_rows().all(|one| one.tensors.len() == count);
    ensure!(
        alike,
        "predict: the processes have different numbers of targets"
    );
    let minibatches = all.iter().map(|one| one.examples.len()).max();
    let mut next = vec![0; all.len()];
    let mut rows = vec![Vec::new(); count];
    for minibatch in 0..minibatches.unwrap_or(0) {
        for (one, next) in all.iter().zip(&mut next) {
            let examples = one.examples.get(minibatch).map_or(0, |n| *n as usize);
            if examples == 0 {
                continue;
            }
            for (rows, tensor) in rows.iter_mut().zip(&one.tensors) {
                rows.push(tensor.narrow(0, *next, examples)?);
            }
            *next += examples;
        }
    }
    let joined = rows.iter().map(|rows| Tensor::cat(rows, 0));
    joined
        .collect::<Result<_>>()
        .context("predict: outputs or targets of different processes")
}
