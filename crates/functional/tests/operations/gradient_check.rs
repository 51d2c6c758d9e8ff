//! `check_gradients` finds a wrong gradient of each kind, and lets right ones pass.

use crate::support::{Faulty, assert_refused, random};
use candle_core::{DType, Device, Result, Tensor, Var, bail};
use functional::{GradientError, check_gradients};

type Backward = fn(&Tensor) -> Result<Option<Tensor>>;

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
    backward: Backward,
    dtype: DType,
    tolerance: f64,
) -> std::result::Result<(), GradientError> {
    let x = random((8, 8), 1).to_dtype(dtype)?;
    let f = |x: &[Tensor]| x[0].contiguous()?.apply_op1(Faulty(backward))?.tanh();
    check_gradients(f, &[x], tolerance)
}

#[test]
fn a_wrong_gradient_of_each_kind_is_found() {
    let kinds: [(&str, Backward); 6] = [
        ("three quarters", |dy| Ok(Some((dy * 0.75)?))),
        ("the wrong sign", |dy| Ok(Some(dy.neg()?))),
        ("transposed", |dy| Ok(Some(dy.t()?.contiguous()?))),
        ("half", half),
        ("shifted", shifted),
        ("without its mean", without_mean),
    ];
    for (dtype, tolerance) in [(DType::F32, 0.05), (DType::F64, 1e-6)] {
        for (kind, backward) in kinds {
            let found = check(backward, dtype, tolerance);
            let wrong = matches!(
                &found,
                Err(GradientError::Wrong {
                    gradient: Some(_),
                    ..
                })
            );
            assert!(wrong, "{kind}, {dtype:?}: {found:?}");
        }
        let missing = check(|_| Ok(None), dtype, tolerance);
        let none = matches!(&missing, Err(GradientError::Wrong { gradient: None, .. }));
        assert!(none, "{missing:?}");
        let failing = check(|_| bail!("no way back"), dtype, tolerance);
        assert!(
            matches!(failing, Err(GradientError::Backward(_))),
            "{failing:?}"
        );
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

/// A norm does not change if a constant is added to x, so a wrong gradient cannot be seen in that direction.
#[test]
fn a_norm_without_a_gradient_is_found_also_beside_a_shortcut() -> Result<()> {
    let one = Tensor::ones(8, DType::F32, &Device::Cpu)?;
    let zero = one.zeros_like()?;
    let norm = |x: &Tensor| candle_nn::ops::layer_norm(x, &one, &zero, 1e-5);
    let x = [random((4, 8), 1)];
    let missing = check_gradients(|x| norm(&x[0]), &x, 0.05);
    assert!(
        matches!(missing, Err(GradientError::Wrong { gradient: None, .. })),
        "{missing:?}"
    );
    let lost = check_gradients(|x| &x[0] + norm(&x[0])?, &x, 0.05);
    assert!(matches!(lost, Err(GradientError::Wrong { .. })), "{lost:?}");
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
    let found = check_gradients(wrong, &tokens, 0.05);
    assert_refused("the gradient of the variables is wrong", found);
    // as an input of its own
    let inputs = [tokens[0].clone(), weight.as_tensor().clone()];
    let found = check_gradients(|x| wrong(&x[..1]), &inputs, 0.05);
    assert_refused("the gradient of input 1 of shape [4, 3] is wrong", found);
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
        let found = check_gradients(|x| f(&x[0]), &[random((4, 8), 1)], 0.05);
        assert_refused(words, found);
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
