//! Numbers without gradients: when a value is computed, that nothing is kept for backward, and that nothing moves.

use crate::support::{bits, random, values, variables, with};
use candle_core::{Result, Tensor, Var};
use functional::{Gradients, Network, Value, candle};
use std::cell::Cell;
use std::rc::Rc;

/// A module that counts its runs.
fn counting() -> (Rc<Cell<usize>>, impl Network) {
    let runs = Rc::new(Cell::new(0));
    let counter = runs.clone();
    let module = candle(move |x: &Tensor| {
        counter.set(counter.get() + 1);
        Ok(x.clone())
    });
    (runs, module)
}

#[test]
fn a_value_is_computed_when_it_is_asked_for_and_once() -> Result<()> {
    let (runs, module) = counting();
    let x = Var::from_tensor(&random((2, 3), 1))?;
    let before = values(&x.relu()?);
    let y = module.forward(&Value::new(&x)?.relu()?, false)?;
    let of_shape = runs.get();
    let twice = (&y + &y)?;
    assert_eq!(format!("{y:?}"), "Value[2, 3] on Cpu");
    assert_eq!((twice.dims(), runs.get()), (&[2, 3][..], of_shape));
    let result = y.eval()?;
    assert_eq!((&values(&result), runs.get()), (&before, of_shape + 1));
    // a second time it is what it was
    x.set(&random((2, 3), 2))?;
    assert_eq!(values(&y.eval()?), before);
    assert_eq!(y.to_string(), result.to_string());
    assert_eq!(runs.get(), of_shape + 1);
    // and what is first computed now reads the tensors as they are now
    let now = values(&(x.relu()? * 2.)?);
    assert_eq!((values(&twice.eval()?), runs.get()), (now, of_shape + 2));
    Ok(())
}

#[test]
fn a_pass_computes_anew_and_its_outputs_are_there_afterwards() -> Result<()> {
    let (runs, module) = counting();
    let w = Var::from_tensor(&random((4, 3), 1))?;
    let y = Value::new(&random((2, 3), 2))?.linear(&w, None)?;
    let y = module.forward(&y, true)?;
    let (positive, loss) = (y.relu()?, y.sum()?);
    let old = values(&positive.eval()?);
    w.set(&random((4, 3), 3))?;
    let runs_before = runs.get();
    let mut gradients = Gradients::new([("w", &w)], usize::MAX)?;
    let returned = gradients.backward_with(&loss, with(None, &[&positive]))?;
    assert_ne!(values(&positive.eval()?), old);
    assert_eq!(values(&loss.eval()?), values(&returned));
    let computed: f64 = values(&y.eval()?).iter().map(|v| f64::from(*v)).sum();
    assert_eq!(values(&returned), [computed as f32]);
    // in the pass, and for y, which was no output
    assert_eq!(runs.get(), runs_before + 2);
    assert!(!returned.track_op() && !positive.eval()?.track_op());
    Ok(())
}

/// A small network with a batch norm in training.
fn normalized(w: &[Var], running: &[Var]) -> Result<Value> {
    let x = Value::new(&random((3, 5, 4, 2), 1))?;
    let y = x.conv2d(&w[0], Some(&w[1]), 1, 1)?;
    y.batch_norm2d([&w[2], &w[3]], [&running[0], &running[1]], None, true)
}

/// Looking at a value while the network learns changes nothing.
#[test]
fn evaluating_and_printing_a_norm_in_training_moves_nothing() -> Result<()> {
    let shapes: [&[usize]; 6] = [&[6, 2, 3, 3], &[6], &[6], &[6], &[6], &[6]];
    let all = shapes.map(|shape| random(shape, 2));
    let step = |look: bool| -> Result<Vec<Vec<u32>>> {
        let all = variables(&all)?;
        let (w, running) = all.split_at(4);
        let before: Vec<_> = running.iter().map(|v| bits(v)).collect();
        let y = normalized(w, running)?;
        let loss = y.relu()?.sum()?;
        if look {
            let printed = y.to_string();
            assert!(printed.contains("Tensor[[3, 5, 4, 6], f32]"), "{printed}");
            assert!(!loss.eval()?.track_op());
            normalized(w, running)?.eval()?;
            let after: Vec<_> = running.iter().map(|v| bits(v)).collect();
            assert_eq!(after, before);
        }
        let mut gradients = Gradients::new(w.iter().map(|w| ("", w)), usize::MAX)?;
        let loss = gradients.backward_with(&loss, with(None, &[&y]))?;
        let after: Vec<_> = running.iter().map(|v| bits(v)).collect();
        assert_ne!(after, before);
        let mut results = vec![bits(&loss), bits(&y.eval()?)];
        results.extend(gradients.values()?.iter().map(bits));
        Ok([results, after].concat())
    };
    assert_eq!(step(true)?, step(false)?);
    Ok(())
}

#[test]
fn a_panic_restores_the_budget() {
    use functional::threads::{budget, with_budget};
    let panicking = || with_budget(7, || panic!("on purpose"));
    let _: Box<dyn std::any::Any + Send> =
        std::panic::catch_unwind(panicking).expect_err("a panic");
    assert_ne!(budget(), 7);
}
