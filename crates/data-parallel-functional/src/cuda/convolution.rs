//! Convolutions on a GPU, with bias, ReLU and pooling behind them, in NHWC: by cuDNN, by im2col, or by a kernel for
//! one channel.
//!
//! Before the first convolution of a pass, one launch for each type brings all weights to the order of (O, KH, KW, I)
//! and to the type of x. Only a weight that the pass itself computes is repacked at its own convolution. Backward
//! brings the gradients back one by one, because their sums begin while backward goes on.

use super::elementwise::{bias_relu, column_sums, mask, transpose};
use super::floats::{Element, Floats};
use super::gradient::{At, Cuda, Grad, Pass};
use super::im2col::Im2col;
use super::launch::{Address, THREADS, Table, launch};
use super::memory::Block;
use super::one_channel::OneChannel;
use super::stream::Stream;
use crate::descriptors::convolution::{Convolution, Geometry};
use crate::descriptors::pool::Windows;
use crate::kernel::Kernel;
use candle_core::Result;

impl Kernel<Cuda> for Convolution {
    fn forward(&self, pass: &Pass, x: &[Floats], y: Floats) -> Result<Vec<Block>> {
        let stream = &*pass.stream;
        if let Some(one_channel) = OneChannel::new(self) {
            one_channel.forward(stream, x, y)?;
            return Ok(vec![]);
        }
        let g = &self.geometry;
        let bias = x.get(2).copied();
        let input = Input::new(stream, x[0])?;
        let weight = Input::new(stream, x[1])?;
        if self.pool == 1 {
            convolve(stream, g, input.floats, weight.floats, y)?;
            bias_relu(stream, y, bias, g.out_channels, self.relu)?;
            return Ok(vec![]);
        }
        let z = Block::of(y.element, stream, g.out_dims().iter().product())?;
        let of_z = z.floats();
        let windows = self.windows()?;
        let relu = self.relu;
        convolve(stream, g, input.floats, weight.floats, of_z)?;
        let name = y.kernel("epilogue");
        launch!(stream, name, elements y.len; y.len, of_z, bias, y, windows, relu)?;
        Ok(vec![z])
    }

    fn backward(&self, pass: &Pass, at: At<'_, '_>, dy: Block, dx: &mut [Grad<'_>]) -> Result<()> {
        let stream = &*pass.stream;
        let g = &self.geometry;
        let x = at.x;
        if let Some(one_channel) = OneChannel::new(self) {
            one_channel.backward(stream, x, dy.floats(), dx)?;
            return self.image_gradient(stream, x, dy, &mut dx[0]);
        }
        let dz = self.behind(stream, at, dy)?;
        if let Some(db) = dx.get_mut(2) {
            let dz = dz.floats();
            let channels = g.out_channels;
            db.write(stream, |to, add| column_sums(stream, dz, channels, to, add))?;
        }
        self.input_gradient(stream, x[1], dz.floats(), &mut dx[0])?;
        self.weight_gradient(stream, x[0], dz.floats(), &mut dx[1])
    }

    fn packing(&self, of_x: Element) -> Option<Packing> {
        let is_read_as_it_is = !is_packed(&self.geometry) && of_x == Element::F32;
        if is_read_as_it_is || OneChannel::new(self).is_some() {
            return None;
        }
        Some(Packing {
            element: of_x,
            rows: self.geometry.channels,
            columns: self.geometry.kernel_area(),
        })
    }
}

/// A weight of `element`, of which each sample, a matrix of rows × columns, is transposed.
pub(crate) struct Packing {
    element: Element,
    rows: usize,
    columns: usize,
}

/// Rows of an entry of the table, unless a sample has more.
const OF_AN_ENTRY: usize = 1 << 13;

/// Repacks weights, in one launch for each type.
pub(crate) fn pack(stream: &Stream, weights: &[(Floats, Packing)]) -> Result<Vec<Block>> {
    let block =
        |(weight, packing): &(Floats, Packing)| Block::of(packing.element, stream, weight.len);
    let blocks = weights.iter().map(block).collect::<Result<Vec<_>>>()?;
    for element in [Element::F32, Element::Bf16] {
        let mut table = Table::new();
        for ((weight, packing), block) in weights.iter().zip(&blocks) {
            if packing.element != element || weight.len == 0 {
                continue;
            }
            let Packing { rows, columns, .. } = *packing;
            let samples = weight.len / (rows * columns);
            let of_an_entry = (OF_AN_ENTRY / rows).max(1);
            for first in (0..samples).step_by(of_an_entry) {
                let count = of_an_entry.min(samples - first);
                let part = |of: Floats| of.at(first * rows * columns, count * rows * columns);
                let [from, to] = [*weight, block.floats()].map(|floats| part(floats).address);
                let sizes = [count * rows, rows, columns].map(|n| n as u64);
                table.push([from, to, sizes[0], sizes[1], sizes[2]], count * rows);
            }
        }
        if let Some(grid) = table.grid() {
            stream.with_table(table.numbers, |table| {
                launch!(stream, element.kernel("pack"), grid, (THREADS, 1, 1); Address(table))
            })?;
        }
    }
    Ok(blocks)
}

/// `y` from `x` and the packed `weight`.
fn convolve(stream: &Stream, g: &Geometry, x: Floats, weight: Floats, y: Floats) -> Result<()> {
    match Im2col::new(g, x.element) {
        Some(im2col) => im2col.forward(stream, x, weight, y),
        None => stream.cudnn().forward(g, x, weight, y),
    }
}

/// True if the kernels read a weight in another order than (O, I, KH, KW).
fn is_packed(g: &Geometry) -> bool {
    g.channels > 1 && g.square_kernel() != Some(1)
}

impl Convolution {
    /// The pooling's windows on the convolution's output.
    fn windows(&self) -> Result<Windows> {
        Windows::new("conv2d", &self.geometry.out_dims(), self.pool, self.pool)
    }

    /// The gradient of the convolution's own output, before bias, ReLU and pooling.
    fn behind(&self, stream: &Stream, at: At<'_, '_>, dy: Block) -> Result<Block> {
        let Some(z) = at.saved.first() else {
            if self.relu {
                mask(stream, at.y, dy.floats())?;
            }
            return Ok(dy);
        };
        self.through_epilogue(stream, z.floats(), at.x.get(2).copied(), dy.floats())
    }

    /// dz from the convolution's own output z and dy.
    fn through_epilogue(
        &self,
        stream: &Stream,
        z: Floats,
        bias: Option<Floats>,
        dy: Floats,
    ) -> Result<Block> {
        let dz = Block::of(z.element, stream, z.len)?;
        let to = dz.floats();
        let windows = self.windows()?;
        let relu = self.relu;
        let name = z.kernel("epilogue_backward");
        launch!(stream, name, elements z.len; z.len, z, bias, dy, to, windows, relu)?;
        Ok(dz)
    }

    fn input_gradient(
        &self,
        stream: &Stream,
        weight: Floats,
        dz: Floats,
        dx: &mut Grad,
    ) -> Result<()> {
        let Some((to, add)) = dx.target(stream)? else {
            return Ok(());
        };
        let g = &self.geometry;
        let weight = Input::new(stream, weight)?;
        if let Some(im2col) = Im2col::new(g, to.element) {
            return im2col.backward_x(stream, weight.floats, dz, to, add);
        }
        if to.are_aligned() && !add {
            return stream.cudnn().backward_x(g, weight.floats, dz, to);
        }
        let part = Block::of(to.element, stream, to.len)?;
        let of_part = part.floats();
        let mut cudnn = stream.cudnn();
        cudnn.backward_x(g, weight.floats, dz, of_part)?;
        stream.put(of_part, to, add)
    }

    fn weight_gradient(&self, stream: &Stream, x: Floats, dz: Floats, dw: &mut Grad) -> Result<()> {
        let Some((to, add)) = dw.target(stream)? else {
            return Ok(());
        };
        let g = &self.geometry;
        if g.batch == 0 {
            return if add { Ok(()) } else { stream.fill(to, 0.) };
        }
        let x = Input::new(stream, x)?;
        let compute = |dw| match Im2col::new(g, dz.element) {
            Some(im2col) => im2col.backward_weight(stream, x.floats, dz, dw),
            None => stream.cudnn().backward_weight(g, x.floats, dz, dw),
        };
        if to.are_aligned() && !is_packed(g) && to.element == dz.element && !add {
            return compute(to);
        }
        let part = Block::of(dz.element, stream, to.len)?;
        let of_part = part.floats();
        compute(of_part)?;
        if is_packed(g) {
            let sizes = [g.kernel_area(), g.channels];
            transpose(stream, of_part, to, sizes, add)
        } else {
            stream.put(of_part, to, add)
        }
    }

    /// The gradient of images of one channel, in f32. Usual training does not need it.
    fn image_gradient(
        &self,
        stream: &Stream,
        x: &[Floats],
        dy: Block,
        dx: &mut Grad,
    ) -> Result<()> {
        if !dx.wanted() {
            return Ok(());
        }
        let g = &self.geometry;
        let input = Input::new(stream, x[0])?;
        let weight = Input::new(stream, x[1])?;
        let z = Block::new(stream, g.out_dims().iter().product())?;
        convolve(stream, g, input.floats, weight.floats, z.floats())?;
        let dy = dy.widened(stream)?;
        let dz = self.through_epilogue(stream, z.floats(), x.get(2).copied(), dy.floats())?;
        self.input_gradient(stream, weight.floats, dz.floats(), dx)
    }
}

/// An input of cuDNN, at a multiple of 16 bytes: a copy if the original begins elsewhere.
struct Input {
    _own: Option<Block>,
    floats: Floats,
}

impl Input {
    fn new(stream: &Stream, floats: Floats) -> Result<Self> {
        if floats.are_aligned() {
            return Ok(Self { _own: None, floats });
        }
        let own = Block::of(floats.element, stream, floats.len)?;
        stream.copy(floats, own.floats())?;
        Ok(Self {
            floats: own.floats(),
            _own: Some(own),
        })
    }
}
