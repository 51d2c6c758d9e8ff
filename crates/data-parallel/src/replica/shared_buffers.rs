//! Buffers of a program's own, which become one value on all replicas in each step.

use candle_core::{Result, Tensor, Var};

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
