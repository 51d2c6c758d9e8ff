//! An optimizer's formula on each element of a slice.

use candle_core::{Result, Tensor};

use super::{Data, Slice};
use crate::cpu::threads::for_each_chunk_with;
use crate::memory::tensors::with_slice_mut;

/// Elements of a task. It moves four arrays or more through memory, which is faster in long parts.
const PART: usize = 1 << 14;

impl Slice<'_> {
    /// Calls `f` with each element of the parameter, the sum of its gradients, and its N values of the
    /// [`state`](super::Optimizer::state), in any order and on several threads. On a GPU everything is copied to the
    /// host and back: right, but slow; [`Sgd`](super::Sgd) and [`AdamW`](super::AdamW) have kernels there.
    ///
    /// # Errors
    /// If a GPU fails.
    ///
    /// # Panics
    /// If the state has not N names.
    #[inline(always)]
    pub fn each<const N: usize>(
        &mut self,
        f: impl Fn(&mut f32, f32, [&mut f32; N]) + Sync,
    ) -> Result<()> {
        let range = self.range.clone();
        match &mut self.data {
            Data::Cpu { sum, state } => with_slice_mut(self.param, |param| {
                let state = state.iter_mut().map(|values| &mut **values);
                run(&mut param[range], sum, state.collect(), f);
                Ok(())
            }),
            Data::Gpu { sum, state, first } => {
                let mut param = OnHost::new(self.param, range.start, range.len())?;
                let on_host = |state: &Tensor| OnHost::new(state, *first, range.len());
                let mut state: Vec<OnHost> = state.iter().map(on_host).collect::<Result<_>>()?;
                let values = state.iter_mut().map(|state| &mut state.floats[..]);
                run(&mut param.floats, &sum.to_vec1()?, values.collect(), f);
                param.put_back()?;
                state.into_iter().try_for_each(OnHost::put_back)
            }
        }
    }
}

#[inline(always)]
fn run<const N: usize>(
    param: &mut [f32],
    sum: &[f32],
    state: Vec<&mut [f32]>,
    f: impl Fn(&mut f32, f32, [&mut f32; N]) + Sync,
) {
    let names = state.len();
    let Ok(state) = <[&mut [f32]; N]>::try_from(state) else {
        panic!("the optimizer's state has {names} names, not {N}")
    };
    for_each_chunk_with(
        param,
        PART,
        state.map(|values| (values, PART)),
        #[inline(always)]
        |i, param, mut state: [&mut [f32]; N]| {
            let sum = &sum[i * PART..][..param.len()];
            let strips = param.len() / STRIP * STRIP;
            for first in (0..strips).step_by(STRIP) {
                strip::<STRIP, N>(first, param, sum, &mut state, &f);
            }
            for first in strips..param.len() {
                strip::<1, N>(first, param, sum, &mut state, &f);
            }
        },
    );
}

/// Elements that are computed together.
const STRIP: usize = 64;

/// `f` on L elements. It works on copies of them: the compiler then sees that they are apart, and computes with
/// vectors. With iterators in place of indices it does not: AdamW takes four times as long.
#[inline(always)]
fn strip<const L: usize, const N: usize>(
    first: usize,
    param: &mut [f32],
    sum: &[f32],
    state: &mut [&mut [f32]; N],
    f: &impl Fn(&mut f32, f32, [&mut f32; N]),
) {
    let mut p = [0.; L];
    let mut g = [0.; L];
    let mut s = [[0.; N]; L];
    p.copy_from_slice(&param[first..][..L]);
    g.copy_from_slice(&sum[first..][..L]);
    for (k, values) in state.iter().enumerate() {
        let values = &values[first..][..L];
        for j in 0..L {
            s[j][k] = values[j];
        }
    }
    for j in 0..L {
        f(&mut p[j], g[j], s[j].each_mut());
    }
    param[first..][..L].copy_from_slice(&p);
    for (k, values) in state.iter_mut().enumerate() {
        let values = &mut values[first..][..L];
        for j in 0..L {
            values[j] = s[j][k];
        }
    }
}

/// Some elements of a tensor on a GPU, copied to the host.
struct OnHost {
    of: Tensor,
    first: usize,
    floats: Vec<f32>,
}

impl OnHost {
    fn new(tensor: &Tensor, first: usize, len: usize) -> Result<Self> {
        let of = tensor.flatten_all()?;
        let floats = of.narrow(0, first, len)?.to_vec1()?;
        Ok(Self { of, first, floats })
    }

    fn put_back(self) -> Result<()> {
        let len = self.floats.len();
        let device = self.of.device();
        let floats = Tensor::from_vec(self.floats, len, device)?;
        self.of.slice_set(&floats, 0, self.first)
    }
}
