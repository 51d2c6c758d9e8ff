//! Compares the parameters of all replicas, in this process and in the others.

use std::sync::Arc;

use bytemuck::cast_slice;
use candle_core::{DType, Device, Result, Tensor, Var};
use devices::{Context, device_name};
use training::compare;

use crate::error::Kind;
use crate::network_state::NetworkState;
use crate::processes::Processes;
use crate::replication::Replication;

/// Compares the parameters of the replicas of this process bit by bit.
///
/// # Errors
/// Names the first parameter, or buffer with a rule, that is not the same, with index, devices and both values.
pub(crate) fn check_replicas(states: &[NetworkState], devices: &[Device]) -> Result<()> {
    let place = |i: usize| device_name(i, &devices[i]);
    for (i, other) in states.iter().enumerate().skip(1) {
        for ((name, a), (_, b)) in states[0].parameters().zip(other.parameters()) {
            compare(name, [&place(0), &place(i)], [a, b])?;
        }
        let buffers = states[0].shared_buffers().zip(other.shared_buffers());
        for ((name, a, _), (_, b, _)) in buffers {
            let compared = compare(name, [&place(0), &place(i)], [a, b]);
            compared.context(
                "a buffer is one value after a step, which Trainer::flush takes of minibatches that wait; the network \
                 may set it in training alone",
            )?;
        }
    }
    Ok(())
}

/// An error in all processes, unless all have networks with the same tensors, whose replicas sum in the same way.
pub(crate) fn check_networks(
    processes: &Processes,
    state: &NetworkState,
    how: &Replication,
) -> Result<()> {
    let line = |(name, var): &(String, Var)| format!("{name} {:?}", var.dims());
    let sums = [
        format!("allreduce {}", how.allreduce),
        format!("bucket-bytes {}", how.bucket_bytes),
        format!("overlap {}", how.overlap),
        format!("sync-bn {}", how.sync_bn),
        format!("allow-unused {}", how.allow_unused),
    ];
    let lines: Vec<String> = state.all().iter().map(line).chain(sums).collect();
    processes.agree("networks", &lines.join("\n"))
}

/// An error in all processes, unless all have the same parameters: checksums first, then what differs.
pub(crate) fn check_processes(processes: &Processes, state: &NetworkState) -> Result<()> {
    if processes.are_one() {
        return Ok(());
    }
    let params: Vec<&(String, Var)> = state.parameters().collect();
    let sums: Vec<f64> = checksums(state)?.into_iter().map(f64::from).collect();
    let all = processes.gather_numbers("checksums of parameters", &sums)?;
    let Some(other) = all.iter().position(|sums| *sums != all[0]) else {
        return Ok(());
    };
    let mut pairs = all[0].iter().zip(&all[other]);
    let differs = pairs.position(|(a, b)| a != b);
    let Some((name, param)) = differs.and_then(|i| params.get(i)) else {
        let error =
            format!("the networks of process 0 and process {other} have different parameters");
        return Err(Kind::Disagreement.says(error));
    };
    let all = processes.gather("parameters", &bytes(param)?)?;
    let tensor =
        |i: usize| Tensor::from_raw_buffer(&all[i], compared_as(param), param.dims(), &Device::Cpu);
    let places = ["process 0", &format!("process {other}")];
    let compared = compare(name, places, [&tensor(0)?, &tensor(other)?]);
    compared.map_err(|error| Kind::Disagreement.of(error))
}

/// Compares the parameters of a network between processes once more when it is dropped, because other calls than steps
/// may have changed them in one process: [`Processes::finish`] has the result.
pub(crate) struct AtTheEnd {
    pub processes: Arc<Processes>,
    pub state: NetworkState,
}

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        if self.processes.are_one() {
            return;
        }
        // a device that has failed is an error elsewhere
        if let Ok(sum) = checksum(self.state.named().map(|(_, param)| param)) {
            self.processes.note_end(sum);
        }
    }
}

/// A checksum of each parameter.
pub(crate) fn checksums(state: &NetworkState) -> Result<Vec<u32>> {
    let each = state.parameters().map(|(_, param)| checksum([param]));
    each.collect()
}

/// A checksum of some parameters.
pub(crate) fn checksum<'a>(parameters: impl IntoIterator<Item = &'a Var>) -> Result<u32> {
    let mut all = crc32fast::Hasher::new();
    for param in parameters {
        all.update(&bytes(param)?);
    }
    Ok(all.finalize())
}

/// The type in which parameters are compared between processes: what is not f32, such as a frozen table, as f64.
fn compared_as(param: &Var) -> DType {
    match param.dtype() {
        DType::F32 => DType::F32,
        _ => DType::F64,
    }
}

/// The numbers of a parameter as bytes.
fn bytes(param: &Var) -> Result<Vec<u8>> {
    let values = param.flatten_all()?;
    Ok(match compared_as(param) {
        DType::F32 => cast_slice(&values.to_vec1::<f32>()?).to_vec(),
        _ => cast_slice(&values.to_dtype(DType::F64)?.to_vec1::<f64>()?).to_vec(),
    })
}
