//! Convolution on the CPU: im2col and matrix products, tile by tile. It knows no dilation and no
//! groups, and it never looks at the thread budget to decide how to cut the work.

use crate::gemm::{Matrix, multiply};
use crate::im2col::{Geometry, with_scratch};
use crate::storage::{read, slice, tensor};
use crate::sums::{add_column_sums, sum_of_chunks};
use crate::threads::for_each_chunk;
use crate::{args, plain};
use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor};
use std::ops::Range;

/// Partial sums of the weight's gradient, added in order: the most threads that it can use.
const GROUPS: usize = 4;

/// Two-dimensional cross-correlation, as every framework's convolution is:
/// `x` (B, H, W, I), `weight` (O, I, KH, KW), `bias` (O,) → (B, OH, OW, O), with
/// OH = ⌊(H + 2·padding − KH) / stride⌋ + 1, and OW likewise.
///
/// An `x` that nobody tracks, such as the images, gets no gradient and costs none. In the book:
/// `F.conv2d(X, weight=params[0], bias=params[1])`, there in (B, I, H, W).
///
/// # Errors
/// Where a tensor is not f32, the channels or the bias do not match, or the kernel does not fit.
///
/// ```
/// use candle_core::{Device, Tensor};
/// // the book's cross-correlation: 0·0 + 1·1 + 3·2 + 4·3 = 19
/// let x = Tensor::arange(0f32, 9., &Device::Cpu)?.reshape((1, 3, 3, 1))?;
/// let weight = Tensor::arange(0f32, 4., &Device::Cpu)?.reshape((1, 1, 2, 2))?;
/// let y = functional::conv2d(&x, &weight, None, 1, 0)?;
/// assert_eq!(y.dims(), [1, 2, 2, 1]);
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [19., 25., 37., 43.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn conv2d(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    stride: usize,
    padding: usize,
) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return plain::conv2d(x, weight, bias, stride, padding);
    }
    let args = Arguments::new(x, weight, bias, stride, padding)?;
    let (x, weight) = (args.x.contiguous()?, args.weight.contiguous()?);
    let op = Conv2d(args.geometry);
    match args.bias {
        Some(bias) => x.apply_op3(&weight, &bias.contiguous()?, op),
        None => x.apply_op2(&weight, op),
    }
}

/// What [`conv2d`] and its plain twin were given, checked.
pub(crate) struct Arguments {
    pub(crate) x: Tensor,
    pub(crate) weight: Tensor,
    pub(crate) bias: Option<Tensor>,
    pub(crate) geometry: Geometry,
}

impl Arguments {
    pub(crate) fn new(
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        stride: usize,
        padding: usize,
    ) -> Result<Self> {
        let x = args::float("conv2d", "x", x)?;
        let weight = args::float("conv2d", "weight", weight)?;
        let bias = bias.map(|b| args::float("conv2d", "bias", b)).transpose()?;
        let geometry = Geometry::new(&x, &weight, stride, padding)?;
        if let Some(bias) = &bias {
            let of = "output channels of weight";
            args::vector("conv2d", "bias", bias, geometry.out_channels, of)?;
        }
        Ok(Self {
            x,
            weight,
            bias,
            geometry,
        })
    }
}

/// The three products.
impl Geometry {
    fn forward(&self, x: &[f32], weight: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
        let weight = self.pack(weight);
        let weight = Matrix::new(&weight, self.taps(), self.out_channels);
        let mut y = vec![0.; self.lines() * self.out_width * self.out_channels];
        let (step, line) = (self.lines_of_a_tile(), self.out_width * self.out_channels);
        for_each_chunk(&mut y, step * line, |tile, y| {
            let first = tile * step;
            if let Some(bias) = bias {
                for pixel in y.chunks_exact_mut(bias.len()) {
                    pixel.copy_from_slice(bias);
                }
            }
            self.with_columns(x, first..first + y.len() / line, |columns| {
                multiply(y, bias.is_some(), columns, weight)
            });
        });
        y
    }

    fn backward_x(&self, weight: &[f32], dy: &[f32]) -> Vec<f32> {
        let weight = self.pack(weight);
        let weight = Matrix::new(&weight, self.taps(), self.out_channels).t();
        // whole samples, because neighbouring lines of a sample add to the same inputs
        let samples = self.samples_of_a_block();
        let lines = samples * self.out_height;
        let block = lines * self.out_width * self.out_channels;
        let mut dx = vec![0.; self.batch * self.sample()];
        for_each_chunk(&mut dx, samples * self.sample(), |i, dx| {
            let dy = &dy[i * block..];
            let lines = dx.len() / self.sample() * self.out_height;
            for tile in self.tiles(0..lines) {
                self.tile_backward_x(weight, dy, tile, dx);
            }
        });
        dx
    }

    fn tile_backward_x(&self, weight: Matrix, dy: &[f32], tile: Range<usize>, dx: &mut [f32]) {
        let (taps, rows) = (self.taps(), tile.len() * self.out_width);
        let dy = self.pixels(dy, &tile);
        if self.pointwise() {
            let dx = &mut dx[tile.start * self.out_width * taps..][..rows * taps];
            return multiply(dx, false, dy, weight);
        }
        with_scratch(rows * taps, |columns| {
            multiply(columns, false, dy, weight);
            self.col2im(columns, tile, dx);
        });
    }

    /// The gradients of weight and bias in one vector, packed: a row of O for each tap, and a last
    /// row for the bias.
    fn backward_weight(&self, x: &[f32], dy: &[f32]) -> Vec<f32> {
        let size = (self.taps() + 1) * self.out_channels;
        let step = self.lines_of_a_tile();
        let tiles = self.lines().div_ceil(step);
        let lines = tiles.div_ceil(GROUPS) * step;
        let mut groups = vec![0.; self.lines().div_ceil(lines.max(1)) * size];
        for_each_chunk(&mut groups, size, |i, group| {
            let end = ((i + 1) * lines).min(self.lines());
            let (dw, db) = group.split_at_mut(size - self.out_channels);
            for tile in self.tiles(i * lines..end) {
                self.tile_backward_weight(x, dy, tile, dw, db);
            }
        });
        sum_of_chunks(&groups, size)
    }

    fn tile_backward_weight(
        &self,
        x: &[f32],
        dy: &[f32],
        tile: Range<usize>,
        dw: &mut [f32],
        db: &mut [f32],
    ) {
        let pixels = tile.start * self.out_width..tile.end * self.out_width;
        add_column_sums(
            &dy[pixels.start * self.out_channels..pixels.end * self.out_channels],
            db,
        );
        let dy = self.pixels(dy, &tile);
        self.with_columns(x, tile, |columns| multiply(dw, true, columns.t(), dy));
    }
}

struct Conv2d(Geometry);

impl Conv2d {
    fn forward(&self, x: &[f32], weight: &[f32], bias: Option<&[f32]>) -> (CpuStorage, Shape) {
        let g = &self.0;
        let y = g.forward(x, weight, bias);
        let shape = (g.batch, g.out_height, g.out_width, g.out_channels);
        (CpuStorage::F32(y), shape.into())
    }

    fn dx(&self, x: &Tensor, weight: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        if !x.track_op() {
            return Ok(None);
        }
        let dx = read([weight, dy], |[weight, dy]| self.0.backward_x(weight, dy))?;
        tensor(dx, x.shape()).map(Some)
    }

    /// The gradients of weight and bias.
    fn dw_db(&self, x: &Tensor, dy: &Tensor) -> Result<(Tensor, Tensor)> {
        let g = &self.0;
        let packed = read([x, dy], |[x, dy]| g.backward_weight(x, dy))?;
        let (dw, db) = packed.split_at(packed.len() - g.out_channels);
        let dw = tensor(g.unpack(dw), g.weight_shape())?;
        Ok((dw, tensor(db.to_vec(), g.out_channels)?))
    }
}

impl CustomOp2 for Conv2d {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, weight) = (slice(x, x_layout)?, slice(weight, weight_layout)?);
        Ok(self.forward(x, weight, None))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let dx = self.dx(x, weight, dy)?;
        let dw = weight.track_op().then(|| self.dw_db(x, dy)).transpose()?;
        Ok((dx, dw.map(|(dw, _)| dw)))
    }
}

impl CustomOp3 for Conv2d {
    fn name(&self) -> &'static str {
        "conv2d-bias"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, weight) = (slice(x, x_layout)?, slice(weight, weight_layout)?);
        Ok(self.forward(x, weight, Some(slice(bias, bias_layout)?)))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let dx = self.dx(x, weight, dy)?;
        if !weight.track_op() && !bias.track_op() {
            return Ok((dx, None, None));
        }
        let (dw, db) = self.dw_db(x, dy)?;
        let (dw, db) = (
            weight.track_op().then_some(dw),
            bias.track_op().then_some(db),
        );
        Ok((dx, dw, db))
    }
}
