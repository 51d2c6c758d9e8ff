//! Buffers of a program's own, which become one value on all replicas in each step.

use candle_core::{Result, Tensor, Var, bail};
use functional::not_finite;

use super::pass_sums::PassSums;
use crate::network_state::{BufferRule, NetworkState};

/// Gives the buffers of a network the value of their rule, from those of all replicas. This one is number `rank`, and had
/// `examples` since the last step.
///
/// # Errors
/// Where another replica no longer takes part.
pub(super) fn share_buffers(
    network: &NetworkState,
    rank: usize,
    examples: usize,
    sums: &PassSums,
) -> Result<()> {
    let shared: Vec<(&str, &Var, BufferRule)> = network.shared_buffers().collect();
    if shared.is_empty() {
        return Ok(());
    }
    let weight = |rule| match rule {
        BufferRule::Mean => examples as f64,
        BufferRule::First => f64::from(u8::from(rank == 0)),
    };
    let mut all = vec![examples as f64];
    for (_, buffer, rule) in &shared {
        let values: Vec<f32> = buffer.flatten_all()?.to_vec1()?;
        all.extend(values.iter().map(|value| f64::from(*value) * weight(*rule)));
    }
    sums.sum_values(&mut all)?;
    let all_examples = all[0];
    let mut rest = &all[1..];
    for (_, buffer, rule) in shared {
        let (own, others) = rest.split_at(buffer.elem_count());
        let by = match rule {
            BufferRule::Mean => all_examples,
            BufferRule::First => 1.0,
        };
        let values: Vec<f32> = own.iter().map(|sum| (sum / by) as f32).collect();
        buffer.set(&Tensor::from_vec(values, buffer.shape(), buffer.device())?)?;
        rest = others;
    }
    Ok(())
}

/// An error that names a buffer that is not finite. On a GPU none is looked at, because that would wait for the GPU.
pub fn check_buffers(network: &NetworkState) -> Result<()> {
    for (name, buffer) in network.buffers() {
        if let Some(at) = not_finite(buffer)? {
            let value = buffer.flatten_all()?.get(at)?.to_scalar::<f32>()?;
            let why = if network.has_rule(name) {
                OWN_BUFFER
            } else if value.is_nan() {
                NAN_BUFFER
            } else {
                INFINITE_BUFFER
            };
            bail!("{name} has become {value}: {why}")
        }
    }
    Ok(())
}

/// What an error says of a buffer that is not finite: of a program's own, of one that is infinite, and of one that is NaN.
const OWN_BUFFER: &str = "the network sets it so; look at its code, such as a division by 0";
const INFINITE_BUFFER: &str = "the numbers before it are too large; scale x, or try a smaller rate";
const NAN_BUFFER: &str = "a batch norm of candle's needs more than one value a channel on each replica; \
    DataIter::drop_last leaves out a last minibatch that is too small";
