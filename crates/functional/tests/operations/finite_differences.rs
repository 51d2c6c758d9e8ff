//! Values and gradients against a naive f64 reference and its central differences.
//!
//! The differences (step 1e-4, in f64) are exact to about 1e-8, so the tolerance is what f32 sums
//! of up to some hundred terms lose: 1e-5 of the largest value.

use crate::support::{assert_close, cases, numbers, random, run, tensor, upstream, values};
use candle_core::{DType, Device, Result, Tensor, Var};
use functional::Value;
use proptest::prelude::*;

const STEP: f64 = 1e-4;
const TOLERANCE: f64 = 1e-5;

fn check(
    inputs: &[Tensor],
    op: impl Fn(&[Tensor]) -> Result<Value>,
    reference: impl Fn(&[Vec<f64>]) -> Vec<f64>,
) {
    let results = run(inputs, op).unwrap();
    let wide = |t: &Tensor| {
        values(t)
            .iter()
            .map(|v| f64::from(*v))
            .collect::<Vec<f64>>()
    };
    let mut point: Vec<Vec<f64>> = inputs.iter().map(wide).collect();
    assert_close("value", &values(&results[0]), &reference(&point), TOLERANCE);
    let weights = wide(&upstream(results[0].dims()));
    let loss = |point: &[Vec<f64>]| -> f64 {
        reference(point)
            .iter()
            .zip(&weights)
            .map(|(y, w)| y * w)
            .sum()
    };
    for input in 0..inputs.len() {
        let mut differences = vec![];
        for i in 0..point[input].len() {
            let at = point[input][i];
            let mut moved = |to: f64| {
                point[input][i] = to;
                loss(&point)
            };
            let difference = moved(at + STEP) - moved(at - STEP);
            point[input][i] = at;
            differences.push(difference / (2. * STEP));
        }
        let what = format!("gradient of input {input}");
        assert_close(&what, &values(&results[1 + input]), &differences, TOLERANCE);
    }
}

/// The pixel at (y, x) less the padding, all its channels; none in the padding.
fn pixel(
    x: &[f64],
    [h, w, c]: [usize; 3],
    b: usize,
    at: (usize, usize),
    padding: usize,
) -> Option<&[f64]> {
    let (y, x_) = (at.0.checked_sub(padding)?, at.1.checked_sub(padding)?);
    (y < h && x_ < w).then(|| &x[((b * h + y) * w + x_) * c..][..c])
}

/// One output of a convolution.
fn output(
    t: &[Vec<f64>],
    image: [usize; 3],
    (kh, kw): (usize, usize),
    (b, oy, ox, o): (usize, usize, usize, usize),
    (stride, padding): (usize, usize),
) -> f64 {
    let mut sum = t[2][o];
    for ky in 0..kh {
        for kx in 0..kw {
            let at = (oy * stride + ky, ox * stride + kx);
            let Some(pixel) = pixel(&t[0], image, b, at, padding) else {
                continue;
            };
            for (i, x) in pixel.iter().enumerate() {
                sum += x * t[1][((o * image[2] + i) * kh + ky) * kw + kx];
            }
        }
    }
    sum
}

/// Each window's values of each channel, in the order of the outputs.
fn windows(x: &[f64], [b, h, w, c]: [usize; 4], kernel: usize, stride: usize) -> Vec<Vec<f64>> {
    let mut all = vec![];
    for (b, oy) in (0..b).flat_map(|b| (0..(h - kernel) / stride + 1).map(move |oy| (b, oy))) {
        for ox in 0..(w - kernel) / stride + 1 {
            let at =
                (0..kernel * kernel).map(|i| (oy * stride + i / kernel, ox * stride + i % kernel));
            let pixels: Vec<&[f64]> = at.filter_map(|at| pixel(x, [h, w, c], b, at, 0)).collect();
            all.extend((0..c).map(|c| pixels.iter().map(|p| p[c]).collect()));
        }
    }
    all
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn normalized(t: &[Vec<f64>], mean: impl Fn(usize) -> f64, var: impl Fn(usize) -> f64) -> Vec<f64> {
    let c = t[1].len();
    let y = |(i, x): (usize, &f64)| {
        (x - mean(i % c)) / (var(i % c) + 1e-5).sqrt() * t[1][i % c] + t[2][i % c]
    };
    t[0].iter().enumerate().map(y).collect()
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn conv2d(
        (b, i, o, kh, kw) in (1usize..3, 1usize..4, 1usize..4, 1usize..4, 1usize..4),
        (more_h, more_w, stride, padding) in (0usize..4, 0usize..4, 1usize..3, 0usize..3),
        seed in 0u64..1000,
    ) {
        let (h, w) = (kh + more_h, kw + more_w);
        let (oh, ow) = ((more_h + 2 * padding) / stride + 1, (more_w + 2 * padding) / stride + 1);
        check(
            &[random((b, h, w, i), seed), random((o, i, kh, kw), seed + 1), random(o, seed + 2)],
            |t| Value::new(&t[0])?.conv2d(&t[1], Some(&t[2]), stride, padding),
            |t| {
                let index = |n: usize| (n / o / ow / oh, n / o / ow % oh, n / o % ow, n % o);
                let y = |n| output(t, [h, w, i], (kh, kw), index(n), (stride, padding));
                (0..b * oh * ow * o).map(y).collect()
            },
        );
    }

    #[test]
    fn pooling(
        (b, c, kernel, stride) in (1usize..3, 1usize..4, 1usize..4, 1usize..4),
        (more_h, more_w) in (0usize..6, 0usize..6),
        seed in 0u64..1000,
    ) {
        let dims = [b, kernel + more_h, kernel + more_w, c];
        let x = random(dims.to_vec(), seed);
        check(
            std::slice::from_ref(&x),
            |t| Value::new(&t[0])?.avg_pool2d(kernel, stride),
            |t| windows(&t[0], dims, kernel, stride).iter().map(|w| mean(w)).collect(),
        );
        check(&[x], |t| Value::new(&t[0])?.global_avg_pool2d(), |t| {
            let channel = |n: usize| t[0][n / c * dims[1] * dims[2] * c + n % c..].iter().step_by(c);
            let pixels = dims[1] * dims[2];
            (0..b * c).map(|n| channel(n).take(pixels).sum::<f64>() / pixels as f64).collect()
        });
        // values further apart than the step, so that no difference crosses a kink
        let n = dims.iter().product();
        let mut order: Vec<usize> = (0..n).collect();
        let keys = numbers(n, seed);
        order.sort_by(|a, b| keys[*a].total_cmp(&keys[*b]));
        let distinct = order.iter().map(|i| *i as f32 / 100.).collect();
        check(
            &[tensor(distinct, dims.to_vec())],
            |t| Value::new(&t[0])?.max_pool2d(kernel, stride),
            |t| windows(&t[0], dims, kernel, stride).iter().map(|w| w.iter().copied().fold(f64::MIN, f64::max)).collect(),
        );
    }

    #[test]
    fn linear((b, i, o) in (1usize..8, 1usize..8, 1usize..8), seed in 0u64..1000) {
        check(
            &[random((b, i), seed), random((o, i), seed + 1), random(o, seed + 2)],
            |t| Value::new(&t[0])?.linear(&t[1], Some(&t[2])),
            |t| {
                let dot = |n: usize| (0..i).map(|k| t[0][n / o * i + k] * t[1][n % o * i + k]).sum::<f64>();
                (0..b * o).map(|n| dot(n) + t[2][n % o]).collect()
            },
        );
    }

    #[test]
    fn relu(n in 1usize..50, seed in 0u64..1000) {
        let x = numbers(n, seed).iter().map(|v| v + 0.01 * v.signum()).collect();
        check(&[tensor(x, n)], |t| Value::new(&t[0])?.relu(), |t| t[0].iter().map(|v| v.max(0.)).collect());
    }

    #[test]
    fn cross_entropy((b, c) in (1usize..8, 2usize..11), scale in 0.1f64..5., seed in 0u64..1000) {
        let y = crate::support::labels(b, c, seed + 1);
        let labels: Vec<u32> = y.to_vec1().unwrap();
        check(&[(random((b, c), seed) * scale).unwrap()], |t| functional::cross_entropy(&Value::new(&t[0])?, &y), |t| {
            let rows = t[0].chunks(c).zip(&labels);
            rows.map(|(row, y)| row.iter().map(|v| v.exp()).sum::<f64>().ln() - row[*y as usize]).collect()
        });
    }

    #[test]
    fn sum_mean_and_squared_error((b, n) in (1usize..8, 1usize..11), seed in 0u64..1000) {
        let x = [random((b, n), seed)];
        check(&x, |t| Value::new(&t[0])?.sum(), |t| vec![t[0].iter().sum()]);
        check(&x, |t| Value::new(&t[0])?.mean(), |t| vec![mean(&t[0])]);
        let y = random((b, n), seed + 1);
        let targets: Vec<f64> = values(&y).iter().map(|v| f64::from(*v)).collect();
        check(&x, |t| functional::squared_error(&Value::new(&t[0])?, &y), |t| {
            let squares: Vec<f64> = t[0].iter().zip(&targets).map(|(a, b)| (a - b).powi(2)).collect();
            squares.chunks(n).map(mean).collect()
        });
    }

    #[test]
    fn batch_norm2d((b, h, w, c) in (2usize..4, 2usize..5, 1usize..5, 1usize..4), seed in 0u64..1000) {
        // spread evenly, so that no channel's variance is near 0 and its gradients stay small
        let spread = |(i, v): (usize, f32)| ((i / c) % 4) as f32 - 1.5 + 0.3 * v;
        let x = numbers(b * h * w * c, seed).into_iter().enumerate().map(spread).collect();
        let inputs = [tensor(x, (b, h, w, c)), random(c, seed + 1), random(c, seed + 2)];
        let statistic = |v: f64| (Tensor::ones(c, DType::F32, &Device::Cpu).unwrap() * v).unwrap();
        let running = [0.25, 2.].map(|v| Var::from_tensor(&statistic(v)).unwrap());
        let norm = |t: &[Tensor], train| {
            Value::new(&t[0])?.batch_norm2d(&t[1], &t[2], &running[0], &running[1], train)
        };
        check(&inputs, |t| norm(t, false), |t| normalized(t, |_| 0.25, |_| 2.));
        check(&inputs, |t| norm(t, true), |t| {
            let channel = |k: usize| t[0].iter().skip(k).step_by(c).copied().collect::<Vec<f64>>();
            let means: Vec<f64> = (0..c).map(|k| mean(&channel(k))).collect();
            let squares = |k: usize| channel(k).iter().map(|v| (v - means[k]).powi(2)).collect::<Vec<_>>();
            let vars: Vec<f64> = (0..c).map(|k| mean(&squares(k))).collect();
            normalized(t, |k| means[k], |k| vars[k])
        });
    }
}
