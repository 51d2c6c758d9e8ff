//! Convolution in groups of channels: that of each channel by itself, a depthwise one, has kernels of its own. Where a group
//! has a few inputs, these kernels compute one input of each group after the other. The others are a convolution of each
//! group.

use crate::cpu::buffer::Buffer;
use crate::cpu::conv::ConvolutionKernel;
use crate::cpu::depthwise;
use crate::cpu::gradient::{At, CHUNK, Grad, Pass, put};
use crate::cpu::im2col::TILE;
use crate::cpu::layout::columns;
use crate::cpu::sums::column_sums;
use crate::cpu::threads::for_each_chunk;
use crate::descriptors::args;
use crate::descriptors::convolution::Geometry;
use crate::graph::value::{Value, weighted};
use crate::kernel::{Cpu, Kernel, SelfContained};
use candle_core::{Result, Tensor, bail};

/// The most inputs of a group that are convolved one after the other.
const FEW_INPUTS: usize = 4;

/// Pixels of a task that copies channels.
const PIXELS: usize = 256;

impl Value {
    /// Convolution in `groups` groups of channels: (B, H, W, I), `weight` (O, I / groups, KH, KW), `bias` (O,) →
    /// (B, H', W', O). Each group of outputs sees one group of inputs. With as many groups as inputs it is a depthwise
    /// convolution. In PyTorch: `F.conv2d(…, groups=groups)`, there in (B, I, H, W).
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let x = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?.reshape((1, 1, 2, 2))?;
    /// let weight = Tensor::new(&[[1f32, 1.], [10., 0.]], &Device::Cpu)?.reshape((2, 1, 1, 2))?;
    /// let y = Value::new(&x)?.grouped_conv2d(&weight, None, 1, 0, 2)?;
    /// assert_eq!(y.eval()?.flatten_all()?.to_vec1::<f32>()?, [4., 20.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where a tensor is not f32, the sizes do not match, or the kernel is larger than the padded image.
    pub fn grouped_conv2d(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        stride: usize,
        padding: usize,
        groups: usize,
    ) -> Result<Self> {
        let op = Grouped::new(self.dims(), weight.dims(), bias, [stride, padding, groups])?;
        let g = &op.group;
        let dims = [g.batch, g.out_height, g.out_width, g.out_channels * groups];
        let others = weighted(weight, bias);
        self.self_contained("grouped_conv2d", op, &others, &dims)
    }
}

/// Convolutions side by side.
#[derive(Debug, Clone, Copy)]
struct Grouped {
    /// The sizes of one of them.
    group: Geometry,
    groups: usize,
}

impl Grouped {
    /// From the shapes of x (B, H, W, I) and weight (O, I / groups, KH, KW).
    fn new(
        x: &[usize],
        weight: &[usize],
        bias: Option<&Tensor>,
        [stride, padding, groups]: [usize; 3],
    ) -> Result<Self> {
        const OP: &str = "grouped_conv2d";
        let [batch, height, width, inputs] = args::dims4(OP, "(B, H, W, I)", x)?;
        let &[outputs, channels, kernel_height, kernel_width] = weight else {
            bail!("{OP}: weight has shape {weight:?}, expected (O, I / groups, KH, KW)")
        };
        let are_whole = groups > 0 && inputs == channels * groups && outputs % groups == 0;
        if !are_whole || inputs == 0 || outputs == 0 {
            bail!(
                "{OP}: x has {inputs} channels, weight has shape {weight:?} = (O, I / groups, KH, KW), expected that \
                 {groups} groups divide I and O"
            )
        }
        let of_bias = bias.map(Tensor::dims);
        args::bias(OP, of_bias, outputs, "output channels of weight")?;
        let group = Geometry {
            batch,
            height,
            width,
            channels,
            out_height: args::windows(OP, height, kernel_height, stride, padding)?,
            out_width: args::windows(OP, width, kernel_width, stride, padding)?,
            out_channels: outputs / groups,
            kernel_height,
            kernel_width,
            stride,
            padding,
        };
        Ok(Self { group, groups })
    }

    /// The convolution of each output with one input of its group, if these are few. Their sum is the result.
    fn depthwise(&self) -> Option<Geometry> {
        let channels = self.groups * self.group.out_channels;
        (self.group.channels <= FEW_INPUTS).then_some(Geometry {
            channels,
            out_channels: channels,
            ..self.group
        })
    }

    /// For each output, input `n` of its group; none if that is x itself.
    fn input_of_each(&self, x: &[f32], n: usize) -> Option<Buffer> {
        let inputs = self.group.channels;
        let outputs = self.group.out_channels;
        (inputs > 1 || outputs > 1).then(|| {
            let mut of_each = Buffer::new(x.len() / inputs * outputs);
            for_each_chunk(&mut of_each, CHUNK * outputs, |i, to| {
                let x = x[i * CHUNK * inputs..].chunks_exact(inputs);
                for (to, x) in to.chunks_exact_mut(outputs).zip(x) {
                    to.fill(x[n]);
                }
            });
            of_each
        })
    }

    /// The weights of input `n` of each group, (O, 1, KH, KW).
    fn weight_of(&self, weight: &[f32], n: usize) -> Vec<f32> {
        let area = self.group.kernel_area();
        let of_outputs = weight.chunks_exact(self.group.taps());
        of_outputs
            .flat_map(|taps| taps[n * area..][..area].iter().copied())
            .collect()
    }
}

impl SelfContained for Grouped {
    /// A sum over the kernel's positions, each a matrix product of each group.
    fn with_candle(&self, x: &[Tensor]) -> Result<Tensor> {
        let g = &self.group;
        let padded = x[0]
            .pad_with_zeros(1, g.padding, g.padding)?
            .pad_with_zeros(2, g.padding, g.padding)?;
        let places = |first: usize, count: usize| {
            let places = (0..count).map(|i| (first + i * g.stride) as u32);
            Tensor::from_iter(places, x[0].device())
        };
        let pixels = g.batch * g.out_height * g.out_width;
        let weights = x[1].reshape((self.groups, g.out_channels, g.channels, g.kernel_area()))?;
        let mut sum: Option<Tensor> = None;
        for tap in 0..g.kernel_area() {
            let rows = places(tap / g.kernel_width, g.out_height)?;
            let columns = places(tap % g.kernel_width, g.out_width)?;
            let seen = padded
                .index_select(&rows, 1)?
                .index_select(&columns, 2)?
                .reshape((pixels, self.groups, g.channels))?
                .transpose(0, 1)?;
            let weight = weights.narrow(3, tap, 1)?.squeeze(3)?.transpose(1, 2)?;
            let product = seen.contiguous()?.matmul(&weight.contiguous()?)?;
            sum = Some(match sum {
                Some(sum) => (sum + product)?,
                None => product,
            });
        }
        let Some(sum) = sum else {
            bail!("grouped_conv2d: a kernel without a position")
        };
        let outputs = self.groups * g.out_channels;
        let y = sum
            .transpose(0, 1)?
            .reshape((g.batch, g.out_height, g.out_width, outputs))?;
        match x.get(2) {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}

impl Kernel<Cpu> for Grouped {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let bias = x.get(2).copied();
        if let Some(sizes) = self.depthwise() {
            for n in 0..self.group.channels {
                let of_each = self.input_of_each(x[0], n);
                let x_of_each = of_each.as_deref().unwrap_or(x[0]);
                let bias = bias.filter(|_| n == 0);
                depthwise::forward(&sizes, x_of_each, &self.weight_of(x[1], n), bias, y, n > 0);
            }
            return Ok(vec![]);
        }
        let g = &self.group;
        let kernel = ConvolutionKernel::new(*g, false);
        let mut of_group = Buffer::new(y.len() / self.groups);
        for (group, weight) in x[1].chunks_exact(g.out_channels * g.taps()).enumerate() {
            let bias = bias.map(|bias| &bias[group * g.out_channels..][..g.out_channels]);
            let x = self.part(x[0], group, g.channels);
            kernel.output(&x, weight, bias, &mut of_group);
            self.put_part(&of_group, group, g.out_channels, y, false);
        }
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, at: At<'_, '_>, dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        if let Some(sizes) = self.depthwise() {
            self.depthwise_backward(&sizes, at, &dy, dx);
            return Ok(());
        }
        let g = &self.group;
        let kernel = ConvolutionKernel::new(*g, false);
        let size = g.out_channels * g.taps();
        let mut of_x = Buffer::new(at.x[0].len() / self.groups);
        let [to_x, to_weight, to_bias @ ..] = dx else {
            unreachable!("it has an input and a weight")
        };
        let mut to_x = to_x.target();
        let mut to_weight = to_weight.target();
        for (group, weight) in at.x[1].chunks_exact(size).enumerate() {
            let dy = self.part(&dy, group, g.out_channels);
            if let Some((to, add)) = &mut to_x {
                kernel.backward_x(weight, &dy, &mut of_x, false);
                self.put_part(&of_x, group, g.channels, to, *add);
            }
            if let Some((to, add)) = &mut to_weight {
                let x = self.part(at.x[0], group, g.channels);
                kernel.backward_weight(&x, &dy, &mut to[group * size..][..size], *add);
            }
        }
        if let Some(db) = to_bias.first_mut() {
            let sums = column_sums(&dy, g.out_channels * self.groups, TILE);
            db.put(sums.into_iter());
        }
        Ok(())
    }
}

impl Grouped {
    fn depthwise_backward(&self, g: &Geometry, at: At<'_, '_>, dy: &[f32], dx: &mut [Grad]) {
        let [to_x, to_parameters @ ..] = dx else {
            unreachable!("it has an input")
        };
        let inputs = self.group.channels;
        let outputs = self.group.out_channels;
        if let Some((to, add)) = to_x.target() {
            for n in 0..inputs {
                let weight = self.weight_of(at.x[1], n);
                if inputs == 1 && outputs == 1 {
                    depthwise::backward_x(g, &weight, dy, to, add);
                    continue;
                }
                let mut of_each = Buffer::new(at.x[0].len() / inputs * outputs);
                depthwise::backward_x(g, &weight, dy, &mut of_each, false);
                for_each_chunk(to, CHUNK * inputs, |i, to| {
                    let of_each = of_each[i * CHUNK * outputs..].chunks_exact(outputs);
                    for (to, of_each) in to.chunks_exact_mut(inputs).zip(of_each) {
                        put(&mut to[n..=n], [of_each.iter().sum()].into_iter(), add);
                    }
                });
            }
        }
        if to_parameters.iter().any(Grad::wanted) {
            let area = self.group.kernel_area();
            let mut of_weight = vec![0.; at.x[1].len()];
            let mut of_bias = vec![];
            for n in 0..inputs {
                let of_each = self.input_of_each(at.x[0], n);
                let x = of_each.as_deref().unwrap_or(at.x[0]);
                let [dw, db] = depthwise::backward_weight(g, x, dy);
                let of_outputs = of_weight.chunks_exact_mut(inputs * area);
                for (to, dw) in of_outputs.zip(dw.chunks_exact(area)) {
                    to[n * area..][..area].copy_from_slice(dw);
                }
                of_bias = db;
            }
            for (to, gradient) in to_parameters.iter_mut().zip([of_weight, of_bias]) {
                to.put(gradient.into_iter());
            }
        }
    }

    /// The channels of one group, of as many in each.
    fn part(&self, all: &[f32], group: usize, channels: usize) -> Buffer {
        let mut part = Buffer::new(all.len() / self.groups);
        let row = channels * self.groups;
        columns(all, row, group * channels, &mut part, channels, false);
        part
    }

    /// The reverse of [`Self::part`]: writes the channels of a group, or adds to them.
    fn put_part(&self, part: &[f32], group: usize, channels: usize, all: &mut [f32], add: bool) {
        for_each_chunk(all, PIXELS * channels * self.groups, |i, all| {
            let part = part[i * PIXELS * channels..].chunks_exact(channels);
            for (all, part) in all.chunks_exact_mut(channels * self.groups).zip(part) {
                let all = &mut all[group * channels..][..channels];
                put(all, part.iter().copied(), add);
            }
        });
    }
}
