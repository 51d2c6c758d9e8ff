//! Batch normalization on a GPU, with what is added to it and its ReLU: three kernels in each direction.

use super::memory::{Block, Floats};
use super::operation::{At, Grad, Operation};
use super::stream::{Argument, Stream, launch};
use super::tape::with_memory_of;
use crate::norm::{EPS, MOMENTUM, Norm};
use candle_core::Result;
use candle_core::cuda_backend::cudarc::driver::DeviceRepr;

/// Threads of a block that sums rows.
const THREADS: usize = 256;
/// About as many blocks as keep a GPU busy.
const BLOCKS: usize = 512;

/// What each channel is normalized with, as the kernels see it.
#[derive(Clone, Copy)]
#[repr(C)]
struct Channels {
    mean: u64,
    inv_std: u64,
    weight: u64,
    bias: u64,
}

// Safety: four addresses, as the kernels' struct.
unsafe impl DeviceRepr for Channels {}

impl Argument for Channels {
    type Raw = Self;

    fn raw(&self) -> Result<Self> {
        Ok(*self)
    }
}

/// How rows of channels are cut into blocks of threads, by the shape alone.
struct Cut {
    grid: (u32, u32, u32),
    block: (u32, u32, u32),
    rows_of_a_block: usize,
    /// Blocks of rows.
    parts: usize,
}

impl Cut {
    fn new(rows: usize, channels: usize, vector: usize) -> Self {
        let side_by_side = (channels / vector).next_power_of_two().min(32);
        let in_depth = THREADS / side_by_side;
        let across = channels.div_ceil(vector * side_by_side);
        let rows_of_a_block = rows.div_ceil((BLOCKS / across).max(1)).max(in_depth);
        let parts = rows.div_ceil(rows_of_a_block);
        Self {
            grid: (across as u32, parts as u32, 1),
            block: (side_by_side as u32, in_depth as u32, 1),
            rows_of_a_block,
            parts,
        }
    }
}

impl Norm {
    /// Channels that a thread takes at a time: four, where they begin at a multiple of 16 bytes everywhere.
    fn vector(&self, places: &[Floats]) -> usize {
        let aligned = places.iter().all(|floats| floats.are_aligned());
        match aligned && self.channels.is_multiple_of(4) {
            true => 4,
            false => 1,
        }
    }

    fn channels(&self, mean: Floats, inv_std: Floats, x: &[Floats]) -> Channels {
        Channels {
            mean: mean.address,
            inv_std: inv_std.address,
            weight: x[1].address,
            bias: x[2].address,
        }
    }

    /// Writes the mean and 1 / √(variance + ε) of each channel.
    fn write_statistics(
        &self,
        stream: &Stream,
        x: &[Floats],
        mean: Floats,
        inv_std: Floats,
    ) -> Result<()> {
        let (c, eps) = (self.channels, EPS as f32);
        let [running_mean, running_var] = &self.running;
        if !self.train {
            return with_memory_of(running_mean, stream, |running_mean| {
                with_memory_of(running_var, stream, |running_var| {
                    let name = "norm_running";
                    launch!(stream, name, elements c; c, running_mean, running_var, eps, mean, inv_std)
                })
            });
        }
        let (shift, x) = (self.shift(x), x[0]);
        let vector = self.vector(&[x]);
        let cut = Cut::new(self.count, c, vector);
        let partial = Block::new(stream, cut.parts * 2 * c)?;
        let (partial, rows) = (partial.floats(), self.count);
        let name = pick(vector, ["norm_moments1", "norm_moments4"]);
        launch!(stream, name, cut.grid, cut.block; x, partial, rows, c, cut.rows_of_a_block)?;
        with_memory_of(running_mean, stream, |running_mean| {
            with_memory_of(running_var, stream, |running_var| {
                launch!(stream, "norm_statistics", (c.div_ceil(32) as u32, 1, 1), (32, 32, 1);
                    x, partial, cut.parts, rows, c, eps, MOMENTUM as f32, shift, mean, inv_std,
                    running_mean, running_var)
            })
        })
    }
}

impl Operation for Norm {
    fn forward(&self, stream: &Stream, x: &[Floats], y: Floats, _keep: bool) -> Result<Vec<Block>> {
        let c = self.channels;
        let (mean, inv_std) = (Block::new(stream, c)?, Block::new(stream, c)?);
        self.write_statistics(stream, x, mean.floats(), inv_std.floats())?;
        let channels = self.channels(mean.floats(), inv_std.floats(), x);
        let vector = self.vector(&[x, &[y]].concat());
        let (n, other) = (y.len / vector, self.shortcut(x));
        let name = pick(vector, ["norm_forward1", "norm_forward4"]);
        launch!(stream, name, elements n; n, x[0], other, y, channels, c, self.relu)?;
        Ok(vec![mean, inv_std])
    }

    fn backward(&self, stream: &Stream, at: At<'_>, dy: Block, dx: &mut [Grad]) -> Result<()> {
        let (c, rows, x, d) = (self.channels, self.count, at.x[0], dy.floats());
        let (mean, inv_std) = (at.kept[0].floats(), at.kept[1].floats());
        let channels = self.channels(mean, inv_std, at.x);
        // the shortcut's gradient is the one behind the ReLU, of which nothing is left after that
        let masked = (self.relu && self.shortcut).then_some(at.y);
        let relu = self.relu && masked.is_none();
        let vector = self.vector(&[at.x, &[at.y, d]].concat());
        let cut = Cut::new(rows, c, vector);
        let partial = Block::new(stream, cut.parts * 2 * c)?;
        let name = pick(vector, ["norm_sums1", "norm_sums4"]);
        launch!(stream, name, cut.grid, cut.block;
            x, masked, d, channels, partial.floats(), rows, c, cut.rows_of_a_block, relu)?;
        let (shift, stretch) = (Block::new(stream, c)?, Block::new(stream, c)?);
        let (shift, stretch) = (shift.floats(), stretch.floats());
        let [(dw, add_dw), (db, add_db)] =
            [wanted(stream, &mut dx[1])?, wanted(stream, &mut dx[2])?];
        let share = if self.train { 1. / rows as f32 } else { 0. };
        launch!(stream, "norm_combine", (c.div_ceil(32) as u32, 1, 1), (32, 32, 1);
            partial.floats(), cut.parts, c, inv_std, share, shift, stretch, dw, add_dw, db, add_db)?;
        if let Some(shift) = dx.last_mut().filter(|grad| self.shift && grad.wanted()) {
            shift.zero(stream)?;
        }
        let shortcut = self.shortcut && dx[3].wanted();
        if dx[0].wanted() {
            // in place where dy is of no more use
            let in_place = !shortcut && matches!(dx[0], Grad::Empty(_));
            let (to, add) = match in_place {
                true => (d, false),
                false => dx[0].target(stream)?,
            };
            let vector = self.vector(&[at.x, &[d, to]].concat());
            let name = pick(vector, ["norm_backward1", "norm_backward4"]);
            let n = d.len / vector;
            launch!(stream, name, elements n;
                n, x, d, to, channels, shift, stretch, c, relu, add)?;
            if in_place {
                return dx[0].give(stream, dy);
            }
        }
        match shortcut {
            true => dx[3].give(stream, dy),
            false => Ok(()),
        }
    }
}

/// One of two kernels, by the channels that a thread takes.
fn pick(vector: usize, [one, four]: [&'static str; 2]) -> &'static str {
    if vector == 4 { four } else { one }
}

fn wanted(stream: &Stream, grad: &mut Grad) -> Result<(Option<Floats>, bool)> {
    if !grad.wanted() {
        return Ok((None, false));
    }
    let (to, add) = grad.target(stream)?;
    Ok((Some(to), add))
}
