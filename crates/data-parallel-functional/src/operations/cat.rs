//! Values one after the other along a dimension, and a part of a value.

use crate::cpu::buffer::Buffer;
use crate::cpu::gradient::{At, Grad, Pass, put};
use crate::cpu::layout::{columns, rows_of_a_chunk};
use crate::cpu::threads::for_each_chunk;
use crate::graph::value::Value;
use crate::kernel::{Cpu, Kernel, SelfContained};
use candle_core::{Result, Tensor, bail};

impl Value {
    /// Values one after the other along dimension `dim`; their other dimensions are the same. In PyTorch: `torch.cat`.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let [a, b] = [[1f32, 2.], [3., 4.]].map(|row| Value::new(&Tensor::new(&[row], &Device::Cpu).unwrap()).unwrap());
    /// assert_eq!(Value::cat(&[&a, &b], 1)?.eval()?.to_vec2::<f32>()?, [[1., 2., 3., 4.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where there is no value, the dimensions do not match, or one is not f32.
    pub fn cat(values: &[&Self], dim: usize) -> Result<Self> {
        let Some((first, others)) = values.split_first() else {
            bail!("cat: expected at least one value")
        };
        let with = |value: &Self, len: usize| {
            let mut dims = value.dims().to_vec();
            *dims.get_mut(dim)? = len;
            Some(dims)
        };
        let len = values.iter().filter_map(|x| x.dims().get(dim)).sum();
        let they_fit = values.iter().all(|x| with(x, 0) == with(first, 0));
        let Some(dims) = with(first, len).filter(|_| they_fit) else {
            let shapes: Vec<_> = values.iter().map(|x| x.dims()).collect();
            bail!("cat: shapes {shapes:?} do not match, except in dimension {dim}")
        };
        let row = |value: &&Self| value.dims()[dim..].iter().product();
        let cat = Cat {
            dim,
            rows: values.iter().map(row).collect(),
        };
        let others: Vec<_> = others.iter().map(|value| ("a value", *value)).collect();
        first.self_contained_with("cat", cat, &others, &dims)
    }

    /// The `len` entries from `start` on of dimension `dim`: candle's `narrow` and PyTorch's.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let x = Value::new(&Tensor::new(&[[1f32, 2., 3.], [4., 5., 6.]], &Device::Cpu)?)?;
    /// assert_eq!(x.narrow(1, 1, 2)?.eval()?.to_vec2::<f32>()?, [[2., 3.], [5., 6.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where it is not f32, or has no such entries.
    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Self> {
        let mut dims = self.dims().to_vec();
        let Some(of) = dims
            .get_mut(dim)
            .filter(|of| start.saturating_add(len) <= **of)
        else {
            bail!(
                "narrow: x has shape {dims:?}, expected {len} entries from {start} on in dimension {dim}"
            )
        };
        let inner: usize = self.dims()[dim + 1..].iter().product();
        let narrow = Narrow {
            dim,
            start,
            len,
            row: *of * inner,
            inner,
        };
        *of = len;
        self.self_contained("narrow", narrow, &[], &dims)
    }
}

/// Values one after the other.
#[derive(Debug, Clone)]
struct Cat {
    dim: usize,
    /// Of each value: the number of elements from `dim` on, which lie one after the other.
    rows: Vec<usize>,
}

impl SelfContained for Cat {
    fn with_candle(&self, x: &[Tensor]) -> Result<Tensor> {
        Tensor::cat(x, self.dim)
    }
}

impl Kernel<Cpu> for Cat {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let all = self.rows.iter().sum();
        let rows = rows_of_a_chunk(all);
        for_each_chunk(y, rows * all, |i, y| {
            for (n, y) in y.chunks_exact_mut(all).enumerate() {
                let mut rest = y;
                for (x, row) in x.iter().zip(&self.rows) {
                    let (part, after) = rest.split_at_mut(*row);
                    part.copy_from_slice(&x[(i * rows + n) * row..][..*row]);
                    rest = after;
                }
            }
        });
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, _: At<'_, '_>, dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        let all: usize = self.rows.iter().sum();
        let mut first = 0;
        for (dx, row) in dx.iter_mut().zip(&self.rows) {
            if let Some((to, add)) = dx.target() {
                columns(&dy, all, first, to, *row, add);
            }
            first += row;
        }
        Ok(())
    }
}

/// A part of each row.
#[derive(Debug, Clone, Copy)]
struct Narrow {
    dim: usize,
    start: usize,
    len: usize,
    /// The number of elements from `dim` on, and behind it.
    row: usize,
    inner: usize,
}

impl SelfContained for Narrow {
    fn with_candle(&self, x: &[Tensor]) -> Result<Tensor> {
        x[0].narrow(self.dim, self.start, self.len)
    }
}

impl Kernel<Cpu> for Narrow {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let part = self.len * self.inner;
        columns(x[0], self.row, self.start * self.inner, y, part, false);
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, _: At<'_, '_>, dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        let part = self.len * self.inner;
        let rows = rows_of_a_chunk(self.row);
        let Some((to, add)) = dx[0].target().filter(|(to, _)| !to.is_empty()) else {
            return Ok(());
        };
        for_each_chunk(to, rows * self.row, |i, to| {
            if !add {
                to.fill(0.);
            }
            for (n, to) in to.chunks_exact_mut(self.row).enumerate() {
                let from = &dy[(i * rows + n) * part..][..part];
                put(
                    &mut to[self.start * self.inner..],
                    from.iter().copied(),
                    true,
                );
            }
        });
        Ok(())
    }
}
