//! Inside one expression: which buckets have come before each step runs backward.

use crate::buffer::Buffer;
use crate::layer::Cpu;
use crate::operation::{At, Grad, Operation};
use crate::tape::{Step, Tape};
use crate::{Bucket, Expr, Gradients, compile, record};
use candle_core::{Device, Result, Tensor, Var};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

#[derive(Debug, PartialEq)]
enum Event {
    Backward(usize),
    Bucket(usize),
}
use Event::Backward;

/// What happened, and the buckets that came.
struct Watch {
    buckets: Receiver<Bucket>,
    kept: Vec<Bucket>,
    events: Vec<Event>,
}

impl Watch {
    fn look(&mut self) {
        for bucket in self.buckets.try_iter() {
            self.events.push(Event::Bucket(bucket.index));
            self.kept.push(bucket);
        }
    }
}

/// An operation that says when it runs backward.
struct Spy {
    step: usize,
    operation: Box<dyn Operation>,
    watch: Arc<Mutex<Watch>>,
}

impl Operation for Spy {
    fn forward(&self, x: &[&[f32]], y: &mut [f32], keep: bool) -> Result<Vec<Buffer>> {
        self.operation.forward(x, y, keep)
    }

    fn backward(&self, at: At<'_>, dy: Buffer, dx: &mut [Grad<'_>]) -> Result<()> {
        {
            let mut watch = self.watch.lock().unwrap();
            watch.look();
            watch.events.push(Backward(self.step));
        }
        self.operation.backward(at, dy, dx)
    }
}

fn spy_on(tape: Tape<Cpu>, watch: &Arc<Mutex<Watch>>) -> Tape<Cpu> {
    let spy = |(step, s): (usize, Step<Cpu>)| {
        let (operation, watch) = (s.operation, watch.clone());
        let spy: Box<dyn Operation> = Box::new(Spy {
            step,
            operation,
            watch,
        });
        Step {
            operation: spy,
            inputs: s.inputs,
            dims: s.dims,
        }
    };
    Tape {
        leaves: tape.leaves,
        steps: tape.steps.into_iter().enumerate().map(spy).collect(),
    }
}

/// The events of the second pass over an expression; the first one learns.
fn events(params: &[&Var], expr: &Expr) -> Result<Vec<Event>> {
    let mut gradients = Gradients::new(params.iter().map(|p| ("", *p)), 0)?;
    let mut pass = || {
        let (ready, buckets) = channel();
        let watch = Arc::new(Mutex::new(Watch {
            buckets,
            kept: Vec::new(),
            events: Vec::new(),
        }));
        let loss = record::evaluate(spy_on(compile::tape(expr)?, &watch), true)?.sum_all()?;
        gradients.zero();
        gradients.backward_giving(&loss, &ready)?;
        let mut watch = watch.lock().unwrap();
        watch.look();
        let mut kept = watch.kept.drain(..);
        kept.try_for_each(|bucket| gradients.put_back(bucket))?;
        drop(kept);
        Ok(std::mem::take(&mut watch.events))
    };
    let first: Vec<Event> = pass()?;
    let is_step = |event: &Event| matches!(event, Backward(_));
    assert!(first.is_sorted_by_key(|e| !is_step(e)), "nothing was known");
    pass()
}

fn var(seed: f32) -> Var {
    let w = Tensor::new(&[[seed, 1.], [2., seed]], &Device::Cpu).unwrap();
    Var::from_tensor(&w).unwrap()
}

#[test]
fn a_bucket_leaves_between_two_steps() -> Result<()> {
    use Event::Bucket;
    let (x, a, b, c) = (var(0.5), var(1.), var(2.), var(3.));
    let layer = |x: Expr, w: &Var| x.linear(w, None).relu();
    let expr = layer(layer(layer(Expr::new(&x.detach()), &a), &b), &c);
    assert_eq!(
        events(&[&a, &b, &c], &expr)?,
        [
            Backward(2),
            Bucket(0),
            Backward(1),
            Bucket(1),
            Backward(0),
            Bucket(2)
        ]
    );
    Ok(())
}

#[test]
fn a_parameter_that_two_steps_read_is_complete_after_the_first_of_them() -> Result<()> {
    use Event::Bucket;
    let (x, a, b) = (var(0.5), var(1.), var(2.));
    let layer = |x: Expr, w: &Var| x.linear(w, None).relu();
    let expr = layer(layer(layer(Expr::new(&x.detach()), &a), &b), &a);
    let backward = [2, 1, 0].map(Backward);
    assert_eq!(
        events(&[&a, &b], &expr)?,
        [Backward(2), Backward(1), Bucket(0), Backward(0), Bucket(1)]
    );
    let last = events(&[&b, &a], &expr)?; // in the order of the buckets
    assert_eq!(last[..3], backward);
    assert_eq!(last[3..], [Bucket(0), Bucket(1)]);
    Ok(())
}
