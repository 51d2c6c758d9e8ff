//! What does not fit is refused when it is written down, with both sides in the message.

use crate::support::{assert_refused, labels, random, variables};
use candle_core::{DType, Device, Result, Tensor, Var};
use functional::{Attention, Gradients, Value, cross_entropy, squared_error};

fn new(x: &Tensor) -> Value {
    Value::new(x).unwrap()
}

fn value(shape: &[usize], seed: u64) -> Value {
    new(&random(shape, seed))
}

#[test]
fn types() {
    let wide = random((1, 4, 4, 2), 1).to_dtype(DType::F64).unwrap();
    let x = new(&wide);
    assert_refused("relu: x is f64, expected f32", x.relu());
    assert_refused("flatten: x is f64, expected f32", x.flatten());
    assert_refused("nhwc: x is f64, expected f32", x.nhwc());
    assert_refused("avg_pool2d: x is f64, expected f32", x.avg_pool2d(2, 2));
    assert_refused("max_pool2d: x is f64, expected f32", x.max_pool2d(2, 2));
    assert_refused("x is f64, expected f32", x.global_avg_pool2d());
    assert_refused("sum: x is f64, expected f32", x.sum());
    assert_refused("mean: x is f64, expected f32", x.mean());
    assert_refused("add: x is f64, expected f32", &x + &x);
    let narrow = value(&[1, 4, 4, 2], 1);
    assert_refused("add: other is f64, expected f32", &narrow + &x);
    // images of one channel have nothing to be computed
    let bytes = random((2, 1, 3, 5), 1).to_dtype(DType::U8).unwrap();
    assert_refused("nhwc: x is u8, expected f32", new(&bytes).nhwc());
    // a variable, and what candle computes from it
    let var = Var::from_tensor(&wide).unwrap();
    assert_refused("relu: x is f64, expected f32", new(&var).relu());
    let doubled = (var.as_tensor() * 2.).unwrap();
    assert_refused("relu: x is f64, expected f32", new(&doubled).relu());
}

#[test]
fn types_of_weights_and_labels() {
    let w = random((1, 2, 2, 2), 1);
    let x = value(&[1, 4, 4, 2], 1);
    let wide = |t: &Tensor| t.to_dtype(DType::F64).unwrap();
    let expected = "conv2d: weight is f64, expected f32; convert it with to_dtype";
    assert_refused(expected, x.conv2d(&wide(&w), None, 1, 0));
    let bias = wide(&random(1, 1));
    assert_refused("conv2d: bias is f64", x.conv2d(&w, Some(&bias), 1, 0));
    let c = random(2, 1);
    let [mean, var] = [&c, &c].map(|c| Var::from_tensor(c).unwrap());
    let wide_mean = Var::from_tensor(&wide(&c)).unwrap();
    let norm = |w: &Tensor, mean: &Var| x.batch_norm2d([w, &c], [mean, &var], None, true);
    assert_refused("batch_norm2d: weight is f64", norm(&wide(&c), &mean));
    assert_refused("batch_norm2d: running_mean is f64", norm(&c, &wide_mean));
    let y_hat = value(&[2, 3], 1);
    let expected = "cross_entropy: y is f32, expected u32; convert it with to_dtype";
    assert_refused(expected, cross_entropy(&y_hat, &random(2, 2)));
    let expected = "squared_error: y is u32, expected f32";
    assert_refused(expected, squared_error(&value(&[2], 1), &labels(2, 3, 1)));
}

#[test]
fn conv2d() {
    let x = value(&[1, 4, 5, 3], 1);
    let check = |expected: &str, w: &[usize], b: Option<usize>, stride, padding| {
        let b = b.map(|b| random(b, 3));
        let y = x.conv2d(&random(w, 2), b.as_ref(), stride, padding);
        assert_refused(expected, y);
    };
    let expected =
        "conv2d: x has 3 channels, weight has 20; x is (B, H, W, I), weight (O, I, KH, KW)";
    check(expected, &[50, 20, 5, 5], None, 1, 0);
    let expected = "conv2d: kernel 7 is larger than x, 4 with padding 1";
    check(expected, &[2, 3, 7, 7], None, 1, 1);
    let expected = "conv2d: kernel 7 and stride 0 must be at least 1";
    check(expected, &[2, 3, 7, 7], None, 0, 2);
    let expected = "conv2d: bias has shape [3], expected [2] for the 2 output channels of weight";
    check(expected, &[2, 3, 1, 1], Some(3), 1, 0);
    let expected = "conv2d: weight has shape [2, 3], expected (O, I, KH, KW)";
    check(expected, &[2, 3], None, 1, 0);
    let expected = "conv2d: weight has shape [0, 3, 1, 1], expected (O, I, KH, KW) of at least 1";
    check(expected, &[0, 3, 1, 1], None, 1, 0);
}

#[test]
fn grouped_conv2d() {
    let x = value(&[1, 4, 5, 6], 1);
    let check = |expected: &str, w: &[usize], b: Option<usize>, stride, groups| {
        let b = b.map(|b| random(b, 3));
        let y = x.grouped_conv2d(&random(w, 2), b.as_ref(), stride, 1, groups);
        assert_refused(expected, y);
    };
    let of = "grouped_conv2d: x has 6 channels, weight has shape";
    let divide = |groups| format!("expected that {groups} groups divide I and O");
    let shape = "[4, 2, 3, 3] = (O, I / groups, KH, KW)";
    check(
        &format!("{of} {shape}, {}", divide(3)),
        &[4, 2, 3, 3],
        None,
        1,
        3,
    );
    check(
        &format!("{of} {shape}, {}", divide(0)),
        &[4, 2, 3, 3],
        None,
        1,
        0,
    );
    check(&divide(2), &[4, 2, 3, 3], None, 1, 2);
    let expected = "grouped_conv2d: weight has shape [6, 1], expected (O, I / groups, KH, KW)";
    check(expected, &[6, 1], None, 1, 6);
    let expected = "grouped_conv2d: kernel 7 is larger than x, 4 with padding 1";
    check(expected, &[6, 1, 7, 7], None, 1, 6);
    let expected = "grouped_conv2d: kernel 3 and stride 0 must be at least 1";
    check(expected, &[6, 1, 3, 3], None, 0, 6);
    let expected =
        "grouped_conv2d: bias has shape [3], expected [6] for the 6 output channels of weight";
    check(expected, &[6, 1, 3, 3], Some(3), 1, 6);
    let wide = random((6, 1, 3, 3), 1).to_dtype(DType::F64).unwrap();
    let expected = "grouped_conv2d: weight is f64, expected f32";
    assert_refused(expected, x.grouped_conv2d(&wide, None, 1, 1, 6));
}

#[test]
fn conv_transpose2d() {
    let x = value(&[1, 4, 1, 3], 1);
    let check = |expected: &str, w: &[usize], [stride, padding, output_padding]: [usize; 3]| {
        let y = x.conv_transpose2d(&random(w, 2), None, stride, padding, output_padding);
        assert_refused(expected, y);
    };
    let expected = "conv_transpose2d: x has 3 channels, weight [4, 3, 2, 2]; x is (B, H, W, I), weight (I, O, KH, KW)";
    check(expected, &[4, 3, 2, 2], [1, 0, 0]);
    let expected = "conv_transpose2d: weight has shape [3, 4], expected (I, O, KH, KW)";
    check(expected, &[3, 4], [1, 0, 0]);
    let expected =
        "conv_transpose2d: kernel 2 must be at least 1, and output_padding 2 smaller than stride 2";
    check(expected, &[3, 4, 2, 2], [2, 0, 2]);
    check(
        "output_padding 0 smaller than stride 0",
        &[3, 4, 2, 2],
        [0, 0, 0],
    );
    let expected =
        "conv_transpose2d: 1 pixels of x with kernel 2, stride 1 and padding 1 give no pixel";
    check(expected, &[3, 4, 2, 2], [1, 1, 0]);
    let bias = random(3, 1);
    let y = x.conv_transpose2d(&random((3, 4, 2, 2), 2), Some(&bias), 1, 0, 0);
    let expected =
        "conv_transpose2d: bias has shape [3], expected [4] for the 4 output channels of weight";
    assert_refused(expected, y);
}

#[test]
fn images() {
    let x = value(&[2, 3], 1);
    let expected = "flatten: x has shape [2, 3], expected (B, H, W, C)";
    assert_refused(expected, x.flatten());
    let expected = "nhwc: x has shape [2, 3], expected (B, C, H, W)";
    assert_refused(expected, x.nhwc());
    let expected = "max_pool2d: x has shape [2, 3], expected (B, H, W, C)";
    assert_refused(expected, x.max_pool2d(2, 2));
    let expected = "global_avg_pool2d: x has shape [2, 3], expected (B, H, W, C)";
    assert_refused(expected, x.global_avg_pool2d());
    let x = value(&[1, 2, 2, 1], 1);
    let expected = "avg_pool2d: kernel 3 is larger than x, 2";
    assert_refused(expected, x.avg_pool2d(3, 1));
    let expected = "max_pool2d: kernel 1 and stride 0 must be at least 1";
    assert_refused(expected, x.max_pool2d(1, 0));
    let expected = "upsample_nearest2d: from 2 × 2 to 0 × 3 pixels, expected at least one";
    assert_refused(expected, x.upsample_nearest2d(0, 3));
    let x = value(&[1, 0, 2, 1], 1);
    let expected = "upsample_bilinear2d: from 0 × 2 to 4 × 4 pixels, expected at least one";
    assert_refused(expected, x.upsample_bilinear2d(4, 4));
    let expected = "global_avg_pool2d: x has shape [1, 0, 2, 1], expected at least one pixel";
    assert_refused(expected, x.global_avg_pool2d());
}

/// What comes before it is not computed yet.
#[test]
fn an_operation_after_others() -> Result<()> {
    let y = value(&[2, 3], 1).linear(&random((4, 3), 2), None)?;
    let expected = "avg_pool2d: x has shape [2, 4], expected (B, H, W, C)";
    assert_refused(expected, y.relu()?.avg_pool2d(1, 1));
    let expected = "linear: x has 4 features, weight (O, I) has 3";
    assert_refused(expected, y.linear(&random((4, 3), 2), None));
    Ok(())
}

#[test]
fn products() {
    let (x, w) = (value(&[2, 5], 1), random((4, 3), 2));
    let expected = "linear: x has 5 features, weight (O, I) has 3; for a weight (I, O) use matmul";
    assert_refused(expected, x.linear(&w, None));
    let expected = "linear: bias has shape [5], expected [4] for the 4 outputs of weight";
    assert_refused(expected, value(&[2, 3], 1).linear(&w, Some(&random(5, 3))));
    let expected = "linear: x has shape [3], weight [4, 3], expected (…, I) and (O, I)";
    assert_refused(expected, value(&[3], 1).linear(&w, None));
    let w = random((3, 4), 2);
    let expected =
        "matmul: x has 5 columns, weight (I, O) has 3 rows; for a weight (O, I) use linear";
    assert_refused(expected, x.matmul(&w, None));
    let expected = "matmul: x has shape [3], weight [3, 4], expected (B, I) and (I, O)";
    assert_refused(expected, value(&[3], 1).matmul(&w, None));
}

#[test]
fn tokens() -> Result<()> {
    let weight = random((5, 4), 1);
    let ids = Value::new(&Tensor::new(&[0u32, 5], &Device::Cpu)?)?;
    let expected = "embedding: token 5 is too large, weight has 5 rows";
    assert_refused(expected, ids.embedding(&weight));
    let expected = "embedding: the tokens are f32, expected u32; convert them with to_dtype";
    assert_refused(expected, value(&[2], 1).embedding(&weight));
    let expected = "embedding: the tokens are computed; expected a tensor of u32";
    assert_refused(expected, value(&[2], 1).relu()?.embedding(&weight));
    let expected = "embedding: weight has shape [5], expected (V, C)";
    assert_refused(expected, ids.embedding(&random(5, 1)));
    let (four, three) = (random(4, 1), random(3, 1));
    let expected = "layer_norm: weight has shape [3], expected [4] for the 4 features of x";
    assert_refused(expected, value(&[2, 4], 1).layer_norm(&three, &four));
    let expected = "layer_norm: x has shape [2, 0], expected (…, C)";
    assert_refused(expected, value(&[2, 0], 1).layer_norm(&four, &four));
    for (shape, heads) in [(vec![2, 5, 12], 3), (vec![2, 5, 12], 0), (vec![5, 12], 2)] {
        let expected = format!(
            "causal_attention: x has shape {shape:?}, expected (B, T, 3·C), where {heads} heads divide C"
        );
        assert_refused(&expected, value(&shape, 1).causal_attention(heads));
    }
    // no example is fine
    let none = Value::new(&Tensor::zeros((0, 3), DType::U32, &Device::Cpu)?)?;
    let x = none.embedding(&weight)?.layer_norm(&four, &four)?;
    let x = x.linear(&random((12, 4), 1), None)?;
    let x = x.causal_attention(2)?.gelu()?;
    let x = x.attention(&x, &x, &Attention::new(2))?.silu()?;
    let (angles, wide, five) = (random((3, 1), 1), random((16, 4), 1), random(16, 1));
    let x = x.rotary(2, &angles, &angles)?.rms_norm(&four, 1e-5)?;
    let x = x.lstm([&wide, &wide], [&five, &five])?;
    let x = x.broadcast_mul(&Value::new(&four)?)?;
    let x = Value::cat(&[&x, &x], 1)?.narrow(1, 2, 3)?;
    assert_eq!(x.eval()?.dims(), [0, 3, 4]);
    let x = x.reshape((0, 1, 3, 4))?.group_norm(2, &four, &four, 1e-5)?;
    assert_eq!(x.eval()?.dims(), [0, 1, 3, 4]);
    Ok(())
}

#[test]
fn attention_and_rotations() -> Result<()> {
    let (q, kv) = (value(&[2, 5, 12], 1), value(&[2, 3, 6], 2));
    let how = || Attention::new(4).kv_heads(2);
    assert_eq!(q.attention(&kv, &kv, &how())?.dims(), [2, 5, 12]);
    let expected = "attention: shapes [[2, 5, 12], [2, 3, 6], [2, 3, 6]], expected (B, T, heads·D) and twice \
                    (B, S, kv_heads·D) for 4 and 4 heads";
    assert_refused(expected, q.attention(&kv, &kv, &Attention::new(4)));
    let expected = "attention: 3 heads of keys do not divide 4 heads of queries";
    let other = value(&[2, 3, 9], 2);
    assert_refused(expected, q.attention(&other, &other, &how().kv_heads(3)));
    let expected = "attention: 5 queries and 3 keys; causal attention is for as many";
    assert_refused(expected, q.attention(&kv, &kv, &how().causal()));
    let expected = "attention: the scale is 0, expected a positive number";
    assert_refused(expected, q.attention(&kv, &kv, &how().scale(0.)));
    let mask = |shape: &[usize]| random(shape, 1).ge(0f32);
    let expected = "attention: the mask has shape [2, 5, 4], expected (B, 5, 3)";
    assert_refused(
        expected,
        q.attention(&kv, &kv, &how().mask(&mask(&[2, 5, 4])?)),
    );
    let expected = "attention: the mask is of 3 examples, x of 2";
    assert_refused(
        expected,
        q.attention(&kv, &kv, &how().mask(&mask(&[3, 5, 3])?)),
    );
    let expected = "attention: the mask is f32, expected u8";
    assert_refused(
        expected,
        q.attention(&kv, &kv, &how().mask(&random((1, 5, 3), 1))),
    );
    let angles = random((5, 3), 1);
    let expected = "rotary: cos has shape [5, 3], expected [5, 6] for x [2, 5, 12]";
    assert_refused(expected, q.rotary(1, &angles, &angles));
    let expected =
        "rotary: x has shape [2, 5, 12], expected (B, T, heads·D) for 4 heads and an even D";
    assert_refused(expected, q.rotary(4, &angles, &angles));
    let trained = Var::from_tensor(&angles)?;
    let expected = "rotary: cos or sin depends on a variable that is trained; it gets no gradient";
    assert_refused(expected, q.rotary(2, &trained, &angles));
    Ok(())
}

#[test]
fn shapes_that_do_not_fit() {
    let (x, three) = (value(&[2, 4], 1), random(3, 1));
    let expected =
        "broadcast_mul: other has shape [3], which cannot be repeated to [2, 4], that of x";
    assert_refused(expected, x.broadcast_mul(&value(&[3], 1)));
    let expected =
        "broadcast_add: other has shape [1, 2, 4], which cannot be repeated to [2, 4], that of x";
    assert_refused(expected, x.broadcast_add(&value(&[1, 2, 4], 1)));
    let expected = "mul: x has shape [2, 4], other [4], expected the same";
    assert_refused(expected, &x * &value(&[4], 1));
    let expected = "sub: x has shape [2, 4], other [4], expected the same";
    assert_refused(expected, &x - &value(&[4], 1));
    let expected = "narrow: x has shape [2, 4], expected 3 entries from 2 on in dimension 1";
    assert_refused(expected, x.narrow(1, 2, 3));
    assert_refused("narrow", x.narrow(2, 0, 1));
    let expected = "size 8 which is compatible with shape [3, 3]";
    assert_refused(expected, x.relu().unwrap().reshape((3, 3)));
    let expected = "clamp: from 2 to 1, expected a range";
    assert_refused(expected, x.clamp(2., 1.));
    let expected = "rms_norm: weight has shape [3], expected [4] for the 4 features of x";
    assert_refused(expected, x.rms_norm(&three, 1e-5));
    let expected = "rms_norm: eps is -1, expected a finite number, 0 or more";
    assert_refused(expected, x.rms_norm(&random(4, 1), -1.));
    let image = value(&[2, 2, 2, 3], 1);
    let expected =
        "group_norm: x has shape [2, 2, 2, 3], expected (B, H, W, C), where 2 groups divide C";
    assert_refused(expected, image.group_norm(2, &three, &three, 1e-5));
    let [wide, hidden, bias] = [random((8, 4), 1), random((8, 2), 1), random(8, 1)];
    let expected =
        "lstm: weight_ih has shape [8, 4], expected [12, 4] for x [2, 5, 4] and 3 hidden";
    let x = value(&[2, 5, 4], 1);
    assert_refused(
        expected,
        x.lstm([&wide, &random((8, 3), 1)], [&bias, &bias]),
    );
    let expected = "gru: weight_ih has shape [8, 4], expected [6, 4] for x [2, 5, 4] and 2 hidden";
    assert_refused(expected, x.gru([&wide, &hidden], [&bias, &bias]));
}

#[test]
fn sums_and_means() {
    let expected = "add: x has shape [2, 3], other [3, 2], expected the same";
    assert_refused(expected, value(&[2, 3], 1) + value(&[3, 2], 2));
    let expected = "mean: x has shape [0, 3], expected at least one element";
    assert_refused(expected, value(&[0, 3], 1).mean());
}

#[test]
fn labels_that_are_no_class() {
    let y_hat = value(&[3, 10], 1);
    let y = Tensor::new(&[0u32, 9, 10], &Device::Cpu).unwrap();
    let expected = "cross_entropy: label 10 of example 2 is too large, y_hat has 10 classes";
    assert_refused(expected, cross_entropy(&y_hat, &y));
    let expected = "cross_entropy: y has shape [2], expected [3] for the 3 examples of y_hat";
    assert_refused(expected, cross_entropy(&y_hat, &labels(2, 10, 1)));
    let expected = "cross_entropy: y_hat has shape [3], expected (B, C) or (B, …, C)";
    assert_refused(expected, cross_entropy(&value(&[3], 1), &y));
}

#[test]
fn targets_of_another_shape() {
    let refused = |y_hat: &[usize], y: &[usize], expected: &str| {
        assert_refused(expected, squared_error(&value(y_hat, 1), &random(y, 2)));
    };
    let expected = "squared_error: y_hat has shape [3, 1], y [3], expected the same (B, …)";
    refused(&[3, 1], &[3], expected);
    let expected = "squared_error: y_hat has shape [2, 3], y [3, 2], expected the same (B, …)";
    refused(&[2, 3], &[3, 2], expected);
    let expected = "squared_error: y_hat has shape [], y [], expected the same (B, …)";
    refused(&[], &[], expected);
    let expected =
        "squared_error: y_hat has shape [2, 0], expected at least one element for each example";
    refused(&[2, 0], &[2, 0], expected);
}

#[test]
fn batch_norm2d() {
    let var = |n| Var::from_tensor(&random(n, 1)).unwrap();
    let (w, mean, running_var) = (random(4, 1), var(4), var(4));
    let norm = |x: &[usize], w: &Tensor, mean: &Var, train| {
        value(x, 1).batch_norm2d([w, w], [mean, &running_var], None, train)
    };
    let expected = "batch_norm2d: weight has shape [3], expected [4] for the 4 channels of x";
    assert_refused(expected, norm(&[1, 2, 2, 4], &random(3, 1), &mean, true));
    let expected = "batch_norm2d: running_mean has shape [5], expected [4] for the 4 channels of x";
    assert_refused(expected, norm(&[1, 2, 2, 4], &w, &var(5), false));
    let expected = "batch_norm2d: x has shape [2, 4], expected (B, H, W, C)";
    assert_refused(expected, norm(&[2, 4], &w, &mean, false));
    let none = random(0, 1);
    let [mean, running_var] = [var(0), var(0)];
    let x = value(&[2, 3, 3, 0], 1);
    for train in [true, false] {
        let y = x.batch_norm2d([&none, &none], [&mean, &running_var], None, train);
        let expected = "batch_norm2d: x has shape [2, 3, 3, 0], expected at least one channel";
        assert_refused(expected, y);
    }
}

/// How many values there are is known when replicas have told each other.
#[test]
fn a_training_batch_that_is_too_small_is_refused_when_it_is_computed() -> Result<()> {
    for (examples, expected) in [(0, "0 values per channel"), (1, "1 values per channel")] {
        let vars = variables(&[4, 4, 4, 4].map(|n| random(n, 1)))?;
        let [weight, bias, mean, var] = [0, 1, 2, 3].map(|i| &vars[i]);
        let before = mean.to_vec1::<f32>()?;
        let x = value(&[examples, 1, 1, 4], 1);
        let y = x.batch_norm2d([weight, bias], [mean, var], None, true)?;
        let advice = "training needs at least 2, give a larger batch";
        let expected = format!("batch_norm2d: x has {expected}; {advice}");
        assert_refused(&expected, y.eval());
        assert!(y.to_string().starts_with(&expected), "{y}");
        let mut gradients = Gradients::new([("weight", weight)], usize::MAX)?;
        assert_refused(&expected, gradients.backward(&y.sum()?));
        assert_eq!(mean.to_vec1::<f32>()?, before);
        // with running statistics it is as good as any
        x.batch_norm2d([weight, bias], [mean, var], None, false)?
            .eval()?;
    }
    Ok(())
}

#[test]
fn a_loss_that_is_no_scalar() -> Result<()> {
    let w = Var::from_tensor(&random((3, 4), 1))?;
    let mut gradients = Gradients::new([("w", &w)], usize::MAX)?;
    let y = value(&[2, 4], 2).linear(&w, None)?;
    let expected = "backward: the loss has shape [2, 3], expected a scalar; take its sum or mean";
    assert_refused(expected, gradients.backward(&y));
    let grad = Var::from_tensor(&random((3, 4), 3))?;
    assert_refused(expected, functional::backward(&y, [(&w, &grad)]));
    gradients.backward(&y.sum()?)?; // one that is, at once
    Ok(())
}

#[test]
fn a_gradient_of_another_size() -> Result<()> {
    let w = Var::from_tensor(&random((3, 4), 1))?;
    let loss = value(&[2, 4], 2).linear(&w, None)?.sum()?;
    let grad = Var::from_tensor(&random((3, 3), 3))?;
    let expected = "backward: a parameter has shape [3, 4], its gradient [3, 3]";
    assert_refused(expected, functional::backward(&loss, [(&w, &grad)]));
    // as many elements are enough
    let grad = Var::from_tensor(&random((2, 6), 3))?;
    functional::backward(&loss, [(&w, &grad)])?;
    Ok(())
}
