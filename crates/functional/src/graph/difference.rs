//! Compares the gradients of a function of candle's with finite differences.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor, Var, bail};

/// How far the largest element of a tensor goes to both sides.
const STEP: f64 = 5e-3;

/// How far apart, in proportion, gradient and difference may be: kinks lie between the sides.
const APART: f64 = 0.05;

/// Compares the gradient of `f` for its input, numbers between 0.1 and 1.1 of this shape, and that for all its
/// parameters, each in its own direction. What does not repeat itself is not compared.
///
/// # Errors
/// Names the function, where candle's gradient is wrong or an error.
pub(crate) fn check(
    name: &str,
    f: impl Fn(&Tensor) -> Result<Tensor>,
    dims: &[usize],
    device: &Device,
) -> Result<()> {
    let x = Var::from_tensor(&numbers(dims, 0.1, device)?)?;
    let y = f(&x)?;
    let up = numbers(y.dims(), -0.5, device)?;
    let weighed = || sum(&(f(&x)? * &up)?);
    let repeats = weighed()?.to_bits() == weighed()?.to_bits();
    let gradients = (&y * &up)?.sum_all()?.backward();
    let gradients =
        gradients.map_err(|e| e.context(format!("candle: the gradient of {name} failed")))?;
    let is_parameter = |t: &&Tensor| t.is_variable() && t.id() != x.id();
    let nodes = y.sorted_nodes();
    let parameters = nodes.into_iter().filter(is_parameter).map(Var::from_tensor);
    let groups = [
        ("input", vec![x.clone()]),
        ("parameters", parameters.collect::<Result<_>>()?),
    ];
    let rounding = 1e-6 * sum(&(&y * &up)?.abs()?)? / STEP;
    let compares = |(_, vars): &(&str, Vec<Var>)| repeats && !vars.is_empty();
    for (of, vars) in groups.into_iter().filter(compares) {
        let [gradient, difference] = compared(&vars, &gradients, weighed)?;
        let allowed = rounding + APART * difference.abs().max(gradient.abs());
        if (difference - gradient).abs() > allowed {
            bail!(
                "candle's gradient of {name} for its {of} is wrong: {:.2} times a finite difference. A \
                 network with it would not train right, without an error. The documentation of \
                 data_parallel::layers says what to use instead; Trainer::check_gradients(false) trains all the \
                 same",
                gradient / difference
            )
        }
    }
    Ok(())
}

/// How much `f` rises in the direction of the gradients of `vars`: as they say, and as it does.
fn compared(vars: &[Var], gradients: &GradStore, f: impl Fn() -> Result<f64>) -> Result<[f64; 2]> {
    let (mut gradient, mut along) = (0., Vec::new());
    for var in vars {
        let none = var.zeros_like()?;
        let of_var = gradients.get(var).unwrap_or(&none);
        let largest = of_var.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;
        let direction = match largest {
            0. => numbers(var.dims(), -0.5, var.device())?,
            largest => (of_var / f64::from(largest))?,
        };
        gradient += sum(&(of_var * &direction)?)?;
        along.push((var, var.copy()?, direction));
    }
    let at = |step: f64| {
        for (var, was, direction) in &along {
            var.set(&(was + (direction * step)?)?)?;
        }
        let risen = f();
        for (var, was, _) in &along {
            var.set(was)?;
        }
        risen
    };
    Ok([gradient, (at(STEP)? - at(-STEP)?) / (2. * STEP)])
}

fn sum(values: &Tensor) -> Result<f64> {
    values.to_dtype(DType::F64)?.sum_all()?.to_scalar()
}

/// The same numbers each time, from `least` to `least` + 1.
fn numbers(dims: &[usize], least: f32, device: &Device) -> Result<Tensor> {
    let fraction = |i: u32| i.wrapping_mul(2_654_435_769).rotate_left(7) as f32 / 2f32.powi(32);
    let numbers = (0..dims.iter().product::<usize>() as u32).map(|i| least + fraction(i + 1));
    Tensor::from_iter(numbers, device)?.reshape(dims)
}
