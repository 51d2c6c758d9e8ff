//! The optimizer's step on a GPU: one kernel a parameter, in place.

use super::stream::launch;
use super::tape::{stream_of, with_floats, with_memory_of};
use crate::Sgd;
use candle_core::{Result, Tensor};

/// As [`Sgd::step_tensor`], of tensors that fit.
pub(crate) fn step(
    sgd: &Sgd,
    param: &Tensor,
    sum: &Tensor,
    batch_size: usize,
    velocity: Option<&Tensor>,
) -> Result<()> {
    let stream = stream_of(param)?;
    let share = (1. / batch_size as f64) as f32;
    let [lr, momentum, decay] = [sgd.lr, sgd.momentum, sgd.weight_decay].map(|v| v as f32);
    let n = param.elem_count();
    with_floats(&[&sum.contiguous()?], &stream, |sum| {
        with_memory_of(param, &stream, |param| {
            let step = |velocity| {
                launch!(stream, "sgd", elements n;
                    n, param, sum[0], velocity, lr, momentum, decay, share)
            };
            match velocity {
                Some(velocity) => {
                    with_memory_of(velocity, &stream, |velocity| step(Some(velocity)))
                }
                None => step(None),
            }
        })
    })
}
