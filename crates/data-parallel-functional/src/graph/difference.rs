//! Compares the gradients that candle computes with finite differences.

use super::gradient_error::GradientError;
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor, Var, bail};
use devices::without_backtrace;

/// Number of random directions.
const DIRECTIONS: u64 = 5;

/// Most of them.
pub(crate) const MOST: usize = DIRECTIONS as usize / 2 + 1;

/// Results of a minibatch below this part of 1 can be what rounding has left.
const SMALL: f64 = 1e-3;

/// Number of further runs that must give the same result.
const RUNS: usize = 4;

/// The largest distance, in proportion, between the gradient of a module and a difference in f32: kinks lie between the
/// points.
pub(crate) const TOLERANCE: f64 = 0.05;

/// Two finite differences that are closer to each other than this part of their distance from the gradient are certain.
const CERTAIN: f64 = 0.15;

pub(crate) const NO_NUMBER: &str = "gives NaN or infinity";
pub(crate) const RANDOM: &str = "gives another result each time";

/// Compares the gradients that candle computes of `f` with finite differences. It checks each input of `inputs` that
/// has floats, f32 or f64. It also checks all variables that `f` reads, together.
///
/// candle computes no gradient for some operations, and a wrong one for others, without an error. A comparison takes
/// five random directions. For each it compares the derivative that follows from candle's gradient with
/// (f(x + h·d) − f(x − h·d)) / 2h. The gradient is wrong if three of the five differ, for each of three h, and the finite
/// differences of two h are close to each other: rounding makes others. It stops as soon as three agree or differ. `tolerance` is the largest allowed difference, in
/// proportion to the derivatives: 0.05 suits f32, 1e-6 suits f64. What is computed in f16 or bf16 in between is compared
/// over longer steps: only large errors of its gradients are found. Results with several elements are weighted and summed.
///
/// A gradient that is wrong in a small part passes: the parts are compared together. A part that is cut off on purpose,
/// as by `detach`, looks like a missing gradient.
///
/// Inputs should lie away from kinks: two equal values have no gradient in a max pooling. An input that is a variable is moved itself and set back, so the parameters of a module can be inputs:
///
/// ```
/// use candle_core::{DType, Device, Module, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// use data_parallel_functional::check_gradients;
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let x = Tensor::rand(0f32, 1., (4, 8), &Device::Cpu)?;
/// let linear = candle_nn::linear(8, 8, vb.pp("linear"))?;
/// check_gradients(|x| linear.forward(&x[0]), &[x.clone()], 0.05)?;
///
/// let norm = candle_nn::layer_norm(8, 1e-5, vb.pp("norm"))?;
/// let inputs = [x, norm.weight().clone()];
/// let error = check_gradients(|x| norm.forward(&x[0]), &inputs, 0.05).unwrap_err();
/// assert!(error.to_string().starts_with("the gradient of input 0 of shape [4, 8] is missing"), "{error}");
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// Names the input with both numbers, or says why it cannot compare them.
pub fn check_gradients(
    f: impl Fn(&[Tensor]) -> Result<Tensor>,
    inputs: &[Tensor],
    tolerance: f64,
) -> std::result::Result<(), GradientError> {
    let check = GradientCheck {
        f,
        tolerance,
        brief: None,
        is_trained: |_: &Tensor| true,
        variables: &[],
        direction: None,
    };
    check.run(inputs)
}

/// Makes of an input and a random direction a direction along which the function has a derivative.
pub(crate) type Direction<'a> = dyn Fn(&Tensor, Tensor) -> Result<Tensor> + 'a;

/// A function, and how its gradients are compared.
pub(crate) struct GradientCheck<'a, F, T> {
    pub f: F,
    pub tolerance: f64,
    /// In a brief comparison, how many directions are enough if all of them agree: one, or most of five.
    pub brief: Option<usize>,
    /// True for the variables that are compared, of those that the function reads.
    pub is_trained: T,
    /// Variables that are compared although candle may give them no gradient.
    pub variables: &'a [Var],
    /// Set if all inputs move at the same time, each along a direction that this makes.
    pub direction: Option<&'a Direction<'a>>,
}

impl<F: Fn(&[Tensor]) -> Result<Tensor>, T: Fn(&Tensor) -> bool> GradientCheck<'_, F, T> {
    /// Compares the gradients of `inputs` and of variables.
    pub fn run(&self, inputs: &[Tensor]) -> std::result::Result<(), GradientError> {
        let xs = inputs.iter().map(movable).collect::<Result<Vec<_>>>()?;
        let y = (self.f)(&xs)?;
        let weights = random(&y, 0)?;
        let weighted = || sum(&((self.f)(&xs)? * &weights)?);
        let once = weighted()?;
        if !once.is_finite() {
            return Err(GradientError::Incomparable(NO_NUMBER));
        }
        let loss = (&y * &weights)?;
        let mut size = sum(&loss.sqr()?)?.sqrt();
        // the gradients are those of y
        if self.differs(sum(&loss)?, once, size) || self.brief.is_none() && changes(once, weighted)?
        {
            return Err(GradientError::Incomparable(RANDOM));
        }
        let gradients = loss
            .sum_all()?
            .backward()
            .map_err(|error| GradientError::Backward(without_backtrace(error)))?;
        let weight = sum(&weights.sqr()?)?.sqrt();
        if self.brief.is_some() && size < SMALL * weight {
            size = weight; // numbers of a minibatch can be small because large ones are subtracted
        }
        let check = |of: String, tensors: &[Tensor], direction: Option<&Direction<'_>>| {
            let function = Function {
                f: weighted,
                here: once,
                size,
                weight,
                precision: Precision::of(&y, tensors),
                made: direction,
            };
            let Some(wrong) = function.compare(tensors, &gradients, self.tolerance, self.brief)?
            else {
                return Ok(());
            };
            let there = tensors.iter().any(|x| gradients.get(x).is_some());
            Err(GradientError::Wrong {
                of,
                gradient: there.then_some(wrong.gradient),
                difference: wrong.difference(),
            })
        };
        let name = |i: usize, x: &Tensor| format!("input {i} of shape {:?}", x.dims());
        let checked = || xs.iter().enumerate().filter(|(_, x)| is_checked(x));
        if self.direction.is_some() {
            let names: Vec<String> = checked().map(|(i, x)| name(i, x)).collect();
            let all: Vec<Tensor> = checked().map(|(_, x)| x.clone()).collect();
            check(names.join(" and "), &all, self.direction)?;
        } else {
            for (i, x) in checked() {
                check(name(i, x), std::slice::from_ref(x), None)?;
            }
        }
        let variables = self.variables_of(&y, &xs);
        check("the variables".to_owned(), &variables, None)
    }

    /// True if two runs gave different numbers. A brief comparison may run on a GPU, where the order of a sum can change.
    fn differs(&self, one: f64, other: f64, size: f64) -> bool {
        match self.brief {
            Some(_) => (one - other).abs() > SMALL * size,
            None => one.to_bits() != other.to_bits(),
        }
    }

    /// The variables that are compared: those that are asked for, and of those that `y` depends on the trained ones that
    /// are none of the inputs.
    fn variables_of(&self, y: &Tensor, inputs: &[Tensor]) -> Vec<Tensor> {
        let asked_for = self.variables.iter().map(|x| x.as_tensor().clone());
        let mut variables: Vec<Tensor> = asked_for.collect();
        for x in y.sorted_nodes() {
            let is_there = |other: &Tensor| other.id() == x.id();
            let is_known = inputs.iter().chain(&variables).any(is_there);
            if x.is_variable() && is_checked(x) && !is_known && (self.is_trained)(x) {
                variables.push(x.clone());
            }
        }
        variables
    }
}

/// True if a function gives another number than once before. A dropout of few numbers may draw the same ones twice.
fn changes(once: f64, again: impl Fn() -> Result<f64>) -> Result<bool> {
    for _ in 0..RUNS {
        if once.to_bits() != again()?.to_bits() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_checked(x: &Tensor) -> bool {
    matches!(x.dtype(), DType::F32 | DType::F64)
}

/// The input as a variable, if it is checked.
fn movable(x: &Tensor) -> Result<Tensor> {
    if is_checked(x) {
        Ok(Var::from_tensor(x)?.into_inner())
    } else {
        Ok(x.clone())
    }
}

/// A function that gives one number.
struct Function<'a, F> {
    f: F,
    /// Its number where nothing is moved.
    here: f64,
    /// That of the numbers which it sums, and of the weights by which they are multiplied.
    size: f64,
    weight: f64,
    precision: Precision,
    /// Makes the directions, see [`GradientCheck::direction`].
    made: Option<&'a Direction<'a>>,
}

/// The precision with which a function is computed.
#[derive(Clone, Copy)]
struct Precision {
    /// Steps over which its rounding does not hide a difference.
    steps: [f64; 3],
    /// Its largest error, in proportion to what it sums.
    rounding: f64,
}

impl Precision {
    /// That of the coarsest type between `moved` and `y`, which can be other than those at both ends.
    fn of(y: &Tensor, moved: &[Tensor]) -> Self {
        let between = y.sorted_nodes().into_iter().chain([y]).chain(moved);
        let types = between.map(Tensor::dtype).filter(DType::is_float);
        let bits = types.map(|dtype| match dtype {
            DType::F64 => 52,
            DType::F32 => 23,
            DType::F16 => 10,
            _ => 7, // bf16, and what is coarser
        });
        match bits.min() {
            Some(52) => Self {
                steps: [1e-5, 1e-6, 1e-7],
                rounding: 1e-14,
            },
            Some(7) => Self {
                steps: [0.5, 0.4, 0.3],
                rounding: 8e-3,
            },
            Some(10) => Self {
                steps: [0.1, 0.05, 0.03],
                rounding: 1e-3,
            },
            _ => Self {
                steps: [1e-3, 3e-4, 1e-4],
                rounding: 1e-6,
            },
        }
    }
}

impl<F: Fn() -> Result<f64>> Function<'_, F> {
    /// The derivative in one direction, if most directions differ by more than `tolerance` and rounding. All of `tensors`
    /// move together. A brief comparison may pass if the first direction agrees.
    ///
    /// Each derivative is two runs of the function, so they are computed one by one, until most directions agree or most
    /// differ. The allowed difference is in proportion to the derivatives so far.
    fn compare(
        &self,
        tensors: &[Tensor],
        gradients: &GradStore,
        tolerance: f64,
        brief: Option<usize>,
    ) -> Result<Option<Derivative>> {
        if tensors.is_empty() {
            return Ok(None);
        }
        let moved = with_sizes(tensors)?;
        let mut tried: [Vec<Derivative>; 3] = Default::default();
        // a kink between two points disturbs one direction, or one step; a wrong gradient disturbs most of them
        for (step, found) in self.precision.steps.into_iter().zip(&mut tried) {
            loop {
                let direction = found.len() as u64 + 1;
                found.push(self.derivative(&moved, gradients, direction, step)?);
                let enough = match brief {
                    Some(enough) if step == self.precision.steps[0] && direction == 1 => enough,
                    _ => MOST,
                };
                let agree = self.agree(found, tolerance, step);
                if agree >= enough {
                    return Ok(None);
                }
                if found.len() - agree >= MOST {
                    break;
                }
            }
        }
        let mut certain = Vec::new();
        for direction in 0..DIRECTIONS as usize {
            for (step, found) in self.precision.steps.into_iter().zip(&mut tried) {
                if found.len() == direction {
                    found.push(self.derivative(&moved, gradients, direction as u64 + 1, step)?);
                }
            }
            let steps = tried.each_ref().map(|found| found[direction]);
            certain.extend(is_certain(&steps).then_some(steps[2]));
            if certain.len() == MOST || direction + 1 - certain.len() == MOST {
                break;
            }
        }
        if certain.len() < MOST {
            return Ok(None);
        }
        let steepest = |of: &Derivative| of.gradient.abs().max(of.difference().abs());
        Ok(certain
            .into_iter()
            .max_by(|a, b| steepest(a).total_cmp(&steepest(b))))
    }

    /// The number of directions in which gradient and difference agree.
    fn agree(&self, found: &[Derivative], tolerance: f64, step: f64) -> usize {
        let norm = |part: fn(&Derivative) -> f64| found.iter().map(part).fold(0., f64::hypot);
        let larger = norm(|of| of.gradient).max(norm(Derivative::difference));
        let mean = larger / (found.len() as f64).sqrt();
        // numbers that stay the same may be small because large ones are subtracted, as in a norm of equal numbers
        let is_flat = found.iter().all(|of| of.difference() == 0.);
        let size = if is_flat {
            self.size.max(self.weight)
        } else {
            self.size
        };
        let allowed = self.precision.rounding * size / step + tolerance * mean;
        let agrees = |of: &&Derivative| of.apart() <= allowed && allowed.is_finite();
        found.iter().filter(agrees).count()
    }

    /// The derivative in a direction. Each tensor moves in proportion to its size.
    fn derivative(
        &self,
        tensors: &[(&Tensor, f64)],
        gradients: &GradStore,
        direction: u64,
        step: f64,
    ) -> Result<Derivative> {
        let mut gradient = 0.;
        let mut moved = Moved(Vec::new());
        for (i, (x, size)) in tensors.iter().enumerate() {
            let mut along = (random(x, direction + (i as u64) * (DIRECTIONS + 1))? * *size)?;
            if let Some(made) = self.made {
                along = made(x, along)?;
            }
            if let Some(of_x) = gradients.get(x) {
                gradient += sum(&(of_x * &along)?)?;
            }
            moved.0.push((Var::from_tensor(x)?, x.copy()?, along));
        }
        let at = |step: f64| {
            moved.to(step)?;
            (self.f)()
        };
        let [ahead, behind] = [at(step)?, at(-step)?];
        Ok(Derivative {
            gradient,
            ahead: (ahead - self.here) / step,
            behind: (self.here - behind) / step,
            rounding: self.precision.rounding * self.size.max(self.weight) / step,
        })
    }
}

/// The slope of a function in a direction: by the gradients, and over a step to either side.
#[derive(Clone, Copy)]
struct Derivative {
    gradient: f64,
    ahead: f64,
    behind: f64,
    /// The part of a slope that rounding can make, if the function computes with numbers of about 1.
    rounding: f64,
}

impl Derivative {
    fn difference(&self) -> f64 {
        (self.ahead + self.behind) / 2.
    }

    fn apart(&self) -> f64 {
        (self.gradient - self.difference()).abs()
    }

    /// The distance of the two sides: at a kink a gradient has no one value.
    fn bend(&self) -> f64 {
        (self.ahead - self.behind).abs()
    }
}

/// True if finite differences, of steps that follow each other, are much closer to each other than to the gradient, and
/// to 0 unless they are rounding. Where rounding, kinks or a steep place make the differences, they are not.
fn is_certain(steps: &[Derivative]) -> bool {
    let mut pairs = steps.windows(2);
    pairs.any(|both| {
        let [larger, smaller] = [both[0], both[1]];
        let apart = larger.apart().min(smaller.apart());
        let between = (larger.difference() - smaller.difference()).abs();
        let unsure = between.max(larger.bend()).max(smaller.bend());
        let size = larger.difference().abs().max(smaller.difference().abs());
        unsure < CERTAIN * apart && (between < CERTAIN * size || size <= smaller.rounding)
    })
}

/// The sum of all changes in the result of `f`, which is `before`, where `variables` move, each in a random direction of
/// its own: what only depends on their difference changes too.
pub(crate) fn change(
    f: impl Fn() -> Result<Tensor>,
    before: &Tensor,
    variables: &[&Var],
) -> Result<f64> {
    let mut moved = Moved(Vec::new());
    for (i, var) in variables.iter().enumerate() {
        let along = (random(var, i as u64)? * 0.1)?;
        moved.0.push(((*var).clone(), var.copy()?, along));
    }
    moved.to(1.)?;
    sum(&(f()? - before)?.abs()?)
}

/// Moves the variables that are 0, until the result is dropped.
pub(crate) fn from_0(variables: &[Var]) -> Result<impl Drop + use<>> {
    let mut moved = Moved(Vec::new());
    for (i, var) in variables.iter().enumerate() {
        if root_mean_square(var)? == 0. {
            moved
                .0
                .push((var.clone(), var.copy()?, random(var, i as u64)?));
        }
    }
    moved.to(1.)?;
    Ok(moved)
}

/// Variables with their values and their directions. Dropped, also by a panic, it sets them back.
struct Moved(Vec<(Var, Tensor, Tensor)>);

impl Moved {
    /// Moves all by `step` from where they were.
    fn to(&self, step: f64) -> Result<()> {
        let mut all = self.0.iter();
        all.try_for_each(|(var, was, along)| var.set(&(was + (along * step)?)?))
    }
}

impl Drop for Moved {
    fn drop(&mut self) {
        for (var, was, _) in &self.0 {
            let _ = var.set(was); // it has the shape and the type
        }
    }
}

fn root_mean_square(x: &Tensor) -> Result<f64> {
    Ok((sum(&x.sqr()?)? / x.elem_count().max(1) as f64).sqrt())
}

/// Each tensor with the size of its numbers; zeros have the size of the smallest that are others.
fn with_sizes(tensors: &[Tensor]) -> Result<Vec<(&Tensor, f64)>> {
    let sizes = tensors
        .iter()
        .map(root_mean_square)
        .collect::<Result<Vec<f64>>>()?;
    let others = sizes.iter().copied().filter(|size| *size > 0.);
    let smallest = others.reduce(f64::min).unwrap_or(1.);
    let size = |size: f64| if size > 0. { size } else { smallest };
    Ok(tensors.iter().zip(sizes.into_iter().map(size)).collect())
}

fn sum(values: &Tensor) -> Result<f64> {
    values.to_dtype(DType::F64)?.sum_all()?.to_scalar()
}

/// Numbers between -1 and 1 in the shape and type of `like`, the same each time.
pub(crate) fn random(like: &Tensor, seed: u64) -> Result<Tensor> {
    if !matches!(like.dtype(), DType::F32 | DType::F64) {
        bail!("the function gives {:?}; expected f32 or f64", like.dtype())
    }
    let count = like.elem_count() as u64;
    let numbers = (0..count).map(|i| 2. * fraction(i + (seed << 40)) - 1.);
    Tensor::from_iter(numbers, &Device::Cpu)?
        .reshape(like.dims())?
        .to_dtype(like.dtype())?
        .to_device(like.device())
}

/// A number from 0 to 1 that looks random (SplitMix64).
fn fraction(i: u64) -> f64 {
    let mut z = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) as f64 / u64::MAX as f64
}

/// Numbers in a range, the same each time. They are others than those of all directions: along x itself, a norm does not
/// change.
pub(crate) fn numbers(
    dims: &[usize],
    dtype: DType,
    device: &Device,
    [low, high]: [f64; 2],
    seed: u64,
) -> Result<Tensor> {
    let count = dims.iter().product::<usize>() as u64;
    let first = u64::MAX / 2 + (seed << 40);
    let numbers = (first..first + count).map(|i| (low + (high - low) * fraction(i)) as f32);
    Tensor::from_iter(numbers, device)?
        .reshape(dims)?
        .to_dtype(dtype)
}
