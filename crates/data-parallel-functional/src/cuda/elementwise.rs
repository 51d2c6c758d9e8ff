//! Launches of the kernels that several operations use: in elementwise.cu.

use super::floats::{Element, Floats};
use super::launch::{Address, THREADS, Table, launch};
use super::memory::Block;
use super::stream::Stream;
use super::tensors::{memory_of, with_floats};
use candle_core::{Result, Tensor, bail};

/// The most blocks of rows that are summed in parallel.
const PARTS: usize = 128;
/// The most rows that are summed up at once: a second kernel would take longer.
const FEW_ROWS: usize = 512;

/// Each sample, a matrix of rows × columns, transposed; to f32 where the types differ.
pub(crate) fn transpose(
    stream: &Stream,
    x: Floats,
    y: Floats,
    [rows, columns]: [usize; 2],
    add: bool,
) -> Result<()> {
    let name = match (x.element, y.element) {
        (Element::Bf16, Element::F32) => "transpose_widen",
        (Element::F32, Element::Bf16) => bail!("a transposition does not round"),
        _ => "transpose",
    };
    launch!(stream, x.kernel(name), elements y.len; y.len, x, y, rows, columns, add)
}

/// Copies tensors of f32 of one GPU into others, in one launch.
pub(crate) fn copy_all(pairs: &[(&Tensor, &Tensor)]) -> Result<()> {
    let Some((first, _)) = pairs.first() else {
        return Ok(());
    };
    let stream = &*Stream::of(first.device().as_cuda_device()?)?;
    let (from, to): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
    with_floats(&from, stream, |from| {
        let mut table = Table::new();
        for (from, to) in from.iter().zip(to) {
            let to = memory_of(to, stream)?;
            let threads = to.len.div_ceil(Element::F32.of_16_bytes());
            table.push([from.address, to.address, to.len as u64], threads);
        }
        let Some(grid) = table.grid() else {
            return Ok(());
        };
        stream.with_table(
            table.numbers,
            |table| launch!(stream, "copy_all", grid, (THREADS, 1, 1); Address(table)),
        )
    })
}

/// Adds a bias to rows of `columns`, in place, and takes the positive part.
pub(crate) fn bias_relu(
    stream: &Stream,
    y: Floats,
    bias: Option<Floats>,
    columns: usize,
    relu: bool,
) -> Result<()> {
    if bias.is_none() && !relu {
        return Ok(());
    }
    launch!(stream, y.kernel("bias_relu"), wide y.len; y.len, y, bias, columns, relu)
}

/// Zeros in `dy` where ReLU's result `y` is not positive.
pub(crate) fn mask(stream: &Stream, y: Floats, dy: Floats) -> Result<()> {
    launch!(stream, y.kernel("mask"), wide y.len; y.len, y, dy)
}

/// The sums of the columns of `x`, rows of `columns`, written or added; `to` is f32.
pub(crate) fn column_sums(
    stream: &Stream,
    x: Floats,
    columns: usize,
    to: Floats,
    add: bool,
) -> Result<()> {
    let rows = x.len / columns.max(1);
    if rows == 0 {
        return if add { Ok(()) } else { stream.fill(to, 0.) };
    }
    if rows <= FEW_ROWS && x.element == Element::F32 {
        return combine(stream, x, columns, 0, to, add);
    }
    let of_a_block = rows.div_ceil(PARTS).max(8);
    let parts = rows.div_ceil(of_a_block);
    let memory = Block::new(stream, parts * columns)?;
    let partial = memory.floats();
    let grid = (columns.div_ceil(32) as u32, parts as u32, 1);
    let name = x.kernel("column_sums");
    launch!(stream, name, grid, (32, 8, 1); x, partial, rows, columns, of_a_block)?;
    combine(stream, partial, columns, 0, to, add)
}

/// Sums up rows of `width` in `partial`, the columns from `first` on.
pub(crate) fn combine(
    stream: &Stream,
    partial: Floats,
    width: usize,
    first: usize,
    to: Floats,
    add: bool,
) -> Result<()> {
    let count = partial.len / width;
    let grid = (to.len.div_ceil(32) as u32, 1, 1);
    launch!(stream, "combine", grid, (32, 32, 1); partial, to, to.len, count, width, first, add)
}
