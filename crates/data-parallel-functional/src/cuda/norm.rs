//! Batch normalization on a GPU, with what is added to it and its ReLU: three kernels in each direction.
//! Where statistics are shared, the host combines them, and waits for the GPU.

use super::floats::{Element, Floats};
use super::gradient::{At, Cuda, Grad, Pass};
use super::launch::{THREADS, launch};
use super::memory::Block;
use super::stream::Stream;
use super::tensors::{memory_of, with_floats};
use crate::descriptors::norm::Norm;
use crate::kernel::Kernel;
use crate::statistics::{
    Moments, Summation, Sums, batch_statistics, check_count, count_batch,
    gradient_through_statistics,
};
use candle_core::{Error, Result, Tensor, Var};

/// About as many blocks as keep a GPU busy.
const BLOCKS: usize = 512;

/// Rows of channels, cut into blocks of threads by the shape alone.
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
        let in_depth = THREADS as usize / side_by_side;
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
    /// Channels that a thread takes at a time: at most 16 bytes of x, where they begin at a multiple of 16 bytes
    /// everywhere.
    fn vector(&self, x: Floats, others: &[Floats]) -> usize {
        let aligned = x.are_aligned() && others.iter().all(|floats| floats.are_aligned());
        match (aligned, x.element) {
            (true, Element::Bf16) if self.channels.is_multiple_of(8) => 8,
            (true, _) if self.channels.is_multiple_of(4) => 4,
            _ => 1,
        }
    }

    /// Writes the mean and 1 / √(variance + ε) of each channel.
    fn write_statistics(
        &self,
        pass: &Pass,
        x: &[Floats],
        mean: Floats,
        inv_std: Floats,
    ) -> Result<()> {
        let stream = &*pass.stream;
        let c = self.channels;
        let eps = self.how.eps;
        let momentum = self.how.momentum as f32;
        let [running_mean, running_var] = &self.running;
        if !self.train {
            if let Some(norms) = &pass.norms {
                norms.note_frozen();
            }
            return launch!(stream, "norm_running", elements c; c, memory_of(running_mean, stream)?,
                memory_of(running_var, stream)?, eps, mean, inv_std);
        }
        if let Some(norms) = &pass.norms {
            return self.write_shared_statistics(&**norms, pass, x, mean, inv_std);
        }
        check_count(self.count)?;
        let shift = self.shift(x);
        let x = x[0];
        let rows = self.count;
        let name = x.kernel("norm_statistics");
        let (cut, partial) = self.moments(stream, x)?;
        let partial = partial.floats();
        let moved = |running: &Var| {
            if pass.keep {
                Ok(running.as_tensor().clone())
            } else {
                // only a pass with a backward pass moves them
                running.copy()
            }
        };
        let [running_mean, running_var] = [moved(running_mean)?, moved(running_var)?];
        launch!(stream, name, (c.div_ceil(32) as u32, 1, 1), (32, 32, 1);
            x, partial, cut.parts, rows, c, eps, momentum, shift, mean, inv_std,
            memory_of(&running_mean, stream)?, memory_of(&running_var, stream)?)?;
        if pass.keep { count_batch(self) } else { Ok(()) }
    }

    /// The sums of x − x₀ and of their squares by blocks of rows, where x₀ is the first row.
    fn moments(&self, stream: &Stream, x: Floats) -> Result<(Cut, Block)> {
        let c = self.channels;
        let rows = self.count;
        let vector = self.vector(x, &[]);
        let cut = Cut::new(rows, c, vector);
        let partial = Block::new(stream, cut.parts * 2 * c)?;
        let name = x.kernel(pick(
            vector,
            ["norm_moments1", "norm_moments4", "norm_moments8"],
        ));
        if rows > 0 {
            launch!(stream, name, cut.grid, cut.block;
                x, partial.floats(), rows, c, cut.rows_of_a_block)?;
        }
        Ok((cut, partial))
    }

    /// Like [`write_statistics`](Self::write_statistics), of a batch of which others have parts.
    fn write_shared_statistics(
        &self,
        norms: &dyn Summation,
        pass: &Pass,
        x: &[Floats],
        mean: Floats,
        inv_std: Floats,
    ) -> Result<()> {
        let stream = &*pass.stream;
        let c = self.channels;
        let n = self.count.max(1) as f64;
        let (_, partial) = self.moments(stream, x[0])?;
        let [s, q] = total(&read(stream, partial.floats())?, c);
        let first = match self.count {
            0 => vec![0.; c], // nothing is here
            _ => read(stream, x[0].at(0, c))?,
        };
        let of_mean = first.iter().zip(&s).map(|(x, s)| f64::from(*x) + s / n);
        let around = q.iter().zip(&s).map(|(q, s)| q - s * s / n);
        let here = Moments {
            count: self.count,
            mean: of_mean.collect(),
            squares: around.collect(),
        };
        let shift = self.shift(x).map(|shift| read(stream, shift)).transpose()?;
        let of_batch = batch_statistics(self, Some(norms), pass.keep, here, shift.as_deref())?;
        self.write(stream, of_batch, [mean, inv_std])
    }

    /// Writes what a shift and a stretch of x change through statistics of which others have a part.
    fn write_shared_gradient(
        &self,
        norms: &dyn Summation,
        stream: &Stream,
        partial: Floats,
        inv_std: Floats,
        to: [Floats; 2],
    ) -> Result<()> {
        let here = Sums {
            count: self.count,
            of: total(&read(stream, partial)?, self.channels),
        };
        let changes =
            gradient_through_statistics(self, Some(norms), here, &read(stream, inv_std)?)?;
        self.write(stream, changes, to)
    }

    fn write(&self, stream: &Stream, from: [Vec<f32>; 2], to: [Floats; 2]) -> Result<()> {
        for (from, to) in from.into_iter().zip(to) {
            let from = Tensor::from_vec(from, self.channels, self.running[0].device())?;
            with_floats(&[&from], stream, |from| stream.copy(from[0], to))?;
        }
        Ok(())
    }
}

/// Numbers on the host, as f32, when the GPU has come so far.
fn read(stream: &Stream, floats: Floats) -> Result<Vec<f32>> {
    if floats.len == 0 {
        return Ok(Vec::new());
    }
    let copy = Block::new(stream, floats.len)?;
    stream.copy(floats, copy.floats())?;
    let copy = copy.into_slice(stream)?;
    stream.cuda().clone_dtoh(&copy).map_err(Error::wrap)
}

/// The two sums of each channel over all blocks of rows.
fn total(partial: &[f32], c: usize) -> [Vec<f64>; 2] {
    let column = |k: usize| partial.iter().skip(k).step_by(2 * c);
    let sum = |k: usize| column(k).map(|v| f64::from(*v)).sum();
    [0..c, c..2 * c].map(|of| of.map(sum).collect())
}

impl Kernel<Cuda> for Norm {
    fn forward(&self, pass: &Pass, x: &[Floats], y: Floats) -> Result<Vec<Block>> {
        let stream = &*pass.stream;
        let c = self.channels;
        let mean = Block::new(stream, c)?;
        let inv_std = Block::new(stream, c)?;
        self.write_statistics(pass, x, mean.floats(), inv_std.floats())?;
        // the four numbers that normalize each channel: a struct of the kernel's
        let channels = [mean.floats(), inv_std.floats(), x[1], x[2]];
        let vector = self.vector(y, x);
        let n = y.len / vector;
        let other = self.shortcut(x);
        let name = y.kernel(pick(
            vector,
            ["norm_forward1", "norm_forward4", "norm_forward8"],
        ));
        launch!(stream, name, elements n; n, x[0], other, y, channels, c, self.relu)?;
        Ok(vec![mean, inv_std])
    }

    fn backward(&self, pass: &Pass, at: At<'_, '_>, dy: Block, dx: &mut [Grad<'_>]) -> Result<()> {
        let stream = &*pass.stream;
        let c = self.channels;
        let rows = self.count;
        let x = at.x[0];
        let d = dy.floats();
        let mean = at.saved[0].floats();
        let inv_std = at.saved[1].floats();
        let channels = [mean, inv_std, at.x[1], at.x[2]]; // as in forward
        // the shortcut's gradient is the one behind the ReLU, of which nothing is left after that
        let masked = (self.relu && self.shortcut).then_some(at.y);
        let relu = self.relu && masked.is_none();
        let vector = self.vector(x, &[at.x, &[at.y, d]].concat());
        let cut = Cut::new(rows, c, vector);
        let partial = Block::new(stream, cut.parts * 2 * c)?;
        let name = d.kernel(pick(vector, ["norm_sums1", "norm_sums4", "norm_sums8"]));
        if rows > 0 {
            launch!(stream, name, cut.grid, cut.block;
                x, masked, d, channels, partial.floats(), rows, c, cut.rows_of_a_block, relu)?;
        }
        let memory = [Block::new(stream, c)?, Block::new(stream, c)?];
        let [shift, stretch] = memory.each_ref().map(Block::floats);
        let (dw, add_dw) = dx[1].target(stream)?.unzip();
        let (db, add_db) = dx[2].target(stream)?.unzip();
        let [add_dw, add_db] = [add_dw, add_db].map(Option::unwrap_or_default);
        // a shift of x changes nothing behind the norm
        let of_shift = match dx.last_mut().filter(|_| self.shift) {
            Some(of_shift) => of_shift.target(stream)?,
            None => None,
        };
        let zeros = of_shift.and_then(|(to, add)| (!add).then_some(to));
        let share = if self.train { 1. / rows as f32 } else { 0. };
        launch!(stream, "norm_combine", (c.div_ceil(32) as u32, 1, 1), (32, 32, 1);
            partial.floats(), cut.parts, c, inv_std, share, shift, stretch, dw, add_dw, db, add_db,
            zeros)?;
        if self.train
            && dx[0].wanted()
            && let Some(norms) = pass.norms.as_deref()
        {
            self.write_shared_gradient(norms, stream, partial.floats(), inv_std, [shift, stretch])?;
        }
        let shortcut = self.shortcut && dx[3].wanted();
        if dx[0].wanted() {
            // in place where dy is of no more use
            let in_place = !shortcut && matches!(dx[0], Grad::Empty(..));
            let (to, add) = if in_place {
                (d, false)
            } else {
                dx[0].target(stream)?.expect("it is wanted")
            };
            let vector = self.vector(x, &[at.x, &[d, to]].concat());
            let name = to.kernel(pick(
                vector,
                ["norm_backward1", "norm_backward4", "norm_backward8"],
            ));
            let n = d.len / vector;
            launch!(stream, name, elements n;
                n, x, d, to, channels, shift, stretch, c, relu, add)?;
            if in_place {
                return dx[0].give(stream, dy);
            }
        }
        if shortcut {
            dx[3].give(stream, dy)
        } else {
            Ok(())
        }
    }
}

/// One of three kernels, by the channels that a thread takes.
fn pick(vector: usize, [one, four, eight]: [&'static str; 3]) -> &'static str {
    match vector {
        8 => eight,
        4 => four,
        _ => one,
    }
}
