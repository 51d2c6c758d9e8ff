//! The memory of a parameter has to be there while an operation reads it, and at no other time. Here two layers
//! share one memory: the one that does not compute has none.

use crate::support::{on_each_way, random, values};
use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Var};
use functional::{Gradients, Value};
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

fn parameters() -> Result<[Var; 2]> {
    let [first, second] = [random((6, 5), 1), random((3, 6), 2)];
    Ok([Var::from_tensor(&first)?, Var::from_tensor(&second)?])
}

/// The loss and the gradients, and what is done between the layers on each way.
fn pass(
    [first, second]: &[Var; 2],
    between: impl Fn(bool) + Clone + Send + Sync + 'static,
) -> Result<Vec<Vec<f32>>> {
    let x = Value::new(&random((4, 5), 3))?;
    let y = on_each_way(&x.linear(first, None)?.relu()?, between)?;
    let loss = y.linear(second, None)?.relu()?.sum()?;
    let mut gradients = Gradients::new([("first", first), ("second", second)], usize::MAX)?;
    let loss = gradients.backward(&loss)?;
    let gradients = gradients.values()?;
    Ok([loss].iter().chain(&gradients).map(values).collect())
}

/// Forward takes the memory of the first layer away between the two, and gives the second its own back. Backward does
/// it the other way round.
#[test]
fn is_needed_only_while_an_operation_reads_it() -> Result<()> {
    let expected = pass(&parameters()?, |_| ())?;
    let params = parameters()?;
    let [first, second] = params.clone();
    let away = Arc::new(Mutex::new(Vec::new()));
    second.inplace_op1(&Exchange(&away))?;
    let hand_over = move |forward: bool| {
        let (from, to) = match forward {
            true => (&first, &second),
            false => (&second, &first),
        };
        let of_to = Mutex::new(std::mem::take(&mut *away.lock().unwrap()));
        from.inplace_op1(&Exchange(&away)).unwrap();
        to.inplace_op1(&Exchange(&of_to)).unwrap();
        assert!(of_to.lock().unwrap().is_empty(), "it had no memory before");
    };
    assert_eq!(pass(&params, hand_over)?, expected);
    Ok(())
}
