//! A network that is written once and computed in all ways that are compared: by the operations on the CPU or on a
//! GPU, by the reference, and by the reference in f64.

use crate::reference;
use crate::support::*;
use candle_core::{DType, Result, Tensor, Var};
use functional::{Attention, BatchNorm, Network, Value, candle};

/// A value, and what the reference computes for it. In f64 there is the reference alone, on a GPU the value alone.
#[derive(Clone)]
pub struct Both {
    ours: Option<Value>,
    reference: Option<Tensor>,
    /// Of each batch norm before it.
    pub running: Vec<Running>,
    /// How near a value comes to the edge of a ReLU before it, other than 0 itself.
    pub edge: f32,
}

/// The running statistics of a batch norm: mean and variance.
#[derive(Clone)]
pub struct Running {
    pub ours: [Var; 2],
    reference: [Var; 2],
}

impl Running {
    /// For as many channels as `weight` has, of its type and on its device.
    pub fn of(weight: &Tensor) -> Result<Self> {
        let (mean, variance) = (random(weight.dims(), 9), weight.ones_like()?);
        let mean = mean.to_dtype(weight.dtype())?.to_device(weight.device())?;
        let var = |t: &Tensor| Var::from_tensor(t);
        let ours = [var(&mean)?, var(&variance)?];
        let reference = [var(&mean)?, var(&variance)?];
        Ok(Self { ours, reference })
    }

    /// Checks that a pass has moved ours as the reference's.
    pub fn assert_same(&self) {
        for (ours, theirs) in self.ours.iter().zip(&self.reference) {
            assert_near("running statistics", &values(ours), &values(theirs), 1e-5);
        }
    }
}

impl Both {
    pub fn new(x: &Tensor) -> Result<Self> {
        let is_ours = x.dtype() == DType::F32;
        Ok(Self {
            ours: is_ours.then(|| Value::new(x)).transpose()?,
            reference: x.device().is_cpu().then(|| x.clone()),
            running: Vec::new(),
            edge: f32::INFINITY,
        })
    }

    pub fn ours(&self) -> Value {
        self.ours.clone().expect("f32")
    }

    pub fn reference(&self) -> Tensor {
        self.reference.clone().expect("on the CPU")
    }

    /// What an operation and its reference make of a value.
    pub fn apply(
        &self,
        ours: impl FnOnce(&Value) -> Result<Value>,
        reference: impl FnOnce(&Tensor) -> Result<Tensor>,
    ) -> Result<Self> {
        let ours = self.ours.as_ref().map(ours).transpose()?;
        let reference = self.reference.as_ref().map(reference).transpose()?;
        if let (Some(ours), Some(reference)) = (&ours, &reference) {
            assert_eq!(ours.dims(), reference.dims());
        }
        Ok(Self {
            ours,
            reference,
            running: self.running.clone(),
            edge: self.edge,
        })
    }

    pub fn relu(&self) -> Result<Self> {
        let mut y = self.apply(Value::relu, reference::relu)?;
        if let Some(x) = &self.reference {
            let sizes = values(&x.to_dtype(DType::F32)?).into_iter().map(f32::abs);
            y.edge = sizes.filter(|size| *size > 0.).fold(y.edge, f32::min);
        }
        Ok(y)
    }

    /// ReLU of what the two round differently, a convolution by Winograd's algorithm or a batch norm: a value of 0 is at
    /// the edge too.
    pub fn relu_of_rounded(&self) -> Result<Self> {
        let mut y = self.relu()?;
        let reference = self.reference.as_ref();
        if reference.is_some_and(|x| values(x).contains(&0.)) {
            y.edge = 0.;
        }
        Ok(y)
    }

    pub fn plus(&self, other: &Self) -> Result<Self> {
        let mut sum = self.apply(
            |x| x + &other.ours(),
            |x| reference::add(x, &other.reference()),
        )?;
        sum.running.extend(other.running.clone());
        sum.edge = sum.edge.min(other.edge);
        Ok(sum)
    }

    pub fn times(&self, other: &Self) -> Result<Self> {
        self.apply(|x| x * &other.ours(), |x| x * other.reference())
    }

    pub fn minus(&self, other: &Self) -> Result<Self> {
        self.apply(|x| x - &other.ours(), |x| x - other.reference())
    }

    pub fn broadcast_mul(&self, other: &Self) -> Result<Self> {
        self.apply(
            |x| x.broadcast_mul(&other.ours()),
            |x| reference::broadcast_mul(x, &other.reference()),
        )
    }

    pub fn broadcast_add(&self, other: &Self) -> Result<Self> {
        self.apply(
            |x| x.broadcast_add(&other.ours()),
            |x| reference::broadcast_add(x, &other.reference()),
        )
    }

    /// This value and others.
    pub fn cat(&self, others: &[&Self], dim: usize) -> Result<Self> {
        self.apply(
            |x| {
                let ours: Vec<Value> = others.iter().map(|other| other.ours()).collect();
                let all: Vec<&Value> = [x].into_iter().chain(&ours).collect();
                Value::cat(&all, dim)
            },
            |x| {
                let others: Vec<Tensor> = others.iter().map(|other| other.reference()).collect();
                let all: Vec<&Tensor> = [x].into_iter().chain(&others).collect();
                reference::cat(&all, dim)
            },
        )
    }

    /// Of queries, to keys and values.
    pub fn attention(
        &self,
        key: &Self,
        value: &Self,
        how: &Attention,
        heads: &reference::Heads<'_>,
    ) -> Result<Self> {
        self.apply(
            |x| x.attention(&key.ours(), &value.ours(), how),
            |x| reference::attention(x, &key.reference(), &value.reference(), heads),
        )
    }

    pub fn batch_norm2d_with(
        &self,
        [weight, bias]: [&Tensor; 2],
        running: &Running,
        train: bool,
        how: BatchNorm,
    ) -> Result<Self> {
        let ([mean, var], [mean_there, var_there]) = (&running.ours, &running.reference);
        let there = [mean_there, var_there];
        let mut y = self.apply(
            |x| x.batch_norm2d_with([weight, bias], [mean, var], None, train, how),
            |x| reference::batch_norm2d_with(x, weight, bias, there, train, how),
        )?;
        y.running.push(running.clone());
        Ok(y)
    }

    pub fn batch_norm2d(
        &self,
        weight: &Tensor,
        bias: &Tensor,
        running: &Running,
        train: bool,
    ) -> Result<Self> {
        let ([mean, var], [mean_there, var_there]) = (&running.ours, &running.reference);
        let mut y = self.apply(
            |x| x.batch_norm2d([weight, bias], [mean, var], None, train),
            |x| reference::batch_norm2d(x, weight, bias, mean_there, var_there, train),
        )?;
        y.running.push(running.clone());
        Ok(y)
    }

    pub fn binary_cross_entropy(&self, y: &Tensor) -> Result<Self> {
        self.apply(
            |x| functional::binary_cross_entropy(x, y),
            |x| reference::binary_cross_entropy(x, &y.to_dtype(x.dtype())?),
        )
    }

    pub fn masked_cross_entropy(&self, y: &Tensor, mask: &Tensor) -> Result<Self> {
        self.apply(
            |x| functional::masked_cross_entropy(x, y, mask),
            |x| reference::masked_cross_entropy(x, y, &mask.to_dtype(x.dtype())?),
        )
    }

    /// Of a value that is the weight.
    pub fn embedding(&self, weight: &Tensor, tokens: &Tensor) -> Result<Self> {
        self.apply(
            |_| Value::new(&tokens.to_device(weight.device())?)?.embedding(weight),
            |weight| reference::embedding(tokens, weight),
        )
    }

    pub fn squared_error(&self, y: &Tensor) -> Result<Self> {
        self.apply(
            |x| functional::squared_error(x, y),
            |x| reference::squared_error(x, &y.to_dtype(x.dtype())?),
        )
    }

    /// A function of candle's operations, which is an operation of ours.
    pub fn candle(&self, f: impl Fn(&Tensor) -> Result<Tensor> + Clone + 'static) -> Result<Self> {
        let theirs = f.clone();
        self.apply(|x| candle(f).forward(x, true), theirs)
    }
}

/// Operations that are methods of [`Value`], and functions of the same name in [`reference`].
macro_rules! operations {
    ($($name:ident($($argument:ident: $kind:ty),*)),* $(,)?) => {
        impl Both {
            $(pub fn $name(&self, $($argument: $kind),*) -> Result<Self> {
                self.apply(|x| x.$name($($argument),*), |x| reference::$name(x, $($argument),*))
            })*
        }
    };
}

operations! {
    nhwc(), flatten(), sum(), mean(), detach(), global_avg_pool2d(),
    conv2d(weight: &Tensor, bias: Option<&Tensor>, stride: usize, padding: usize),
    grouped_conv2d(
        weight: &Tensor, bias: Option<&Tensor>, stride: usize, padding: usize, groups: usize
    ),
    conv_transpose2d(
        weight: &Tensor, bias: Option<&Tensor>, stride: usize, padding: usize, output_padding: usize
    ),
    upsample_nearest2d(height: usize, width: usize),
    upsample_bilinear2d(height: usize, width: usize),
    avg_pool2d(kernel: usize, stride: usize),
    max_pool2d(kernel: usize, stride: usize),
    linear(weight: &Tensor, bias: Option<&Tensor>),
    matmul(weight: &Tensor, bias: Option<&Tensor>),
    cross_entropy(y: &Tensor), gelu(), causal_attention(heads: usize),
    layer_norm(weight: &Tensor, bias: &Tensor), dropout(p: f64, seed: u64),
    layer_norm_eps(weight: &Tensor, bias: &Tensor, eps: f32), rms_norm(weight: &Tensor, eps: f32),
    group_norm(groups: usize, weight: &Tensor, bias: &Tensor, eps: f32),
    sigmoid(), tanh(), silu(), relu6(), clamp(least: f32, most: f32), affine(scale: f32, shift: f32),
    narrow(dim: usize, start: usize, len: usize), reshape(shape: &[usize]),
    rotary(heads: usize, cos: &Tensor, sin: &Tensor),
    rotary_interleaved(heads: usize, cos: &Tensor, sin: &Tensor),
    lstm(weights: [&Tensor; 2], biases: [&Tensor; 2]), gru(weights: [&Tensor; 2], biases: [&Tensor; 2]),
}

/// Checks that both sides of a network of variables agree, in the value, in all gradients and in the running
/// statistics, and that a pass without gradients gives the same bits.
pub fn assert_both(inputs: &[Tensor], tolerance: f64, network: impl Fn(&[Tensor]) -> Result<Both>) {
    let vars = variables(inputs).unwrap();
    let both = network(&tensors(&vars)).unwrap();
    let up = upstream(both.ours().dims());
    let theirs = reference_pass(&vars, &both.reference(), &up).unwrap();
    let ours = pass(&vars, &both.ours(), up.clone()).unwrap();
    assert_results(&ours, &theirs, tolerance);
    // on devices without a kernel of it
    if let Some(of_candle) = network(&tensors(&vars)).unwrap().ours().without_kernel() {
        assert_results(&pass(&vars, &of_candle, up).unwrap(), &theirs, tolerance);
    }
    both.running.iter().for_each(Running::assert_same);
    let alone = network(&tensors(&vars)).unwrap().ours().eval().unwrap();
    assert!(!alone.track_op() && !alone.is_variable());
    assert!(bits(&alone) == bits(&ours[0]), "without gradients");
}

/// As [`assert_both`]; and that the value is that of the reference in f64, of which the central difference along a
/// random direction, in each input, is what the gradient says. Not for networks with a kink at these inputs.
pub fn assert_differences(
    inputs: &[Tensor],
    tolerance: f64,
    network: impl Fn(&[Tensor]) -> Result<Both>,
) {
    assert_both(inputs, tolerance, &network);
    let vars = variables(inputs).unwrap();
    let y = network(&tensors(&vars)).unwrap().ours();
    let up = upstream(y.dims());
    let results = pass(&vars, &y, up.clone()).unwrap();
    let [results, inputs] = [&results, inputs].map(|all| {
        let wide = all.iter().map(|t| t.to_dtype(DType::F64).unwrap());
        wide.collect::<Vec<_>>()
    });
    let up = up.to_dtype(DType::F64).unwrap();
    let at = |point: &[Tensor]| network(point).unwrap().reference();
    let numbers = |t: Result<Tensor>| t.unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
    let (value, expected) = (values(&y.eval().unwrap()), numbers(Ok(at(&inputs))));
    assert_close("the value", &value, &expected, tolerance);
    for (i, gradient) in results[1..].iter().enumerate() {
        let direction = random(gradient.dims(), 98).to_dtype(DType::F64).unwrap();
        let loss = |step: f64| {
            let mut point = inputs.clone();
            point[i] = ((&direction * step).unwrap() + &point[i]).unwrap();
            numbers(at(&point) * &up).iter().sum::<f64>()
        };
        let difference = (loss(STEP) - loss(-STEP)) / (2. * STEP);
        let terms = numbers(gradient * &direction);
        let size = terms.iter().fold(1., |size, term| size + term.abs());
        let error = (terms.iter().sum::<f64>() - difference).abs() / size;
        // written so that NaN fails
        assert!(error <= tolerance, "gradient {i}: {error:e} apart");
    }
}

/// In f64, of functions of about 1: the differences are exact to about 1e-9.
const STEP: f64 = 1e-6;
