//! Transposed convolution: the gradient of a convolution's input, as an operation. On the CPU it has the convolution's kernels.

use crate::cpu::buffer::Buffer;
use crate::cpu::conv::ConvolutionKernel;
use crate::cpu::gradient::{At, CHUNK, Grad, Pass};
use crate::cpu::im2col::TILE;
use crate::cpu::sums::column_sums;
use crate::cpu::threads::for_each_chunk;
use crate::descriptors::args;
use crate::descriptors::convolution::Geometry;
use crate::graph::value::{Value, weighted};
use crate::kernel::{Cpu, Kernel, SelfContained};
use candle_core::{Result, Tensor, bail};

const OP: &str = "conv_transpose2d";

impl Value {
    /// Transposed convolution: (B, H, W, I), `weight` (I, O, KH, KW), `bias` (O,) → (B, H', W', O) with H' = (H − 1) · stride −
    /// 2 · padding + KH + `output_padding`. Each pixel adds the kernel, times its value, to the result. In PyTorch:
    /// `F.conv_transpose2d`, there in (B, I, H, W).
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let x = Tensor::new(&[1f32, 2.], &Device::Cpu)?.reshape((1, 1, 2, 1))?;
    /// let weight = Tensor::new(&[1f32, 10., 100.], &Device::Cpu)?.reshape((1, 1, 1, 3))?;
    /// let y = Value::new(&x)?.conv_transpose2d(&weight, None, 2, 0, 0)?;
    /// assert_eq!(y.eval()?.flatten_all()?.to_vec1::<f32>()?, [1., 10., 102., 20., 200.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where a tensor is not f32, the sizes do not match, the result has no pixel, or `output_padding` is not smaller than
    /// `stride`.
    pub fn conv_transpose2d(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        stride: usize,
        padding: usize,
        output_padding: usize,
    ) -> Result<Self> {
        let steps = Steps {
            stride,
            padding,
            output_padding,
        };
        let op = Transposed::new(self.dims(), weight.dims(), bias, steps)?;
        let g = &op.convolution;
        let dims = [g.batch, g.height, g.width, g.channels];
        let others = weighted(weight, bias);
        self.self_contained(OP, op, &others, &dims)
    }
}

struct Steps {
    stride: usize,
    padding: usize,
    output_padding: usize,
}

impl Steps {
    /// Pixels of the result along one axis.
    fn size(&self, pixels: usize, kernel: usize) -> Result<usize> {
        let Self {
            stride,
            padding,
            output_padding,
        } = self;
        if kernel == 0 || output_padding >= stride {
            bail!(
                "{OP}: kernel {kernel} must be at least 1, and output_padding {output_padding} smaller than stride {stride}"
            )
        }
        let all = pixels
            .checked_sub(1)
            .map(|n| n * stride + kernel + output_padding);
        match all.and_then(|all| all.checked_sub(2 * padding)) {
            Some(size) if size > 0 => Ok(size),
            _ => bail!(
                "{OP}: {pixels} pixels of x with kernel {kernel}, stride {stride} and padding {padding} give no pixel"
            ),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Transposed {
    /// The convolution from y to x.
    convolution: Geometry,
}

impl Transposed {
    /// From the shapes of x (B, H, W, I) and weight (I, O, KH, KW).
    fn new(x: &[usize], weight: &[usize], bias: Option<&Tensor>, steps: Steps) -> Result<Self> {
        let [batch, height, width, inputs] = args::dims4(OP, "(B, H, W, I)", x)?;
        let &[expected, outputs, kernel_height, kernel_width] = weight else {
            bail!("{OP}: weight has shape {weight:?}, expected (I, O, KH, KW)")
        };
        if inputs != expected || inputs == 0 || outputs == 0 {
            bail!(
                "{OP}: x has {inputs} channels, weight {weight:?}; x is (B, H, W, I), weight (I, O, KH, KW) of at least 1"
            )
        }
        let of_bias = bias.map(Tensor::dims);
        args::bias(OP, of_bias, outputs, "output channels of weight")?;
        Ok(Self {
            convolution: Geometry {
                batch,
                height: steps.size(height, kernel_height)?,
                width: steps.size(width, kernel_width)?,
                channels: outputs,
                out_height: height,
                out_width: width,
                out_channels: inputs,
                kernel_height,
                kernel_width,
                stride: steps.stride,
                padding: steps.padding,
            },
        })
    }

    fn kernel(&self) -> ConvolutionKernel {
        ConvolutionKernel::new(self.convolution, false)
    }
}

impl SelfContained for Transposed {
    /// x with zeros between its pixels and around them, and then a convolution with the flipped kernel: a sum over its
    /// positions.
    fn with_candle(&self, x: &[Tensor]) -> Result<Tensor> {
        let g = &self.convolution;
        let (b, h, w, i) = x[0].dims4()?;
        let between = g.stride - 1;
        let spread = x[0]
            .reshape((b, h, 1, w, i))?
            .pad_with_zeros(2, 0, between)?
            .reshape((b, h * g.stride, w, 1, i))?
            .pad_with_zeros(3, 0, between)?
            .reshape((b, h * g.stride, w * g.stride, i))?;
        // more zeros at the end than any position needs
        let padded = spread
            .pad_with_zeros(1, g.kernel_height - 1, g.kernel_height + g.height)?
            .pad_with_zeros(2, g.kernel_width - 1, g.kernel_width + g.width)?;
        let mut y = Tensor::zeros(
            (b * g.height * g.width, g.channels),
            x[0].dtype(),
            x[0].device(),
        )?;
        for tap in 0..g.kernel_area() {
            let row = tap / g.kernel_width;
            let column = tap % g.kernel_width;
            let seen = padded
                .narrow(1, g.padding + g.kernel_height - 1 - row, g.height)?
                .narrow(2, g.padding + g.kernel_width - 1 - column, g.width)?
                .reshape((b * g.height * g.width, i))?;
            let weight = x[1].narrow(2, row, 1)?.narrow(3, column, 1)?;
            y = (y + seen.matmul(&weight.reshape((i, g.channels))?)?)?;
        }
        let y = y.reshape((b, g.height, g.width, g.channels))?;
        match x.get(2) {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}

impl Kernel<Cpu> for Transposed {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let bias = x.get(2);
        if let Some(bias) = bias {
            for_each_chunk(y, CHUNK.next_multiple_of(bias.len()), |_, y| {
                for pixel in y.chunks_exact_mut(bias.len()) {
                    pixel.copy_from_slice(bias);
                }
            });
        }
        self.kernel().backward_x(x[1], x[0], y, bias.is_some());
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, at: At<'_, '_>, dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        if dx[0].wanted() {
            let mut of_x = Buffer::new(at.x[0].len());
            self.kernel().output(&dy, at.x[1], None, &mut of_x);
            dx[0].give(of_x);
        }
        if let Some((to, add)) = dx[1].target() {
            self.kernel().backward_weight(&dy, at.x[0], to, add);
        }
        if let Some(db) = dx.get_mut(2) {
            db.put(column_sums(&dy, self.convolution.channels, TILE).into_iter());
        }
        Ok(())
    }
}
