//! Convolutions of shapes that leave a remainder everywhere: by im2col, by Winograd's algorithm, and with ReLU and
//! pooling in one step, of one channel and of several.

use crate::both::{Both, assert_both};
use crate::cuts::check;
use crate::support::{bits, coarse, random, run, values};
use candle_core::{Device, Result, Tensor};
use functional::Value;

/// A gradient of the weight in parts of the outputs, in partial sums of several tiles, and of one tile.
#[test]
fn by_im2col() {
    for (x, weight, stride, padding) in [
        ((3, 9, 7, 40), (300, 40, 1, 1), 2, 0),
        ((2, 4, 4, 260), (513, 260, 1, 1), 2, 0),
        ((24, 17, 16, 5), (6, 5, 3, 3), 1, 1),
        ((1, 40, 41, 3), (140, 3, 5, 5), 3, 2),
        ((7, 2, 3, 17), (129, 17, 2, 2), 1, 0),
    ] {
        let inputs = [random(x, 1), random(weight, 2), random(weight.0, 3)];
        check(&inputs, |t| {
            Both::new(&t[0])?.conv2d(&t[1], Some(&t[2]), stride, padding)
        });
    }
}

/// Of 3 × 3, with a bias and added to gradients that are there, and with ReLU: with its bias no sum of multiples of
/// 1/64 is 0.
fn check_3x3(x: [usize; 4], outputs: usize, stride: usize, padding: usize) {
    let weight = [outputs, x[3], 3, 3];
    let inputs = [
        random(&x[..], 1),
        random(&weight[..], 2),
        random(outputs, 3),
    ];
    check(&inputs, |t| {
        let x = Both::new(&t[0])?;
        let y = x.conv2d(&t[1], Some(&t[2]), stride, padding)?;
        y.plus(&x.conv2d(&t[1], None, stride, padding)?)
    });
    let bias = (coarse(outputs, 3) + 1. / 128.).unwrap();
    let inputs = [coarse(&x[..], 1), coarse(&weight[..], 2), bias];
    check(&inputs, |t| {
        Both::new(&t[0])?
            .conv2d(&t[1], Some(&t[2]), stride, padding)?
            .relu()
    });
}

#[test]
fn by_winograd() {
    let narrow = [8, 13, 16, 24, 33, 40, 63, 65, 100];
    for (i, channels) in narrow.into_iter().enumerate() {
        let x = [1 + i % 3, 3 + i, 9 - i % 7, channels];
        (0..3).for_each(|padding| check_3x3(x, narrow[(i * 4 + 3) % 9], 1, padding));
    }
    for (x, outputs) in [
        ([0, 5, 5, 64], 64),
        ([1, 1, 1, 64], 64),
        ([3, 5, 3, 64], 128),
        ([1, 9, 8, 128], 64),
        ([3, 4, 7, 64], 192),
        ([1, 6, 2, 256], 64),
        ([2, 7, 7, 130], 257),
        ([40, 13, 9, 17], 24),
        ([300, 5, 4, 16], 24),
        // 1024 tiles × panels are a group, 17 blocks of weights are not kept
        ([140, 2, 1, 512], 64),
        ([65, 1, 2, 64], 1088),
    ] {
        check_3x3(x, outputs, 1, 1);
    }
    for (x, outputs) in [
        ([1, 8, 8, 64], 64),
        ([2, 7, 7, 64], 192),
        ([3, 1, 6, 16], 24),
        ([4, 28, 9, 65], 40),
        ([5, 5, 20, 192], 64),
        ([6, 17, 16, 8], 13),
        ([7, 61, 60, 24], 16), // two partial sums of the weight's gradient
        ([80, 1, 3, 512], 64),
        ([40, 2, 1, 64], 1088),
    ] {
        check_3x3(x, outputs, 2, 1);
    }
}

/// With a bias, added to gradients that are there: several partial sums and blocks of rows, a kernel that is wider than the
/// image, padding that is wider than the kernel, and steps over places that no output sees.
#[test]
fn in_groups() {
    for (x, weight, groups, stride, padding) in [
        ((3, 40, 41, 33), (33, 1, 3, 3), 33, 1, 1),
        ((3, 40, 41, 100), (100, 1, 3, 3), 100, 2, 1),
        ((2, 9, 8, 64), (64, 1, 7, 7), 64, 1, 3),
        ((20, 3, 2, 16), (32, 1, 9, 11), 16, 1, 5),
        ((1, 5, 600, 8), (8, 1, 1, 4), 8, 1, 9),
        ((7, 12, 13, 17), (17, 1, 2, 1), 17, 3, 0),
        ((0, 5, 5, 8), (8, 1, 3, 3), 8, 1, 1),
        ((9, 10, 9, 32), (64, 16, 3, 3), 2, 1, 1),
    ] {
        let inputs = [random(x, 1), random(weight, 2), random(weight.0, 3)];
        check(&inputs, |t| {
            let x = Both::new(&t[0])?;
            let y = x.grouped_conv2d(&t[1], Some(&t[2]), stride, padding, groups)?;
            y.plus(&x.grouped_conv2d(&t[1], None, stride, padding, groups)?)
        });
    }
}

/// With a bias, added to gradients that are there: by Winograd's algorithm and by im2col, in several tiles.
#[test]
fn transposed() {
    for (x, weight, stride, padding, output_padding) in [
        ((3, 9, 10, 40), (40, 24, 3, 3), 1, 1, 0),
        ((3, 28, 27, 16), (16, 24, 3, 3), 2, 1, 1),
        ((2, 30, 31, 20), (20, 12, 4, 4), 2, 1, 0),
        ((0, 5, 5, 8), (8, 3, 3, 3), 2, 1, 1),
        ((4, 7, 5, 9), (9, 5, 2, 1), 3, 0, 2),
    ] {
        let inputs = [random(x, 1), random(weight, 2), random(weight.1, 3)];
        check(&inputs, |t| {
            let x = Both::new(&t[0])?;
            let y = x.conv_transpose2d(&t[1], Some(&t[2]), stride, padding, output_padding)?;
            y.plus(&x.conv_transpose2d(&t[1], None, stride, padding, output_padding)?)
        });
    }
}

/// NaN in a pixel reaches the outputs that see it, and no others.
#[test]
fn nan_is_seen_by_its_neighbours() -> Result<()> {
    let x = random((1, 9, 9, 20), 1);
    let mut numbers = values(&x);
    numbers[(4 * 9 + 4) * 20 + 17] = f32::NAN;
    let x = Value::new(&Tensor::from_vec(numbers, (1, 9, 9, 20), &Device::Cpu)?)?;
    let y = x.grouped_conv2d(&random((20, 1, 3, 3), 2), None, 1, 1, 20)?;
    for (i, y) in values(&y.eval()?).into_iter().enumerate() {
        let near = |at: usize| (3..6).contains(&at);
        let sees = i % 20 == 17 && near(i / 20 % 9) && near(i / 180);
        assert_eq!(y.is_nan(), sees, "output {i}");
    }
    Ok(())
}

/// Inputs without padding of which each sum is an odd multiple of 1/64, and never near 0: the product with the first tap
/// is odd, all others are even. So no rounding decides about ReLU.
fn odd(x: [usize; 4], outputs: usize, kernel: usize, bias: bool) -> Result<Vec<Tensor>> {
    let even = |t: Tensor| (t * 4.)?.floor()? / 4.;
    let taps = x[3] * kernel * kernel;
    let first = Tensor::full(0.125f32, (outputs, 1), &Device::Cpu)?;
    let first = first.pad_with_zeros(1, 0, taps - 1)?;
    let weight = (even(random((outputs, taps), 2))? + first)?;
    let mut inputs = vec![
        (even(random(&x[..], 1))? + 0.125)?,
        weight.reshape((outputs, x[3], kernel, kernel))?,
    ];
    if bias {
        inputs.push(even(random(outputs, 3))?);
    }
    Ok(inputs)
}

fn pooled(t: &[Tensor]) -> Result<Both> {
    let y = Both::new(&t[0])?.conv2d(&t[1], t.get(2), 1, 0)?;
    y.relu()?.avg_pool2d(2, 2)
}

/// The book's layers, on smaller images.
const FIRST: ([usize; 4], usize, usize) = ([20, 12, 13, 1], 20, 3);
const SECOND: ([usize; 4], usize, usize) = ([3, 13, 13, 20], 50, 5);

/// Images that end anywhere in a tile, a window or a vector.
#[test]
fn with_relu_and_pooling() -> Result<()> {
    for (i, (x, outputs, kernel)) in [
        FIRST,
        ([2, 8, 13, 1], 1, 3),
        ([0, 9, 12, 1], 7, 5),
        ([9, 10, 11, 1], 16, 3),
        ([1, 11, 10, 1], 20, 5),
        ([5, 12, 9, 1], 33, 3),
        ([17, 13, 8, 1], 50, 5),
        SECOND,
        ([0, 8, 8, 8], 8, 5),
        ([1, 6, 6, 8], 1, 5),
        ([2, 7, 9, 17], 33, 5),
        ([9, 8, 11, 20], 50, 5),
        ([1, 17, 6, 64], 64, 5),
        ([5, 10, 19, 9], 16, 5),
        ([33, 12, 12, 16], 3, 5),
    ]
    .into_iter()
    .enumerate()
    {
        check(&odd(x, outputs, kernel, i % 3 > 0)?, pooled);
    }
    Ok(())
}

/// y and the gradients by the operations.
fn results(inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    run(inputs, |t| {
        let y = Value::new(&t[0])?.conv2d(&t[1], t.get(2), 1, 0)?;
        y.relu()?.avg_pool2d(2, 2)
    })
}

/// An example's y and dx do not depend on the others of its batch, to the bit: k replicas compute what one computes.
#[test]
fn no_bit_depends_on_the_rest_of_the_batch() -> Result<()> {
    for (x, outputs, kernel) in [FIRST, SECOND] {
        let inputs = odd([40, x[1], x[2], x[3]], outputs, kernel, true)?;
        let mut part = inputs.clone();
        part[0] = inputs[0].narrow(0, 0, 17)?;
        for (all, part) in results(&inputs)?.iter().zip(results(&part)?).take(2) {
            assert!(bits(&all.narrow(0, 0, 17)?) == bits(&part));
        }
    }
    Ok(())
}

#[test]
fn nan_stays_where_it_is_seen() -> Result<()> {
    for ([b, h, w, c], outputs, kernel) in [FIRST, SECOND, ([3, 11, 11, 20], 50, 5)] {
        let inputs = odd([b, h, w, c], outputs, kernel, true)?;
        let with_nan = |is_nan: fn(usize, usize, [usize; 2]) -> bool| -> Result<_> {
            let at =
                |i: usize| is_nan(i / (w * c) % h, i / c % w, [h, w]) && (i / (h * w * c) == 0);
            let x = values(&inputs[0]).into_iter().enumerate();
            let x: Vec<f32> = x.map(|(i, x)| if at(i) { f32::NAN } else { x }).collect();
            let mut inputs = inputs.clone();
            inputs[0] = Tensor::from_vec(x, (b, h, w, c), &Device::Cpu)?;
            results(&inputs)
        };
        // what lies outside of all pooled windows
        let outside = |size: usize| (size - kernel).div_ceil(2) * 2 + kernel - 1;
        if outside(w) < w {
            let unseen = with_nan(|_, column, [_, w]| column + 1 == w)?;
            let mut all = unseen.iter().flat_map(values);
            assert!(all.all(f32::is_finite), "{h} × {w}");
        }
        let y = values(&with_nan(|row, column, _| row + column == 0)?[0]);
        assert!(y[..outputs].iter().all(|v| v.is_nan()));
        let last_of_first = y.len() / b - outputs;
        assert!(y[last_of_first..].iter().all(|v| v.is_finite()));
    }
    Ok(())
}

/// Where the weights meet nothing but zeros and there is no bias, as on the black background of the book's images before
/// the first step, z is 0, and ReLU has no gradient there: for the bias, the rounding of the others in a tile would make a
/// difference of a percent.
#[test]
fn zeros_stay_zeros() -> Result<()> {
    let ([b, h, w, c], outputs, kernel) = SECOND;
    for bias in [0f32, 1e-9, -1e-9] {
        let mut inputs = odd([b, h, w, c], outputs, kernel, true)?;
        // a window that covers any other pixel has one at its first tap: z is odd or 0
        let is_lit = |i: usize| i / (w * c) % h <= 3 && i / c % w <= 5;
        let lit = (0..b * h * w * c).map(|i| f32::from(u8::from(is_lit(i))));
        let lit = Tensor::from_iter(lit, &Device::Cpu)?.reshape((b, h, w, c))?;
        inputs[0] = (&inputs[0] * lit)?;
        inputs[2] = Tensor::full(bias, outputs, &Device::Cpu)?;
        assert_both(&inputs, 1e-5, pooled);
        let y = values(&results(&inputs)?[0]);
        assert!(y[400..800].iter().all(|y| *y == bias.max(0.)));
        // 0 · NaN is not 0
        let nan = Tensor::full(f32::NAN, (1, c, kernel, kernel), &Device::Cpu)?;
        inputs[1] = Tensor::cat(&[nan, inputs[1].narrow(0, 1, outputs - 1)?], 0)?;
        let y = values(&results(&inputs)?[0]);
        assert!(y.chunks_exact(outputs).all(|y| y[0].is_nan()));
    }
    Ok(())
}
