//! The linear layer on the CPU: matrix products on blocks of rows, sequential inside, so that
//! replicas on threads of their own do not fight for the cores as candle's `matmul` makes them.

use crate::activation::{mask_all, positive};
use crate::buffer::Buffer;
use crate::gemm::{Matrix, multiply};
use crate::operation::{At, Grad, Operation};
use crate::sums::add_column_sums;
use crate::threads::for_each_chunk;
use crate::{Expr, args};
use candle_core::{Result, Tensor, bail};

/// Rows of a block of the result.
const BLOCK: usize = 64;

/// `x · weightᵀ + bias`: `x` (B, I), `weight` (O, I), `bias` (O,) → (B, O).
///
/// `weight` may be a transposed view and is not copied then. In the book:
/// `nn.Linear`.
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
    Expr::new(x).linear(weight, bias).eval()
}

/// `x · weight + bias`: as [`linear`], with a `weight` (I, O).
///
/// In the book: `torch.mm(h, params[4]) + params[5]`.
///
/// # Errors
/// Where a tensor is not f32, or the sizes do not match.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[[1f32, 2.]], &Device::Cpu)?;
/// let weight = Tensor::new(&[[1f32, 0., 1.], [0., 1., 1.]], &Device::Cpu)?;
/// assert_eq!(functional::matmul(&x, &weight, None)?.to_vec2::<f32>()?, [[1., 2., 3.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn matmul(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    Expr::new(x).matmul(weight, bias).eval()
}

/// Checks the shapes of x (B, I), weight (O, I) and bias (O,); returns B, I and O.
pub(crate) fn check([x, weight]: [&[usize]; 2], bias: Option<&[usize]>) -> Result<[usize; 3]> {
    let sizes = match (x, weight) {
        ([b, i], [o, expected]) if i == expected => [*b, *i, *o],
        ([_, i], [_, expected]) => bail!(
            "linear: x has {i} features, weight (O, I) has {expected}; for a weight (I, O) use \
             matmul"
        ),
        (x, w) => bail!("linear: x has shape {x:?}, weight {w:?}, expected (B, I) and (O, I)"),
    };
    check_bias("linear", bias, sizes)
}

/// As [`check`], for a weight (I, O).
pub(crate) fn check_matmul(
    [x, weight]: [&[usize]; 2],
    bias: Option<&[usize]>,
) -> Result<[usize; 3]> {
    let sizes = match (x, weight) {
        ([b, i], [expected, o]) if i == expected => [*b, *i, *o],
        ([_, i], [expected, _]) => bail!(
            "matmul: x has {i} columns, weight (I, O) has {expected} rows; for a weight (O, I) \
             use linear"
        ),
        (x, w) => bail!("matmul: x has shape {x:?}, weight {w:?}, expected (B, I) and (I, O)"),
    };
    check_bias("matmul", bias, sizes)
}

fn check_bias(op: &str, bias: Option<&[usize]>, sizes: [usize; 3]) -> Result<[usize; 3]> {
    if let Some(bias) = bias {
        args::vector(op, "bias", bias, sizes[2], "outputs of weight")?;
    }
    Ok(sizes)
}

/// The layer, with its ReLU.
pub(crate) struct Linear {
    pub(crate) batch: usize,
    pub(crate) features: usize,
    pub(crate) outputs: usize,
    /// Whether the weight lies in memory as (I, O).
    pub(crate) transposed: bool,
    pub(crate) relu: bool,
}

impl Linear {
    /// From B, I and O.
    pub(crate) fn new(
        [batch, features, outputs]: [usize; 3],
        transposed: bool,
        relu: bool,
    ) -> Self {
        Self {
            batch,
            features,
            outputs,
            transposed,
            relu,
        }
    }

    pub(crate) fn dims(&self) -> [usize; 2] {
        [self.batch, self.outputs]
    }

    /// The weight as (O, I).
    fn weight<'a>(&self, weight: &'a [f32]) -> Matrix<'a> {
        match self.transposed {
            true => Matrix::new(weight, self.features, self.outputs).t(),
            false => Matrix::new(weight, self.outputs, self.features),
        }
    }
}

impl Operation for Linear {
    fn forward(&self, x: &[&[f32]], y: &mut [f32], _keep: bool) -> Result<Vec<Buffer>> {
        let input = Matrix::new(x[0], self.batch, self.features);
        let weight = self.weight(x[1]).t();
        for_each_chunk(y, BLOCK * self.outputs, |i, y| {
            if let Some(bias) = x.get(2) {
                for row in y.chunks_exact_mut(self.outputs) {
                    row.copy_from_slice(bias);
                }
            }
            let rows = input.rows(i * BLOCK, y.len() / self.outputs);
            multiply(y, x.len() > 2, rows, weight);
            if self.relu {
                y.iter_mut().for_each(|v| *v = positive(*v));
            }
        });
        Ok(vec![])
    }

    fn backward(&self, at: At<'_>, mut dy: Buffer, dx: &mut [Grad<'_>]) -> Result<()> {
        if self.relu {
            mask_all(at.y, &mut dy);
        }
        let input = Matrix::new(at.x[0], self.batch, self.features);
        let d_output = Matrix::new(&dy, self.batch, self.outputs);
        product(&mut dx[0], d_output, self.weight(at.x[1]));
        match self.transposed {
            true => product(&mut dx[1], input.t(), d_output),
            false => product(&mut dx[1], d_output.t(), input),
        }
        if let Some(db) = dx.get_mut(2) {
            let mut sums = vec![0.; self.outputs];
            for rows in dy.chunks(BLOCK * self.outputs.max(1)) {
                add_column_sums(rows, &mut sums);
            }
            db.put(sums.into_iter());
        }
        Ok(())
    }
}

/// a · b, written or added where it is wanted, by blocks of rows.
fn product(to: &mut Grad<'_>, a: Matrix, b: Matrix) {
    if !to.wanted() {
        return;
    }
    let (to, add) = to.target();
    let columns = b.shape().1;
    for_each_chunk(to, BLOCK * columns, |i, to| {
        let a = a.rows(i * BLOCK, to.len() / columns);
        multiply(to, add, a, b);
    });
}
