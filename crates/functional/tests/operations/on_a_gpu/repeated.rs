//! Work that is recorded as a CUDA graph does what it did before.

use super::{Gpu, gpu};
use crate::support::{labels, random, values};
use candle_core::{DType, Device, Result, Tensor, Var};
use functional::{Expr, Repeated, Sgd, cross_entropy, one_stream};
use std::cell::RefCell;

/// The turn of the test, and a device that no other test uses.
fn alone() -> (Gpu, Device) {
    let turn = gpu();
    let device = Device::new_cuda_with_stream(0).expect("a GPU");
    one_stream(&device);
    (turn, device)
}

/// Twelve steps of gradient descent; the losses, and the parameter at the end.
fn steps(device: &Device, repeated: bool) -> Result<Vec<f32>> {
    let on = |t: Tensor| t.to_device(device);
    let w = Var::from_tensor(&on(random((4, 9), 1))?)?;
    let grad = Var::from_tensor(&w.zeros_like()?)?;
    let (x, y) = (
        Var::from_tensor(&on(random((5, 9), 0))?)?,
        on(labels(5, 4, 2))?,
    );
    let loss = Var::zeros(1, DType::F32, device)?;
    let work = || {
        let y_hat = Expr::new(&x.detach()).linear(&w, None).relu().eval()?;
        let l = functional::sum(&cross_entropy(&y_hat, &y)?)?;
        functional::backward(&l, [(&w, &grad)])?;
        Sgd::new(0.5).step_all(&[&w], &[grad.as_tensor().clone()], 5, None)?;
        loss.slice_set(&l.detach().reshape(1)?, 0, 0)
    };
    let mut step = Repeated::new(device);
    let mut found = Vec::new();
    for i in 0..12 {
        x.slice_set(&on(random((5, 9), i % 3))?, 0, 0)?;
        match repeated {
            true => step.run(work)?,
            false => work()?,
        }
        // between two steps the GPU does other things
        functional::linear(&on(random((50, 90), i))?, &on(random((7, 90), i))?, None)?;
        found.extend(values(&loss));
    }
    found.extend(values(&w));
    assert_eq!(step.is_recorded(), repeated);
    Ok(found)
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn work_that_is_repeated_gives_the_same_bits() {
    let (_turn, device) = alone();
    assert_eq!(
        steps(&device, true).unwrap(),
        steps(&device, false).unwrap()
    );
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn what_cannot_be_repeated_is_an_error() {
    let (_turn, device) = alone();
    let x = random((5, 9), 0).to_device(&device).unwrap();
    let error = |work: &dyn Fn(usize) -> Result<()>| {
        let mut repeated = Repeated::new(&device);
        let mut runs = (0..20).map(|i| repeated.run(|| work(i)));
        runs.find_map(Result::err).expect("an error").to_string()
    };
    let waits = error(&|_| {
        let sum = functional::sum(&x)?;
        sum.to_scalar::<f32>().map(|_| ())
    });
    assert!(
        waits.contains("copies between the host and the GPU"),
        "{waits}"
    );
    let brings = error(&|_| Tensor::new(&[1f32], &device).map(|_| ()));
    assert!(
        brings.contains("copies between the host and the GPU"),
        "{brings}"
    );
    let kept = RefCell::new(Vec::new());
    let keeps = error(&|_| {
        kept.borrow_mut().push(functional::relu(&x)?);
        Ok(())
    });
    assert!(keeps.contains("keep a tensor"), "{keeps}");
    let grows = error(&|i| {
        let x = Tensor::zeros((2 << i, 3, 4, 4), DType::F32, &device)?;
        functional::relu(&functional::nhwc(&x)?)?;
        let expr = Expr::new(&x).nhwc().relu().max_pool2d(2, 2);
        expr.eval().map(|_| ())
    });
    assert!(grows.contains("must allocate the same memory"), "{grows}");
    let with_events = Device::new_cuda_with_stream(0).unwrap();
    let untold = Repeated::new(&with_events).run(|| Ok(())).unwrap_err();
    assert!(untold.to_string().contains("one_stream"), "{untold}");
    // and all is as before
    assert_eq!(
        values(&functional::sum(&x).unwrap()),
        values(&functional::sum(&random((5, 9), 0)).unwrap())
    );
}
