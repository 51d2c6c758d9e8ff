//! The linear layer on the CPU: matrix products on blocks of rows, sequential inside, so that
//! replicas on threads of their own do not fight for the cores as candle's `matmul` makes them.

use crate::gemm::{Matrix, multiply};
use crate::storage::{matrix, read, read_matrix, slice, tensor};
use crate::sums::add_column_sums;
use crate::threads::for_each_chunk;
use crate::{args, plain};
use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, bail};

/// Rows of a block of the result.
const BLOCK: usize = 64;

/// `x · weightᵀ + bias`: `x` (B, I), `weight` (O, I), `bias` (O,) → (B, O).
///
/// `weight` may be a transposed view and is not copied then. In the book:
/// `torch.mm(h, params[4]) + params[5]`, whose weight is (I, O): pass `w3.t()`.
///
/// # Errors
/// Where a tensor is not f32, or the sizes do not match.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[[1f32, 2.]], &Device::Cpu)?;
/// let weight = Tensor::new(&[[1f32, 0.], [0., 1.], [1., 1.]], &Device::Cpu)?;
/// let bias = Tensor::new(&[0f32, 0., 10.], &Device::Cpu)?;
/// let y = functional::linear(&x, &weight, Some(&bias))?;
/// assert_eq!(y.to_vec2::<f32>()?, [[1., 2., 13.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return plain::linear(x, weight, bias);
    }
    let (x, weight, bias) = arguments(x, weight, bias)?;
    let x = x.contiguous()?;
    match bias {
        Some(bias) => x.apply_op3(&weight, &bias.contiguous()?, Linear),
        None => x.apply_op2(&weight, Linear),
    }
}

/// What [`linear`] and its plain twin were given, checked.
pub(crate) fn arguments(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<(Tensor, Tensor, Option<Tensor>)> {
    let x = args::float("linear", "x", x)?;
    let weight = args::float("linear", "weight", weight)?;
    let bias = bias.map(|b| args::float("linear", "bias", b)).transpose()?;
    match (x.dims(), weight.dims()) {
        ([_, i], [_, expected]) if i == expected => {}
        ([_, i], [_, expected]) => bail!(
            "linear: x has {i} features, weight expects {expected}; weight is (O, I), pass w.t() \
             for one of (I, O)"
        ),
        (x, w) => bail!("linear: x has shape {x:?}, weight {w:?}, expected (B, I) and (O, I)"),
    }
    if let Some(bias) = &bias {
        args::vector("linear", "bias", bias, weight.dim(0)?, "outputs of weight")?;
    }
    Ok((x, weight, bias))
}

struct Linear;

impl Linear {
    fn forward(
        &self,
        (x, layout): (&CpuStorage, &Layout),
        weight: Matrix,
        bias: Option<&[f32]>,
    ) -> Result<(CpuStorage, Shape)> {
        let (batch, features) = layout.shape().dims2()?;
        let x = Matrix::new(slice(x, layout)?, batch, features);
        let outputs = weight.shape().0;
        let y = product(x, weight.t(), |y| {
            if let Some(bias) = bias {
                for row in y.chunks_exact_mut(outputs) {
                    row.copy_from_slice(bias);
                }
            }
        });
        Ok((CpuStorage::F32(y), (batch, outputs).into()))
    }

    /// dY · W
    fn dx(&self, x: &Tensor, weight: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        if !x.track_op() {
            return Ok(None);
        }
        let (batch, outputs) = dy.dims2()?;
        let dx = read_matrix(weight, |weight| {
            read([dy], |[dy]| {
                product(Matrix::new(dy, batch, outputs), weight, |_| ())
            })
        })?;
        tensor(dx, x.shape()).map(Some)
    }

    /// dYᵀ · X
    fn dw(&self, x: &Tensor, weight: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        if !weight.track_op() {
            return Ok(None);
        }
        let ((batch, features), outputs) = (x.dims2()?, dy.dim(1)?);
        let dw = read([x, dy], |[x, dy]| {
            let (x, dy) = (
                Matrix::new(x, batch, features),
                Matrix::new(dy, batch, outputs),
            );
            product(dy.t(), x, |_| ())
        })?;
        tensor(dw, weight.shape()).map(Some)
    }

    fn db(&self, bias: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        if !bias.track_op() {
            return Ok(None);
        }
        let mut db = vec![0.; bias.elem_count()];
        read([dy], |[dy]| {
            for rows in dy.chunks(BLOCK * db.len().max(1)) {
                add_column_sums(rows, &mut db);
            }
        })?;
        tensor(db, bias.shape()).map(Some)
    }
}

/// `start + a · b` by blocks of rows, where `start` fills a block first.
fn product(a: Matrix, b: Matrix, start: impl Fn(&mut [f32]) + Sync) -> Vec<f32> {
    let (rows, columns) = (a.shape().0, b.shape().1);
    let mut out = vec![0.; rows * columns];
    for_each_chunk(&mut out, BLOCK * columns, |i, out| {
        start(out);
        let a = a.rows(i * BLOCK, out.len() / columns);
        multiply(out, true, a, b);
    });
    out
}

impl CustomOp2 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward((x, x_layout), matrix(weight, weight_layout)?, None)
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        Ok((self.dx(x, weight, dy)?, self.dw(x, weight, dy)?))
    }
}

impl CustomOp3 for Linear {
    fn name(&self) -> &'static str {
        "linear-bias"
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
        let bias = slice(bias, bias_layout)?;
        self.forward((x, x_layout), matrix(weight, weight_layout)?, Some(bias))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (dx, dw) = (self.dx(x, weight, dy)?, self.dw(x, weight, dy)?);
        Ok((dx, dw, self.db(bias, dy)?))
    }
}
