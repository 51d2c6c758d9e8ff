//! `check_gradients` finds a wrong gradient of each kind, and lets right ones pass.

use crate::support::{Faulty, WayBack, assert_refused, random};
use candle_core::{DType, Device, Result, Tensor, Var, bail};
use functional::{GradientError, check_gradients};

/// Half of the elements have a gradient.
fn half(dy: &Tensor) -> Result<Option<Tensor>> {
    let row = Tensor::cat(&[dy.narrow(0, 0, 4)?, dy.narrow(0, 4, 4)?.zeros_like()?], 0)?;
    Ok(Some(row))
}

fn shifted(dy: &Tensor) -> Result<Option<Tensor>> {
    let (first, last) = (dy.narrow(0, 0, 1)?, dy.narrow(0, 1, 7)?);
    Ok(Some(Tensor::cat(&[last, first], 0)?))
}

/// What is lost along some directions alone.
fn without_mean(dy: &Tensor) -> Result<Option<Tensor>> {
    Ok(Some(dy.broadcast_sub(&dy.mean_keepdim(0)?)?))
}

fn check(
    way_back: WayBack,
    dtype: DType,
    tolerance: f64,
) -> std::result::Result<(), GradientError> {
    let x = random((8, 8), 1).to_dtype(dtype)?;
    let f = |x: &[Tensor]| x[0].contiguous()?.apply_op1(Faulty(way_back))?.tanh();
    check_gradients(f, &[x], tolerance)
}

#[test]
fn a_wrong_gradient_of_each_kind_is_found() {
    let wrong = "the gradient of input 0 of shape [8, 8] is wrong: ";
    let missing = "the gradient of input 0 of shape [8, 8] is missing: ";
    let failed = "the backward pass failed: ";
    let kinds: [(&str, WayBack, &str); 8] = [
        ("three quarters", |dy| Ok(Some((dy * 0.75)?)), wrong),
        ("the wrong sign", |dy| Ok(Some(dy.neg()?)), wrong),
        ("transposed", |dy| Ok(Some(dy.t()?.contiguous()?)), wrong),
        ("half", half, wrong),
        ("shifted", shifted, wrong),
        ("without its mean", without_mean, wrong),
        ("none", |_| Ok(None), missing),
        ("an error", |_| bail!("no way back"), failed),
    ];
    for (dtype, tolerance) in [(DType::F32, 0.05), (DType::F64, 1e-6)] {
        for (kind, way_back, expected) in kinds {
            let error = check(way_back, dtype, tolerance).expect_err(kind);
            let is_found = error.to_string().starts_with(expected);
            assert!(is_found, "{kind}, {dtype:?}: {error}");
        }
        check(|dy| Ok(Some(dy.clone())), dtype, tolerance).expect("it is right");
    }
}

#[test]
fn a_message_has_the_input_and_both_numbers() -> Result<()> {
    let f = |x: &[Tensor]| x[0].matmul(&x[1].apply_op1(Faulty(|dy| Ok(Some((dy * 0.5)?))))?);
    let inputs = [random((2, 3), 1), random((3, 4), 2)];
    let error = check_gradients(f, &inputs, 0.05).unwrap_err();
    let GradientError::Wrong {
        gradient: Some(gradient),
        difference,
        ..
    } = error
    else {
        panic!("{error}")
    };
    assert!((gradient / difference - 0.5).abs() < 0.01, "{error}");
    let expected = format!(
        "the gradient of input 1 of shape [3, 4] is wrong: along one direction candle's is {gradient:.4}, and a \
         finite difference {difference:.4} (0.50 times)"
    );
    assert_eq!(error.to_string(), expected);
    Ok(())
}

#[test]
fn variables_are_checked_and_set_back() -> Result<()> {
    let weight = Var::from_tensor(&random((4, 3), 1))?;
    let before = weight.to_vec2::<f32>()?;
    let tokens = [Tensor::new(&[0u32, 3, 1], &Device::Cpu)?];
    let embedding = candle_nn::Embedding::new(weight.as_tensor().clone(), 3);
    let forward = |x: &[Tensor]| candle_core::Module::forward(&embedding, &x[0]);
    check_gradients(forward, &tokens, 0.05)?;
    let wrong = |x: &[Tensor]| forward(x)?.apply_op1(Faulty(|dy| Ok(Some((dy * 3.)?))));
    let words = "the gradient of the variables is wrong";
    assert_refused(words, check_gradients(wrong, &tokens, 0.05));
    // as an input of its own
    let both = [tokens[0].clone(), weight.as_tensor().clone()];
    let words = "the gradient of input 1 of shape [4, 3] is wrong";
    assert_refused(words, check_gradients(|x| wrong(&x[..1]), &both, 0.05));
    // also by a panic in the middle
    let calls = std::cell::Cell::new(0);
    let panics = |x: &[Tensor]| {
        calls.set(calls.get() + 1);
        assert!(calls.get() < 5, "on purpose");
        forward(x)
    };
    let unwinding = std::panic::AssertUnwindSafe(|| check_gradients(panics, &tokens, 0.05));
    assert!(std::panic::catch_unwind(unwinding).is_err());
    assert_eq!(weight.to_vec2::<f32>()?, before);
    Ok(())
}

#[test]
fn what_cannot_be_compared_is_an_error() -> Result<()> {
    let says = |f: fn(&Tensor) -> Result<Tensor>, words: &str| {
        let x = [random((4, 8), 1)];
        assert_refused(words, check_gradients(|x| f(&x[0]), &x, 0.05));
    };
    says(
        |x| candle_nn::ops::dropout(x, 0.5),
        "gives another result each time",
    );
    says(|x| x.log(), "gives NaN or infinity");
    says(|x| x.ge(0f32), "the function gives U8; expected f32 or f64");
    says(|x| x.matmul(x), "shape mismatch");
    Ok(())
}

/// What is computed in a coarser type than what goes in and comes out: a right gradient passes, and one that is a quarter
/// of it does not.
#[test]
fn precision_is_that_of_the_coarsest_type() -> Result<()> {
    use DType::{BF16, F16, F32, F64};

    for (dtype, outside) in [(BF16, F32), (F16, F32), (F32, F64), (BF16, F64)] {
        for rows in [1, 2, 3, 5, 20, 100] {
            let (x, w) = (random((rows, 6), rows as u64), random((6, 3), 7));
            let inputs = [x.to_dtype(outside)?, w.to_dtype(outside)?];
            let product = |t: &[Tensor]| {
                t[0].to_dtype(dtype)?
                    .matmul(&t[1].to_dtype(dtype)?)?
                    .to_dtype(outside)
            };
            let tolerance = 0.05;
            let checked = check_gradients(product, &inputs, tolerance);
            checked.map_err(|error| {
                candle_core::Error::Msg(format!("{dtype:?}, {rows} rows: {error}"))
            })?;
            let faulty = |t: &[Tensor]| {
                product(&[
                    t[0].apply_op1(Faulty(|dy| Ok(Some((dy * 0.25)?))))?,
                    t[1].clone(),
                ])
            };
            let found = check_gradients(faulty, &inputs, tolerance).is_err();
            assert!(
                found,
                "{dtype:?}, {rows} rows: a quarter of the gradient passes"
            );
        }
    }
    Ok(())
}
