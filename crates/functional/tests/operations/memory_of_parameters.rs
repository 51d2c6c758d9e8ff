//! The memory of a parameter has to be there while an operation reads it, and at no other time. Here two layers
//! share one memory: the one that does not compute has none.

use crate::support::{random, values};
use candle_core::{CpuStorage, CustomOp1, InplaceOp1, Layout, ModuleT, Result, Shape, Tensor, Var};
use functional::{Gradients, Network, Value, candle};
use std::sync::{Arc, Mutex};

/// Exchanges the memory of a tensor.
struct Exchange<'a>(&'a Mutex<Vec<f32>>);

impl InplaceOp1 for Exchange<'_> {
    fn name(&self) -> &'static str {
        "exchange"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> Result<()> {
        let CpuStorage::F32(floats) = storage else {
            panic!("parameters are f32")
        };
        std::mem::swap(floats, &mut self.0.lock().unwrap());
        Ok(())
    }
}

/// The identity between two layers. In a forward pass it takes the memory of the first away, and gives the second
/// its own back; in a backward pass the other way round.
#[derive(Clone)]
struct Turn {
    first: Var,
    second: Var,
    away: Arc<Mutex<Vec<f32>>>,
}

impl Turn {
    fn hand_over(&self, from: &Var, to: &Var) -> Result<()> {
        let of_to = Mutex::new(std::mem::take(&mut *self.away.lock().unwrap()));
        from.inplace_op1(&Exchange(&self.away))?;
        to.inplace_op1(&Exchange(&of_to))?;
        assert!(of_to.lock().unwrap().is_empty(), "it had no memory before");
        Ok(())
    }
}

impl CustomOp1 for Turn {
    fn name(&self) -> &'static str {
        "turn"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        self.hand_over(&self.first, &self.second)?;
        Ok((storage.clone(), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        self.hand_over(&self.second, &self.first)?;
        Ok(Some(dy.clone()))
    }
}

impl ModuleT for Turn {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        match train {
            true => x.apply_op1(self.clone()),
            false => Ok(x.clone()), // to find its shape
        }
    }
}

fn parameters() -> Result<[Var; 2]> {
    let [first, second] = [random((6, 5), 1), random((3, 6), 2)];
    Ok([Var::from_tensor(&first)?, Var::from_tensor(&second)?])
}

/// The loss and the gradients, with something between the layers.
fn pass([first, second]: &[Var; 2], between: impl Network) -> Result<Vec<Vec<f32>>> {
    let x = Value::new(&random((4, 5), 3))?;
    let y = between.forward(&x.linear(first, None)?.relu()?, true)?;
    let loss = y.linear(second, None)?.relu()?.sum()?;
    let mut gradients = Gradients::new([("first", first), ("second", second)], usize::MAX)?;
    let loss = gradients.backward(&loss)?;
    let gradients = gradients.values()?;
    Ok([loss].iter().chain(&gradients).map(values).collect())
}

#[test]
fn is_needed_only_while_an_operation_reads_it() -> Result<()> {
    let nothing = candle(|x: &Tensor| Ok(x.clone()));
    let expected = pass(&parameters()?, nothing)?;
    let params = parameters()?;
    let [first, second] = params.clone();
    let away = Arc::default();
    second.inplace_op1(&Exchange(&away))?;
    let turn = Turn {
        first,
        second,
        away,
    };
    assert_eq!(pass(&params, candle(turn))?, expected);
    Ok(())
}
