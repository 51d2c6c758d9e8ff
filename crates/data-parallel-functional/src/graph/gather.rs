//! The examples of all replicas as one value, for a loss that compares examples with each other.

use super::value::{Source, Value};
use crate::gather::Gather;
use crate::kernel::{At, Backend, Grad, Kernel, Op, Pass, accumulate_tensor};
use crate::statistics::Summation;
use candle_core::{Result, Tensor, bail};
use std::ops::Range;
use std::sync::Arc;

impl Value {
    /// The rows of all replicas, `examples` of them; this replica's become the `rows`. The gradient of a row is the sum of
    /// its gradients on all replicas. All replicas bring their rows in the same call, and in the same backward pass.
    ///
    /// # Errors
    /// Where it is not f32, or it has another number of rows than `rows`, or they are not within `examples`.
    pub fn gather(
        &self,
        rows: Range<usize>,
        examples: usize,
        over: Arc<dyn Summation>,
    ) -> Result<Self> {
        self.check("gather", &[])?;
        let Some((own, row)) = self.dims().split_first() else {
            bail!("gather: a value of shape [], expected a first dimension for the examples")
        };
        if *own != rows.len() || rows.end > examples {
            bail!("gather: {own} rows become the rows {rows:?} of {examples}")
        }
        let gather = Gather {
            rows,
            row: row.iter().product(),
            own: self.dims().to_vec(),
            all: [&[examples], row].concat(),
            over,
        };
        let dims = gather.all.clone();
        Ok(self.node(Source::Op(Op::Gather(gather), vec![self.clone()]), &dims))
    }
}

fn numbers(x: &Tensor) -> Result<Vec<f32>> {
    x.flatten_all()?.to_vec1()
}

impl<B: Backend> Kernel<B> for Gather {
    fn forward(
        &self,
        pass: &Pass<B>,
        x: &[B::View<'_>],
        y: B::ViewMut<'_>,
    ) -> Result<Vec<B::Buffer>> {
        let x = B::tensor(&pass.stream, B::copy(&pass.stream, x[0])?, &self.own)?;
        let mut all = vec![0.; self.all.iter().product()];
        for (to, from) in all[self.elements()].iter_mut().zip(numbers(&x)?) {
            *to = f64::from(from);
        }
        let all = Tensor::from_vec(self.sum(all)?, &*self.all, x.device())?;
        B::write(&pass.stream, &all, y)?;
        Ok(Vec::new())
    }

    fn backward(
        &self,
        pass: &Pass<B>,
        _at: At<'_, '_, B>,
        dy: B::Buffer,
        dx: &mut [Grad<'_, B>],
    ) -> Result<()> {
        let dy = B::tensor(&pass.stream, dy, &self.all)?;
        let all = self.sum(numbers(&dy)?.into_iter().map(f64::from).collect())?;
        if dx[0].wanted() {
            let own = Tensor::new(&all[self.elements()], dy.device())?;
            accumulate_tensor(&pass.stream, &mut dx[0], &own)?;
        }
        Ok(())
    }
}
