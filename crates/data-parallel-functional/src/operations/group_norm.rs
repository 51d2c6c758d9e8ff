//! Group normalization.

use crate::cpu::buffer::Buffer;
use crate::cpu::gradient::{At, Grad, Pass};
use crate::cpu::sums::{add, add_rows, sum_of_chunks};
use crate::cpu::threads::for_each_chunk_with;
use crate::descriptors::args;
use crate::graph::value::Value;
use crate::kernel::{Cpu, Kernel, SelfContained};
use candle_core::{Result, Tensor, bail};

/// Pixels that are added up before they are added to the others, so that long sums stay exact.
const BLOCK: usize = 64;

impl Value {
    /// Normalizes the channels of (B, H, W, C) in `groups` groups, each over all pixels of an example, then scales each
    /// channel with `weight` and shifts it by `bias`, both (C,): (x − mean) / √(var + eps) · weight + bias. In PyTorch:
    /// `nn.GroupNorm`, there of (B, C, H, W), whose eps is 1e-5.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// // two channels, each a group of its own
    /// let x = Tensor::new(&[1f32, 10., 3., 30.], &Device::Cpu)?.reshape((1, 1, 2, 2))?;
    /// let (weight, bias) = (Tensor::new(&[1f32, 2.], &Device::Cpu)?, Tensor::new(&[0f32, 5.], &Device::Cpu)?);
    /// let y = Value::new(&x)?.group_norm(2, &weight, &bias, 0.)?.eval()?;
    /// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [-1., 3., 1., 7.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where a tensor is not f32, the sizes do not match, the groups do not divide the channels, or `eps` is negative or no
    /// finite number.
    pub fn group_norm(
        &self,
        groups: usize,
        weight: &Tensor,
        bias: &Tensor,
        eps: f32,
    ) -> Result<Self> {
        args::eps("group_norm", eps)?;
        let [_, h, w, channels] = args::dims4("group_norm", "(B, H, W, C)", self.dims())?;
        args::vector(
            "group_norm",
            "weight",
            weight.dims(),
            channels,
            "channels of x",
        )?;
        args::vector("group_norm", "bias", bias.dims(), channels, "channels of x")?;
        if groups == 0 || channels % groups > 0 || channels * h * w == 0 {
            let x = self.dims();
            bail!(
                "group_norm: x has shape {x:?}, expected (B, H, W, C), where {groups} groups divide C"
            )
        }
        let op = GroupNorm {
            pixels: h * w,
            channels,
            groups,
            eps,
        };
        let others = [("weight", weight), ("bias", bias)];
        self.self_contained("group_norm", op, &others, self.dims())
    }
}

/// Normalization of groups of channels of an example.
#[derive(Debug, Clone, Copy)]
struct GroupNorm {
    pixels: usize,
    channels: usize,
    groups: usize,
    eps: f32,
}

impl SelfContained for GroupNorm {
    fn with_candle(&self, x: &[Tensor]) -> Result<Tensor> {
        let of_group = self.channels / self.groups;
        let grouped = x[0].reshape(((), self.pixels, self.groups, of_group))?;
        let mean = |x: &Tensor| x.mean_keepdim((1, 3));
        let centered = grouped.broadcast_sub(&mean(&grouped)?)?;
        let variance = (mean(&centered.sqr()?)? + f64::from(self.eps))?;
        let y = centered
            .broadcast_div(&variance.sqrt()?)?
            .reshape(x[0].shape())?;
        y.broadcast_mul(&x[1])?.broadcast_add(&x[2])
    }
}

impl GroupNorm {
    /// For each channel, the mean of its group over all pixels of an example; `f` gives what is added of a row of channels.
    #[inline(always)]
    fn means(&self, x: &[f32], f: impl Fn(&mut [f32], &[f32])) -> Vec<f32> {
        let mut sums = vec![0.; self.channels];
        add_rows(x, BLOCK, &mut sums, f);
        self.of_groups(&mut sums);
        sums
    }

    /// Gives each channel the mean over its group, from the sums of the channels.
    #[inline(always)]
    fn of_groups(&self, sums: &mut [f32]) {
        let of_group = self.channels / self.groups;
        for group in sums.chunks_exact_mut(of_group) {
            let sum: f32 = group.iter().sum();
            group.fill(sum / (of_group * self.pixels) as f32);
        }
    }
}

impl Kernel<Cpu> for GroupNorm {
    /// Saves the mean of each channel's group, and 1 / √(variance + ε), for each example.
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let c = self.channels;
        let weight = x[1];
        let bias = x[2];
        let example = self.pixels * c;
        let mut statistics = Buffer::new(y.len() / example * 2 * c);
        for_each_chunk_with(
            y,
            example,
            [(&mut statistics, 2 * c)],
            #[inline(always)]
            |i, y, [statistics]| {
                let x = &x[0][i * example..][..example];
                let mean = self.means(x, add);
                let mut scale = self.means(
                    x,
                    #[inline(always)]
                    |to, row| {
                        for k in 0..c {
                            to[k] += (row[k] - mean[k]) * (row[k] - mean[k]);
                        }
                    },
                );
                scale
                    .iter_mut()
                    .for_each(|scale| *scale = 1. / (*scale + self.eps).sqrt());
                for (y, x) in y.chunks_exact_mut(c).zip(x.chunks_exact(c)) {
                    for k in 0..c {
                        y[k] = (x[k] - mean[k]) * scale[k] * weight[k] + bias[k];
                    }
                }
                statistics[..c].copy_from_slice(&mean);
                statistics[c..].copy_from_slice(&scale);
            },
        );
        Ok(vec![statistics])
    }

    fn backward(&self, _: &Pass, at: At<'_, '_>, mut dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        let c = self.channels;
        let weight = at.x[1];
        let example = self.pixels * c;
        let mut sums = Buffer::new(dy.len() / example * 2 * c);
        for_each_chunk_with(
            &mut dy,
            example,
            [(&mut sums, 2 * c)],
            #[inline(always)]
            |i, dy, [sums]| {
                let x = &at.x[0][i * example..][..example];
                let (mean, scale) = at.saved[0][i * 2 * c..][..2 * c].split_at(c);
                sums.fill(0.);
                let mut of_block = vec![0.; 2 * c];
                for (dy, x) in dy.chunks(BLOCK * c).zip(x.chunks(BLOCK * c)) {
                    of_block.fill(0.);
                    let (dw, db) = of_block.split_at_mut(c);
                    for (dy, x) in dy.chunks_exact(c).zip(x.chunks_exact(c)) {
                        for k in 0..c {
                            dw[k] += dy[k] * (x[k] - mean[k]) * scale[k];
                            db[k] += dy[k];
                        }
                    }
                    add(sums, &of_block);
                }
                let mut along = vec![0.; c];
                let mut shift = vec![0.; c];
                for k in 0..c {
                    along[k] = sums[k] * weight[k];
                    shift[k] = sums[c + k] * weight[k];
                }
                self.of_groups(&mut along);
                self.of_groups(&mut shift);
                for (dy, x) in dy.chunks_exact_mut(c).zip(x.chunks_exact(c)) {
                    for k in 0..c {
                        let normal = (x[k] - mean[k]) * scale[k];
                        dy[k] = scale[k] * (dy[k] * weight[k] - shift[k] - normal * along[k]);
                    }
                }
            },
        );
        let total = sum_of_chunks(&sums, 2 * c);
        dx[1].put(total[..c].iter().copied());
        dx[2].put(total[c..].iter().copied());
        dx[0].give(dy);
        Ok(())
    }
}
