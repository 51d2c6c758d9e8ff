//! The bits of results depend neither on the number of threads, nor on the system, nor on the width of vectors, where there
//! is a fused multiply-add. `bits.txt` has a checksum of each result.

use crate::support::{bits, from_0_to_1, gradients_of, labels, random, run, taken};
use candle_core::{DType, Device, Result, Tensor, Var};
use devices::{InstructionSet, instruction_set};
use functional::threads::with_budget;
use functional::{
    AdamW, Attention, Optimizer, OptimizerState, Sgd, Update, Value, binary_cross_entropy,
    cross_entropy, masked_cross_entropy, squared_error,
};
use std::slice::from_ref;

type Compute = Box<dyn Fn(&[Tensor]) -> Result<Value>>;

/// A computation, whose result and gradients are compared.
struct Case {
    name: String,
    inputs: Vec<Tensor>,
    compute: Compute,
}

fn case(
    name: impl Into<String>,
    inputs: &[Tensor],
    compute: impl Fn(&[Tensor]) -> Result<Value> + 'static,
) -> Case {
    Case {
        name: name.into(),
        inputs: inputs.to_vec(),
        compute: Box::new(compute),
    }
}

impl Case {
    /// The bits of the result and of each gradient.
    fn bits(&self) -> Vec<Vec<u32>> {
        let results = run(&self.inputs, &self.compute);
        results.unwrap().iter().map(bits).collect()
    }
}

/// By each algorithm: im2col, Winograd's, and with ReLU and pooling, of one channel and of Winograd's.
fn convolutions() -> Vec<Case> {
    let mut cases = vec![];
    for (shape, weight, stride, padding, pool) in [
        ((13, 28, 28, 1), (20, 1, 3, 3), 1, 0, 0),
        ((13, 13, 13, 20), (50, 20, 5, 5), 1, 0, 0),
        ((5, 14, 15, 16), (32, 16, 3, 3), 2, 1, 0),
        ((13, 14, 15, 64), (192, 64, 3, 3), 2, 1, 0),
        ((5, 13, 14, 4), (32, 4, 3, 3), 2, 1, 0),
        ((9, 14, 14, 16), (24, 16, 1, 1), 1, 0, 0),
        ((9, 21, 21, 64), (64, 64, 3, 3), 1, 1, 0),
        ((40, 7, 7, 64), (192, 64, 3, 3), 1, 1, 0),
        ((40, 15, 14, 16), (24, 16, 3, 3), 1, 0, 0),
        ((9, 7, 7, 100), (40, 100, 3, 3), 1, 2, 0),
        ((2, 12, 13, 70), (96, 70, 5, 5), 2, 2, 0),
        ((1, 28, 28, 1), (20, 1, 3, 3), 1, 0, 2),
        ((20, 28, 28, 1), (20, 1, 3, 3), 1, 0, 2),
        ((3, 28, 28, 1), (33, 1, 5, 5), 1, 0, 2),
        ((1, 13, 13, 20), (50, 20, 5, 5), 1, 0, 2),
        ((70, 13, 13, 20), (50, 20, 5, 5), 1, 0, 2),
    ] {
        let inputs = [random(shape, 1), random(weight, 2), random(weight.0, 3)];
        let name = format!("conv2d {shape:?} {weight:?} {stride} {padding}, pool {pool}");
        cases.push(case(name, &inputs, move |t| {
            let y = Value::new(&t[0])?.conv2d(&t[1], Some(&t[2]), stride, padding)?;
            match pool {
                0 => Ok(y),
                _ => y.relu()?.avg_pool2d(pool, pool),
            }
        }));
    }
    cases
}

/// Of each channel by itself, with channels that do and do not fill a strip; and in groups.
fn grouped_convolutions() -> Vec<Case> {
    let mut cases = vec![];
    for (shape, weight, stride, padding, groups) in [
        ((5, 32, 31, 96), (96, 1, 3, 3), 1, 1, 96),
        ((5, 33, 32, 40), (40, 1, 3, 3), 2, 1, 40),
        ((3, 14, 15, 70), (70, 1, 7, 7), 1, 3, 70),
        ((2, 8, 300, 24), (48, 1, 5, 4), 3, 2, 24),
        ((9, 14, 14, 48), (64, 3, 3, 3), 1, 1, 16),
        ((9, 15, 14, 64), (32, 32, 3, 3), 2, 1, 2),
    ] {
        let inputs = [random(shape, 1), random(weight, 2), random(weight.0, 3)];
        let name = format!("grouped_conv2d {shape:?} {weight:?} {stride} {padding}");
        cases.push(case(name, &inputs, move |t| {
            Value::new(&t[0])?.grouped_conv2d(&t[1], Some(&t[2]), stride, padding, groups)
        }));
    }
    cases
}

/// By Winograd's algorithm and by im2col.
fn transposed_convolutions() -> Vec<Case> {
    let mut cases = vec![];
    for (shape, weight, stride, padding, output_padding) in [
        ((9, 14, 13, 40), (40, 24, 3, 3), 1, 1, 0),
        ((9, 14, 15, 32), (32, 24, 3, 3), 2, 1, 1),
        ((5, 13, 14, 33), (33, 17, 4, 4), 2, 1, 0),
        ((5, 9, 10, 20), (20, 24, 2, 2), 2, 0, 0),
    ] {
        let inputs = [random(shape, 1), random(weight, 2), random(weight.1, 3)];
        let name = format!("conv_transpose2d {shape:?} {weight:?} {stride} {padding}");
        cases.push(case(name, &inputs, move |t| {
            Value::new(&t[0])?.conv_transpose2d(&t[1], Some(&t[2]), stride, padding, output_padding)
        }));
    }
    cases
}

fn transformers() -> Vec<Case> {
    let shapes = [vec![50, 48], vec![48], vec![48], vec![144, 48]];
    let inputs: Vec<Tensor> = shapes.iter().map(|shape| random(&shape[..], 1)).collect();
    let tokens = labels(9 * 70, 50, 2).reshape((9, 70)).unwrap();
    vec![case("a transformer", &inputs, move |t| {
        let x = Value::new(&tokens)?.embedding(&t[0])?;
        let x = x.layer_norm(&t[1], &t[2])?.linear(&t[3], None)?;
        x.causal_attention(3)?.gelu()?.dropout(0.1, 3)
    })]
}

/// With grouped heads, rotations and gates.
fn another_transformer() -> Case {
    let shapes: [&[usize]; 7] = [
        &[9, 70, 48],
        &[48],
        &[48, 48],
        &[24, 48],
        &[24, 48],
        &[90, 48],
        &[48, 90],
    ];
    let inputs: Vec<Tensor> = shapes.iter().map(|shape| random(*shape, 1)).collect();
    let angles = random((70, 6), 2);
    case("another transformer", &inputs, move |t| {
        let x = Value::new(&t[0])?.rms_norm(&t[1], 1e-6)?;
        let q = x.linear(&t[2], None)?.rotary(4, &angles, &angles)?;
        let k = x
            .linear(&t[3], None)?
            .rotary_interleaved(2, &angles, &angles)?;
        let how = Attention::new(4).kv_heads(2).causal();
        let x = (&x + &q.attention(&k, &x.linear(&t[4], None)?, &how)?)?;
        let h = x.linear(&t[5], None)?;
        let gated = (&h.silu()? * &h)?;
        &x + &gated.linear(&t[6], None)?
    })
}

fn recurrent() -> Vec<Case> {
    let cell = |gates: usize| {
        let shapes = [
            vec![33, 20, 50],
            vec![gates * 40, 50],
            vec![gates * 40, 40],
            vec![gates * 40],
        ];
        shapes.map(|shape| random(&shape[..], 1))
    };
    vec![
        case("lstm", &cell(4), |t| {
            Value::new(&t[0])?.lstm([&t[1], &t[2]], [&t[3], &t[3]])
        }),
        case("gru", &cell(3), |t| {
            Value::new(&t[0])?.gru([&t[1], &t[2]], [&t[3], &t[3]])
        }),
    ]
}

/// By groups, and with a number for each channel.
fn groups() -> Case {
    let inputs = [random((9, 14, 14, 36), 1), random(36, 2), random(36, 3)];
    case("group_norm", &inputs, |t| {
        let y = Value::new(&t[0])?.group_norm(4, &t[1], &t[2], 1e-5)?;
        y.broadcast_mul(&Value::new(&t[1])?)?
            .broadcast_add(&Value::new(&t[2])?)
    })
}

type Operation = fn(&Value) -> Result<Value>;

fn operations_of_one_value() -> Vec<Case> {
    let images = random((7, 9, 11, 20), 1).repeat(9).unwrap();
    let operations: [(&str, Operation); 17] = [
        ("avg_pool2d", |x| x.avg_pool2d(2, 2)),
        ("max_pool2d", |x| x.max_pool2d(3, 2)),
        ("global_avg_pool2d", Value::global_avg_pool2d),
        ("upsample_nearest2d", |x| x.upsample_nearest2d(18, 30)),
        ("upsample_bilinear2d", |x| x.upsample_bilinear2d(18, 30)),
        ("flatten", Value::flatten),
        ("nhwc", Value::nhwc),
        ("relu", Value::relu),
        ("gelu", Value::gelu),
        ("sigmoid", Value::sigmoid),
        ("tanh", Value::tanh),
        ("silu", Value::silu),
        ("affine", |x| x.affine(1.5, 0.3)),
        ("narrow and cat", |x| {
            Value::cat(&[&x.narrow(2, 3, 5)?, x], 2)
        }),
        ("a product with itself", |x| x * x),
        ("sum", Value::sum),
        ("mean", Value::mean),
    ];
    let of_one = |(name, f): (&str, Operation)| {
        case(name, from_ref(&images), move |t| f(&Value::new(&t[0])?))
    };
    operations.into_iter().map(of_one).collect()
}

fn losses() -> Vec<Case> {
    let logits = random((70, 330), 1);
    let targets = random((70, 330), 2);
    let y = labels(70, 330, 3);
    let several = random((14, 5, 330), 4);
    let of_several = y.reshape((14, 5)).unwrap();
    let mask = labels(70, 2, 5).reshape((14, 5)).unwrap();
    let (of_pairs, of_masked) = (from_0_to_1(&targets), of_several.clone());
    vec![
        case("cross_entropy", from_ref(&logits), move |t| {
            cross_entropy(&Value::new(&t[0])?, &y)
        }),
        case(
            "cross_entropy, several labels",
            from_ref(&several),
            move |t| cross_entropy(&Value::new(&t[0])?, &of_several),
        ),
        case("masked_cross_entropy", &[several], move |t| {
            masked_cross_entropy(&Value::new(&t[0])?, &of_masked, &mask)
        }),
        case("squared_error", from_ref(&logits), move |t| {
            squared_error(&Value::new(&t[0])?, &targets)
        }),
        case("binary_cross_entropy", &[logits], move |t| {
            binary_cross_entropy(&Value::new(&t[0])?, &of_pairs)
        }),
    ]
}

/// With outputs, features and examples on both sides of what a sum is cut at, and of what a vector holds.
fn linear_layers() -> Vec<Case> {
    let mut cases = vec![];
    for (batch, features, outputs) in [
        (256, 800, 128),
        (256, 128, 10),
        (1, 1300, 1000),
        (1, 7, 33),
        (3, 1, 100),
        (70, 2, 90),
        (600, 3, 1),
        (2000, 65, 1),
        (33, 513, 70),
        (40, 1025, 50),
        (100, 2100, 100),
        (1030, 64, 64),
        (17, 300, 257),
    ] {
        let inputs = [
            random((batch, features), 1),
            random((outputs, features), 2),
            random((features, outputs), 3),
            random(outputs, 4),
        ];
        let name = |kind| format!("{kind} {batch} {features} {outputs}");
        let [x, weight, transposed, bias] = &inputs;
        let linear = |t: &[Tensor]| Value::new(&t[0])?.linear(&t[1], Some(&t[2]));
        let inputs = [x, weight, bias].map(Tensor::clone);
        cases.push(case(name("linear"), &inputs, linear));
        let matmul = |t: &[Tensor]| Value::new(&t[0])?.matmul(&t[1], None);
        let inputs = [x, transposed].map(Tensor::clone);
        cases.push(case(name("matmul"), &inputs, matmul));
    }
    cases
}

/// With a bias behind each layer, ReLU and a loss.
fn networks() -> Vec<Case> {
    let shapes: [&[usize]; 6] = [&[20, 1, 3, 3], &[20], &[30, 3380], &[30], &[10, 30], &[10]];
    let inputs: Vec<Tensor> = shapes.iter().map(|shape| random(*shape, 1)).collect();
    let (x, y) = (random((32, 28, 28, 1), 2), labels(32, 10, 3));
    vec![case("a small LeNet", &inputs, move |t| {
        let h = Value::new(&x)?.conv2d(&t[0], Some(&t[1]), 1, 0)?.relu()?;
        let h = h.avg_pool2d(2, 2)?.flatten()?;
        let h = h.linear(&t[2], Some(&t[3]))?.relu()?;
        cross_entropy(&h.linear(&t[4], Some(&t[5]))?, &y)
    })]
}

fn norms() -> Vec<Case> {
    let inputs = [random((9, 14, 14, 33), 1), random(33, 2), random(33, 3)];
    let batch_norm = |train: bool| {
        case(format!("batch_norm2d, train {train}"), &inputs, move |t| {
            let mean = Var::zeros(33, DType::F32, &Device::Cpu)?;
            let var = Var::ones(33, DType::F32, &Device::Cpu)?;
            Value::new(&t[0])?.batch_norm2d([&t[1], &t[2]], [&mean, &var], None, train)
        })
    };
    vec![batch_norm(true), batch_norm(false)]
}

fn cases() -> Vec<Case> {
    [
        convolutions(),
        grouped_convolutions(),
        transposed_convolutions(),
        transformers(),
        operations_of_one_value(),
        losses(),
        linear_layers(),
        norms(),
        networks(),
        vec![another_transformer(), groups()],
        recurrent(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The bits of parameters after three steps of each optimizer, with clipped gradients.
fn optimizers() -> Vec<(String, Vec<u32>)> {
    let sgd = Sgd {
        momentum: 0.9,
        weight_decay: 0.01,
        ..Sgd::new(0.1)
    };
    vec![
        ("Sgd".to_owned(), after_steps(&Sgd::new(0.1)).unwrap()),
        ("Sgd with momentum".to_owned(), after_steps(&sgd).unwrap()),
        ("AdamW".to_owned(), after_steps(&AdamW::default()).unwrap()),
    ]
}

fn after_steps(optimizer: &dyn Optimizer) -> Result<Vec<u32>> {
    let weight = Var::from_tensor(&random((100, 33), 1))?;
    let mut state = OptimizerState::default();
    for step in 1..=3 {
        let mut gradients = gradients_of(from_ref(&weight), usize::MAX);
        let y = Value::new(&random((7, 33), 10 + step))?.linear(&weight, None)?;
        gradients.backward(&squared_error(&y, &random((7, 100), 20 + step))?.sum()?)?;
        let how = Update {
            lr: optimizer.lr(),
            rates: &[1.],
            max_norm: Some(0.5),
            examples: 7.,
        };
        state.step(
            optimizer,
            &[("weight", &weight)],
            &taken(&mut gradients),
            how,
        )?;
    }
    Ok(bits(&weight))
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    for case in cases() {
        let expected = with_budget(1, || case.bits());
        for budget in 2..=4 {
            let same = with_budget(budget, || case.bits()) == expected;
            assert!(same, "{}: other bits with {budget} threads", case.name);
        }
    }
}

/// What was recorded on one processor. A new line is printed if a case has none, or another checksum.
#[test]
fn every_processor_gives_the_recorded_bits() {
    let recorded = include_str!("bits.txt");
    let fused = instruction_set() != InstructionSet::Scalar;
    let column = if fused { "fused" } else { "scalar" };
    let of_case = |case: Case| (case.name.clone(), case.bits().concat());
    let mut wrong = vec![];
    for (name, bits) in cases().into_iter().map(of_case).chain(optimizers()) {
        let mut checksum = crc32fast::Hasher::new();
        for bits in bits {
            checksum.update(&bits.to_le_bytes());
        }
        let line = format!("{column} {:08x} {name}", checksum.finalize());
        if !recorded.lines().any(|recorded| recorded == line) {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "not in bits.txt:\n{}", wrong.join("\n"));
}
