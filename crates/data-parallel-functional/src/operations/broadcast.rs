//! Products and sums of a value and a smaller one, which is repeated; and products of two values of one shape.

use crate::cpu::activation::{self, inlined};
use crate::cpu::buffer::Buffer;
use crate::cpu::exp::sum;
use crate::cpu::gradient::{At, CHUNK, Grad, Pass};
use crate::cpu::sums::{add, add_rows, column_sums};
use crate::cpu::threads::for_each_chunk;
use crate::graph::value::Value;
use crate::kernel::{Cpu, Kernel, SelfContained};
use candle_core::{Result, Tensor, bail};
use std::ops::Mul;

/// Rows that are added up before they are added to the others, so that long sums stay exact.
const BLOCK: usize = 64;

impl Value {
    /// The product of each element and that of a smaller value, which is repeated as in PyTorch: from the last dimension on,
    /// sizes are equal, 1 or missing. The result has the shape of `self`: (…, C) times (C,), or (B, H, W, C) times
    /// (B, 1, 1, C).
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let x = Value::new(&Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?)?;
    /// let scale = Value::new(&Tensor::new(&[10f32, 1.], &Device::Cpu)?)?;
    /// assert_eq!(x.broadcast_mul(&scale)?.eval()?.to_vec2::<f32>()?, [[10., 2.], [30., 4.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where one is not f32, or the shapes do not match.
    pub fn broadcast_mul(&self, other: &Self) -> Result<Self> {
        self.broadcast("broadcast_mul", true, other)
    }

    /// The sum of each element and that of a smaller value, of a shape as in [`broadcast_mul`](Self::broadcast_mul).
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let x = Value::new(&Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?)?;
    /// let shift = Value::new(&Tensor::new(&[[10f32], [20.]], &Device::Cpu)?)?;
    /// assert_eq!(x.broadcast_add(&shift)?.eval()?.to_vec2::<f32>()?, [[11., 12.], [23., 24.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where one is not f32, or the shapes do not match.
    pub fn broadcast_add(&self, other: &Self) -> Result<Self> {
        self.broadcast("broadcast_add", false, other)
    }

    fn broadcast(&self, name: &str, multiplies: bool, other: &Self) -> Result<Self> {
        self.check(name, &[("other", other)])?;
        let product = |x: &[Tensor]| x[0].broadcast_mul(&x[1]);
        let sum = |x: &[Tensor]| x[0].broadcast_add(&x[1]);
        let runs = runs(name, self.dims(), other.dims())?;
        match Repeats::of(&runs) {
            Some(repeats) => {
                let op = Broadcast {
                    multiplies,
                    repeats,
                };
                self.self_contained_with(name, op, &[("other", other)], self.dims())
            }
            None if multiplies => Ok(Self::candle(&[self, other], product, self.dims())),
            None => Ok(Self::candle(&[self, other], sum, self.dims())),
        }
    }
}

/// The elementwise product of two values of f32 with the same shape.
impl Mul for &Value {
    type Output = Result<Value>;

    fn mul(self, other: Self) -> Result<Value> {
        self.check_same("mul", other)?;
        self.broadcast("mul", true, other)
    }
}

/// Neighbouring dimensions that the smaller value has as well, or along which it is repeated.
struct Run {
    is_repeated: bool,
    size: usize,
}

/// The dimensions of x, where those that follow each other and are treated alike are one; an error if the shapes do not match.
fn runs(name: &str, x: &[usize], other: &[usize]) -> Result<Vec<Run>> {
    let mut runs = Vec::<Run>::new();
    for (i, size) in x.iter().copied().enumerate() {
        let own = (i + other.len())
            .checked_sub(x.len())
            .map_or(1, |i| other[i]);
        if other.len() > x.len() || ![1, size].contains(&own) {
            bail!("{name}: other has shape {other:?}, which cannot be repeated to {x:?}, that of x")
        }
        let is_repeated = own != size;
        match runs.last_mut().filter(|run| run.is_repeated == is_repeated) {
            _ if size == 1 => {}
            Some(run) => run.size *= size,
            None => runs.push(Run { is_repeated, size }),
        }
    }
    Ok(runs)
}

/// x as a matrix of rows. The smaller value has a row, or one number, for each group of rows.
#[derive(Debug, Clone, Copy)]
struct Repeats {
    /// Elements of a row.
    row: usize,
    /// Rows of x for each row of the smaller value.
    rows: usize,
    /// True if the smaller value has one number for each row.
    is_number: bool,
}

impl Repeats {
    /// None if the smaller value is repeated along dimensions on both sides of its own.
    fn of(runs: &[Run]) -> Option<Self> {
        let of_rows = |row: usize, rows: usize| Self {
            row,
            rows,
            is_number: false,
        };
        let of_numbers = |row: usize| Self {
            row,
            rows: 1,
            is_number: true,
        };
        let is_repeated: Vec<bool> = runs.iter().map(|run| run.is_repeated).collect();
        let size = |i: usize| runs[i].size;
        match is_repeated[..] {
            [] => Some(of_rows(1, 1)),
            [false] => Some(of_rows(size(0), 1)),
            [true] => Some(of_numbers(size(0))),
            [false, true] => Some(of_numbers(size(1))),
            [true, false] => Some(of_rows(size(1), size(0))),
            [false, true, false] => Some(of_rows(size(2), size(1))),
            _ => None,
        }
    }
}

/// A product or a sum with a smaller value.
#[derive(Debug, Clone, Copy)]
struct Broadcast {
    multiplies: bool,
    repeats: Repeats,
}

impl SelfContained for Broadcast {
    fn with_candle(&self, x: &[Tensor]) -> Result<Tensor> {
        if self.multiplies {
            x[0].broadcast_mul(&x[1])
        } else {
            x[0].broadcast_add(&x[1])
        }
    }
}

/// The smaller value for a part of x.
enum Part<'a> {
    /// A number for each element.
    Row(&'a [f32]),
    Number(f32),
}

impl Broadcast {
    /// Calls `work` with parts of `to`, which has the shape of x: with the first element, the part, and what the smaller
    /// value has for it.
    fn for_each_part(
        &self,
        to: &mut [f32],
        other: &[f32],
        work: impl Fn(usize, &mut [f32], Part<'_>) + Sync,
    ) {
        let Repeats {
            row,
            rows,
            is_number,
        } = self.repeats;
        if to.len() == other.len() {
            return for_each_chunk(
                to,
                CHUNK,
                #[inline(always)]
                |i, to| work(i * CHUNK, to, Part::Row(&other[i * CHUNK..])),
            );
        }
        let of_chunk = (CHUNK / row.max(1)).max(1);
        for_each_chunk(
            to,
            of_chunk * row,
            #[inline(always)]
            |i, to| {
                for (n, to) in to.chunks_exact_mut(row).enumerate() {
                    let n = i * of_chunk + n;
                    let part = if is_number {
                        Part::Number(other[n])
                    } else {
                        Part::Row(&other[n / rows * row..])
                    };
                    work(n * row, to, part);
                }
            },
        );
    }

    /// The sums of `all`, which has the shape of x, over what the smaller value is repeated along.
    fn sums(&self, all: &[f32], len: usize) -> Buffer {
        let Repeats {
            row,
            rows,
            is_number,
        } = self.repeats;
        let mut sums = Buffer::zeros(len);
        if all.is_empty() {
            return sums;
        }
        if is_number {
            let of_chunk = (CHUNK / row).max(1);
            for_each_chunk(
                &mut sums,
                of_chunk,
                #[inline(always)]
                |i, sums| {
                    let all = all[i * of_chunk * row..].chunks_exact(row);
                    for (to, all) in sums.iter_mut().zip(all) {
                        *to = sum_of(all);
                    }
                },
            );
        } else if len == row {
            sums.copy_from_slice(&column_sums(all, row, BLOCK));
        } else {
            for_each_chunk(
                &mut sums,
                row,
                #[inline(always)]
                |i, sums| {
                    add_rows(&all[i * rows * row..][..rows * row], BLOCK, sums, add);
                },
            );
        }
        sums
    }
}

/// The sum of a row, in blocks.
#[inline(always)]
fn sum_of(row: &[f32]) -> f32 {
    let of_block = |block: &[f32]| {
        sum(
            block.len(),
            #[inline(always)]
            |i| block[i],
        )
    };
    row.chunks(BLOCK * BLOCK).map(of_block).sum()
}

impl Kernel<Cpu> for Broadcast {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let multiplies = self.multiplies;
        self.for_each_part(
            y,
            x[1],
            #[inline(always)]
            |first, y, part| {
                let x = &x[0][first..];
                match (part, multiplies) {
                    (Part::Row(row), true) => map(y, x, row, |x, other| x * other),
                    (Part::Row(row), false) => map(y, x, row, |x, other| x + other),
                    (Part::Number(number), true) => map(y, x, x, |x, _| x * number),
                    (Part::Number(number), false) => map(y, x, x, |x, _| x + number),
                }
            },
        );
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, at: At<'_, '_>, mut dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        let len = at.x[1].len();
        if dx[1].wanted() && self.multiplies {
            let mut product = Buffer::new(dy.len());
            activation::map(&mut product, [&dy, at.x[0]], inlined!(|_, [dy, x]| dy * x));
            let of_all = len == product.len();
            dx[1].give(if of_all {
                product
            } else {
                self.sums(&product, len)
            });
        } else if dx[1].wanted() {
            dx[1].give(self.sums(&dy, len));
        }
        if dx[0].wanted() && self.multiplies {
            self.for_each_part(
                &mut dy,
                at.x[1],
                #[inline(always)]
                |_, dy, part| match part {
                    Part::Row(row) => dy.iter_mut().zip(row).for_each(|(dy, other)| *dy *= other),
                    Part::Number(number) => dy.iter_mut().for_each(|dy| *dy *= number),
                },
            );
        }
        dx[0].give(dy);
        Ok(())
    }
}

/// `y = f(a, b)` of each element.
#[inline(always)]
fn map(y: &mut [f32], a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> f32) {
    for (y, (a, b)) in y.iter_mut().zip(a.iter().zip(b)) {
        *y = f(*a, *b);
    }
}
