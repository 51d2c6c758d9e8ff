//! The operations of candle, a row for each case, and the points at which no finite difference helps.

use candle_core::op::CmpOp;
use candle_core::{DType, IndexOp, Module, ModuleT, Tensor};
use candle_nn::attention::{self, AttnMask};
use candle_nn::rnn::{GRUConfig, LSTMConfig, RNN};
use candle_nn::{Activation as Act, kv_cache, loss, ops, rotary_emb};

use super::row::*;

/// The layers and functions of candle-nn.
#[rustfmt::skip]
pub fn of_candle_nn() -> Vec<Row> {
    let mut rows = rows![
        "Linear", "", [[2, 3], [4, 3], [4]], |x, w, b| candle_nn::Linear::new(w.clone(), Some(b.clone())).forward(x);
        "Linear", "without a bias", [[2, 3], [4, 3]], |x, w| candle_nn::Linear::new(w.clone(), None).forward(x);
        "Conv1d", "one output channel", [[2, 2, 9], [1, 2, 3], [1]], |x, w, b| conv1d(x, w, b, 1);
        "Conv1d", "several output channels, batch of 1", [[1, 2, 9], [3, 2, 3], [3]], |x, w, b| conv1d(x, w, b, 1);
        "Conv1d", "several output channels", [[2, 2, 9], [3, 2, 3], [3]], |x, w, b| conv1d(x, w, b, 1);
        "Conv1d", "one output channel per group", [[2, 4, 9], [4, 1, 3], [4]], |x, w, b| conv1d(x, w, b, 4);
        "Conv2d", "stride 1", [[2, 2, 6, 7], [3, 2, 3, 3], [3]], |x, w, b| conv2d(x, w, b, [0, 1, 1, 1]);
        "Conv2d", "padding 1", [[2, 2, 6, 7], [3, 2, 3, 3], [3]], |x, w, b| conv2d(x, w, b, [1, 1, 1, 1]);
        "Conv2d", "dilation 2", [[2, 2, 6, 7], [3, 2, 3, 3], [3]], |x, w, b| conv2d(x, w, b, [0, 1, 2, 1]);
        "Conv2d", "2 groups", [[2, 4, 6, 7], [4, 2, 3, 3], [4]], |x, w, b| conv2d(x, w, b, [0, 1, 1, 2]);
        "Conv2d", "stride 2, equal remainders", [[2, 2, 6, 8], [3, 2, 3, 3], [3]], |x, w, b| conv2d(x, w, b, [0, 2, 1, 1]);
        "Conv2d", "stride 2, different remainders", [[2, 2, 6, 7], [3, 2, 3, 3], [3]], |x, w, b| conv2d(x, w, b, [0, 2, 1, 1]);
        "ConvTranspose1d", "", [[2, 2, 5], [2, 3, 3], [3]], |x, w, b| {
            candle_nn::ConvTranspose1d::new(w.clone(), Some(b.clone()), Default::default()).forward(x)
        };
        "ConvTranspose2d", "", [[2, 2, 5, 4], [2, 3, 3, 3], [3]], |x, w, b| {
            let config = candle_nn::ConvTranspose2dConfig { padding: 1, output_padding: 1, stride: 2, dilation: 1 };
            candle_nn::ConvTranspose2d::new(w.clone(), Some(b.clone()), config).forward(x)
        };
        "Embedding", "", [[4, 3]], |w| candle_nn::Embedding::new(w.clone(), 3).forward(&ids(&[[2u32, 0], [2, 1]])?);
        "BatchNorm", "in training", [[4, 2, 3, 3], [2], [2]], |x, w, b| batch_norm(w, b)?.forward_t(x, true);
        "BatchNorm", "in inference", [[4, 2, 3, 3], [2], [2]], |x, w, b| batch_norm(w, b)?.forward_t(x, false);
        "GroupNorm", "", [[2, 4, 3, 3], [4], [4]], |x, w, b| candle_nn::GroupNorm::new(w.clone(), b.clone(), 4, 2, 1e-5)?.forward(x);
        "LayerNorm", "with a bias", [[3, 6], [6], [6]], |x, w, b| layer_norm(w, b).forward(x);
        "LayerNorm", "input not contiguous", [[6, 3], [6], [6]], |x, w, b| layer_norm(w, b).forward(&x.t()?);
        "LayerNorm", "without a bias", [[3, 6], [6]], |x, w| candle_nn::LayerNorm::new_no_bias(w.clone(), 1e-5).forward(x);
        "RmsNorm", "", [[3, 6], [6]], |x, w| candle_nn::RmsNorm::new(w.clone(), 1e-5).forward(x);
        "RmsNorm", "input not contiguous", [[6, 3], [6]], |x, w| candle_nn::RmsNorm::new(w.clone(), 1e-5).forward(&x.t()?);
        "RmsNorm::forward_diff", "", [[3, 6], [6]], |x, w| candle_nn::RmsNorm::new(w.clone(), 1e-5).forward_diff(x);
        "PReLU", "one weight", [[2, 3, 4], [1]], |x, w| candle_nn::PReLU::new(w.clone(), true).forward(x);
        "PReLU", "a weight per channel", [[2, 3, 4], [3]], |x, w| candle_nn::PReLU::new(w.clone(), false).forward(x);
        "LSTM", "", [[2, 3, 4], [12, 4], [12, 3], [12], [12]], |x, w, u, b, c| {
            let lstm = candle_nn::lstm(4, 3, LSTMConfig::default(), recurrent([w, u, b, c]))?;
            lstm.states_to_tensor(&lstm.seq(x)?)
        };
        "GRU", "", [[2, 3, 4], [9, 4], [9, 3], [9], [9]], |x, w, u, b, c| {
            let gru = candle_nn::gru(4, 3, GRUConfig::default(), recurrent([w, u, b, c]))?;
            gru.states_to_tensor(&gru.seq(x)?)
        };
        "ops::sdpa", "", [[1, 2, 3, 32], [1, 2, 3, 32], [1, 2, 3, 32]], |q, k, v| ops::sdpa(q, k, v, None, false, 1., 1.);
        "attention::flash_attn", "", [[1, 3, 2, 4], [1, 3, 2, 4], [1, 3, 2, 4]], |q, k, v| {
            attention::flash_attn::<f32>(q, k, v, 0.5, AttnMask::None, None, None)
        };
        "attention::flash_attn_varlen_cpu", "", [[3, 2, 4], [3, 2, 4], [3, 2, 4]], |q, k, v| {
            let lens = ids(&[3u32])?;
            attention::flash_attn_varlen_cpu(q, k, v, None, &lens, &lens, 3, 3, 0.5, false, None, None)
        };
        "attention::flash_attn_varlen_unfused", "", [[3, 2, 4], [3, 2, 4], [3, 2, 4]], |q, k, v| {
            let lens = ids(&[3u32])?;
            attention::flash_attn_varlen_unfused(q, k, v, None, &lens, &lens, 3, 3, 0.5, false, None, None)
        };
        "moe::moe_gemm", "", [[2, 4], [2, 4, 4]], |x, w| candle_nn::moe::moe_gemm(x, w, &None, x, x, 1, false);
        "KvCache", "", [[1, 2, 3, 4], [1, 2, 3, 4]], |k, v| kv_cache::KvCache::new(2, 8).append(k, v).and_then(both);
        "RotatingKvCache", "", [[1, 2, 3, 4], [1, 2, 3, 4]], |k, v| kv_cache::RotatingKvCache::new(2, 8).append(k, v).and_then(both);
        "ConcatKvCache", "", [[1, 2, 3, 4], [1, 2, 3, 4]], |k, v| kv_cache::ConcatKvCache::new(2).append(k, v).and_then(both);
        "InterleavedKvCache", "", [[1, 2, 3, 4], [1, 2, 3, 4]], |k, v| kv_cache::InterleavedKvCache::new(4).append(k, v);
        "ScatteredKvCache", "", [[1, 2, 3, 4], [1, 2, 3, 4]], |k, v| {
            let mut builder = kv_cache::ScatteredCacheBuilder::new(1, 8, k.dtype(), k.device())?;
            let places = builder.indices_and_mask(3, &[true])?;
            builder.make_cache(2, 4)?.append(k, v, &places).and_then(both)
        };
    ];
    let activations = [Act::Gelu, Act::NewGelu, Act::GeluPytorchTanh, Act::Relu, Act::Relu2, Act::Relu6, Act::LeakyRelu(0.1),
        Act::Silu, Act::Swish, Act::Swiglu, Act::HardSwish, Act::Sigmoid, Act::HardSigmoid, Act::Mish, Act::Elu(0.7)];
    rows.extend(activations.map(|activation| {
        let name = format!("Activation::{activation:?}");
        let name = name.split('(').next().unwrap_or(&name).to_owned();
        // on both sides of every kink
        let f = move |x: &[Tensor]| activation.forward(&(&x[0] * 9.)?);
        Row { operation: name, case: "", inputs: vec![vec![3, 6]], f: Box::new(f) }
    }));
    rows.extend(functions!([[3, 6]], |x| ops::softmax(x, 0) ops::log_softmax(x, 0) ops::softmax_last_dim(x) ops::silu(x)
        ops::swiglu(x) ops::sigmoid(x) ops::mish(x) ops::leaky_relu(x, 0.1) ops::selu(x, 1.67, 1.05)));
    rows.extend(functions!([[3, 6]], |x| ops::hard_sigmoid(&(x * 6.)?)));
    rows.extend(functions!([[3, 6], [6]], |x, w| ops::rms_norm(x, w, 1e-5) ops::rms_norm_slow(x, w, 1e-5)));
    rows.extend(functions!([[3, 6], [6], [6]], |x, w, b| ops::layer_norm(x, w, b, 1e-5) ops::layer_norm_slow(x, w, b, 1e-5)));
    rows.extend(functions!([[2, 4, 6, 4]], |x| ops::pixel_shuffle(x, 2) ops::pixel_unshuffle(x, 2) ops::replication_pad2d(x, 1)));
    rows.extend(functions!([[3, 4]], |x| loss::nll(x, &ids(&[2u32, 0, 2])?) loss::cross_entropy(x, &ids(&[2u32, 0, 2])?)));
    rows.extend(functions!([[3, 4], [3, 4]], |x, y| loss::mse(x, y) loss::huber(x, y, 0.5)
        loss::binary_cross_entropy_with_logit(x, y)));
    rows.extend(functions!([[1, 3, 3, 4], [3, 2], [3, 2]], |x, c, s| rotary_emb::rope(x, c, s) rotary_emb::rope_slow(x, c, s)
        rotary_emb::rope_i(x, c, s) rotary_emb::rope_i_slow(x, c, s) rotary_emb::rope_thd(x, c, s)));
    rows
}

/// The operations of candle-core.
#[rustfmt::skip]
pub fn of_candle_core() -> Vec<Row> {
    let mut rows = rows![
        "pow", "", [[2, 3], [2, 3]], |x, y| (x + 2.)?.pow(y);
        "broadcast_pow", "", [[2, 3], [3]], |x, y| (x + 2.)?.broadcast_pow(y);
        "powf", "positive numbers", [[2, 3]], |x| (x + 2.)?.powf(0.5);
        "powf", "negative numbers, a whole exponent", [[2, 3]], |x| (x - 2.)?.powf(3.);
        "where_cond", "", [[2, 3], [2, 3]], |x, y| ids(&[[1u8, 0, 1], [0, 0, 1]])?.where_cond(x, y);
        "to_dtype", "", [[2, 3]], |x| only_f32(x)?.to_dtype(DType::F64);
        "matmul", "", [[2, 3, 4], [2, 4, 2]], |x, y| x.matmul(y);
        "broadcast_matmul", "", [[2, 3, 4], [4, 2]], |x, y| x.broadcast_matmul(y);
        "gather", "", [[2, 3]], |x| x.gather(&ids(&[[2u32, 0], [1, 1]])?, 1);
        "gather", "fewer rows than the input", [[2, 3]], |x| x.gather(&ids(&[[2u32, 0]])?, 1);
        "scatter", "the destination", [[2, 3]], |x| x.scatter(&ids(&[[2u32, 0], [1, 0]])?, &fixed(x, &[2, 2])?, 1);
        "scatter", "the source", [[2, 2]], |y| fixed(y, &[2, 3])?.scatter(&ids(&[[2u32, 0], [1, 0]])?, y, 1);
        "scatter", "the source, an index twice", [[2, 2]], |y| fixed(y, &[2, 3])?.scatter(&ids(&[[2u32, 2], [1, 0]])?, y, 1);
        "scatter", "the destination, masked first", [[2, 3], [2, 2]], |x, y| {
            (x * into_float(ids(&[[0u8, 1, 0], [0, 0, 1]])?)?.to_dtype(x.dtype())?)?.scatter(&ids(&[[2u32, 0], [1, 0]])?, y, 1)
        };
        "scatter_add", "source smaller", [[2, 3], [2, 2]], |x, y| x.scatter_add(&ids(&[[2u32, 2], [1, 0]])?, y, 1);
        "scatter_add", "the destination", [[2, 3]], |x| x.scatter_add(&ids(&[[2u32, 2, 0], [1, 0, 0]])?, &fixed(x, &[2, 3])?, 1);
        "scatter_add", "the source", [[2, 3]], |y| fixed(y, &[2, 3])?.scatter_add(&ids(&[[2u32, 2, 0], [1, 0, 0]])?, y, 1);
        "scatter_add", "into zeros, with the destination added", [[2, 3], [2, 3]], |x, y| {
            x + x.zeros_like()?.scatter_add(&ids(&[[2u32, 2, 0], [1, 0, 0]])?, y, 1)?
        };
        "index_select", "", [[2, 3]], |x| x.index_select(&ids(&[2u32, 0, 2])?, 1);
        "index_add", "", [[2, 3], [2, 2]], |x, y| x.index_add(&ids(&[2u32, 2])?, y, 1);
        "embedding", "", [[4, 3]], |x| x.embedding(&ids(&[2u32, 0, 2])?);
        "slice_scatter", "", [[4, 3], [4, 2]], |x, y| x.slice_scatter(y, 1, 1);
        "slice_scatter0", "", [[4, 3], [2, 3]], |x, y| x.slice_scatter0(y, 1);
        "slice_assign", "", [[4, 3], [2, 2]], |x, y| x.slice_assign(&[1..3, 0..2], y);
        "slice_set", "", [[2, 3]], |y| in_place(y, &[4, 3], |x| x.slice_set(y, 0, 1));
        "scatter_set", "", [[2, 2]], |y| in_place(y, &[2, 3], |x| x.scatter_set(&ids(&[[2u32, 0], [1, 0]])?, y, 1));
        "scatter_add_set", "", [[2, 2]], |y| in_place(y, &[2, 3], |x| x.scatter_add_set(&ids(&[[2u32, 0], [1, 0]])?, y, 1));
        "zero_set", "", [[2, 3]], |x| { let y = (x * 2.)?; y.zero_set()?; Ok(y) };
        "one_set", "", [[2, 3]], |x| { let y = (x * 2.)?; y.one_set()?; Ok(y) };
        "const_set", "", [[2, 3]], |x| { let y = (x * 2.)?; y.const_set(1f64.into())?; Ok(y) };
        "cat", "", [[2, 3], [1, 3]], |x, y| Tensor::cat(&[x, y], 0);
        "stack", "", [[2, 3], [2, 3]], |x, y| Tensor::stack(&[x, y], 1);
        "meshgrid", "", [[2], [3]], |x, y| { let grids = Tensor::meshgrid(&[x, y], true)?; &grids[0] * &grids[1] };
        "chunk", "", [[2, 3]], |x| { let chunks = x.chunk(3, 1)?; &chunks[0] * &chunks[2] };
        "sort_last_dim", "", [[2, 3]], |x| Ok(x.sort_last_dim(false)?.0);
        "unfold", "windows side by side", [[2, 6]], |x| x.unfold(1, 2, 2);
        "unfold", "windows that overlap", [[2, 6]], |x| x.unfold(1, 3, 1);
        "unfold", "not along the last dimension", [[6, 2]], |x| x.unfold(0, 2, 2);
        "unfold", "after a transpose", [[6, 2]], |x| x.t()?.unfold(1, 2, 2);
        "conv1d", "one output channel", [[2, 2, 9], [1, 2, 3]], |x, w| x.conv1d(w, 0, 1, 1, 1);
        "conv1d", "several output channels, batch of 1", [[1, 2, 9], [3, 2, 3]], |x, w| x.conv1d(w, 0, 1, 1, 1);
        "conv1d", "several output channels", [[2, 2, 9], [3, 2, 3]], |x, w| x.conv1d(w, 0, 1, 1, 1);
        "conv1d", "one output channel per group", [[2, 4, 9], [4, 1, 3]], |x, w| x.conv1d(w, 0, 1, 1, 4);
        "conv2d", "stride 1", [[2, 2, 6, 7], [3, 2, 3, 3]], |x, w| x.conv2d(w, 0, 1, 1, 1);
        "conv2d", "padding 1", [[2, 2, 6, 7], [3, 2, 3, 3]], |x, w| x.conv2d(w, 1, 1, 1, 1);
        "conv2d", "dilation 2", [[2, 2, 6, 7], [3, 2, 3, 3]], |x, w| x.conv2d(w, 0, 1, 2, 1);
        "conv2d", "2 groups", [[2, 4, 6, 7], [4, 2, 3, 3]], |x, w| x.conv2d(w, 0, 1, 1, 2);
        "conv2d", "height 1", [[2, 2, 1, 9], [3, 2, 1, 3]], |x, w| x.conv2d(w, 0, 1, 1, 1);
        "conv2d", "not contiguous", [[2, 2, 7, 6], [2, 3, 3, 3]], |x, w| x.transpose(2, 3)?.conv2d(&w.transpose(0, 1)?, 0, 1, 1, 1);
        "conv2d", "stride 2, equal remainders", [[2, 2, 6, 8], [3, 2, 3, 3]], |x, w| x.conv2d(w, 0, 2, 1, 1);
        "conv2d", "stride 2, different remainders", [[2, 2, 6, 7], [3, 2, 3, 3]], |x, w| x.conv2d(w, 0, 2, 1, 1);
        "conv_transpose1d", "", [[2, 2, 5], [2, 3, 3]], |x, w| x.conv_transpose1d(w, 0, 0, 1, 1, 1);
        "conv_transpose2d", "stride 1", [[2, 2, 5, 4], [2, 3, 3, 3]], |x, w| x.conv_transpose2d(w, 0, 0, 1, 1);
        "conv_transpose2d", "stride 2, padding 1", [[2, 2, 5, 4], [2, 3, 3, 3]], |x, w| x.conv_transpose2d(w, 1, 1, 2, 1);
        "conv_transpose2d", "dilation 2", [[2, 2, 5, 4], [2, 3, 3, 3]], |x, w| x.conv_transpose2d(w, 0, 0, 1, 2);
        "conv_transpose2d", "height 1", [[2, 2, 1, 5], [2, 3, 1, 3]], |x, w| x.conv_transpose2d(w, 0, 0, 1, 1);
        "avg_pool2d", "size a multiple of the kernel", [[2, 2, 6, 9]], |x| x.avg_pool2d((2, 3));
        "avg_pool2d", "size no multiple of the kernel", [[2, 2, 7, 7]], |x| x.avg_pool2d(2);
        "avg_pool2d_with_stride", "stride and kernel differ", [[2, 2, 7, 7]], |x| x.avg_pool2d_with_stride(3, 2);
        "max_pool2d", "kernel 2 × 2", [[2, 2, 6, 8]], |x| x.max_pool2d(2);
        "max_pool2d", "kernel 3 × 3", [[2, 2, 6, 9]], |x| x.max_pool2d(3);
        "max_pool2d", "size no multiple of the kernel", [[2, 2, 7, 7]], |x| x.max_pool2d(2);
        "max_pool2d_with_stride", "stride and kernel differ", [[2, 2, 7, 7]], |x| x.max_pool2d_with_stride(3, 2);
        "upsample_bilinear2d", "", [[2, 2, 3, 4]], |x| x.upsample_bilinear2d(6, 8, false);
        "upsample_bilinear2d_with_scale", "", [[2, 2, 3, 4]], |x| x.upsample_bilinear2d_with_scale(2., 2., false);
        "backward", "a second derivative of two operations", [[2, 3]], |x| gradient(&x.sqr()?.sin()?, x);
    ];
    rows.extend(methods!([[2, 3], [2, 3]], |x, y| x, add(y) sub(y) mul(y) div(&(y + 2.)?) maximum(y) minimum(y)));
    rows.extend(methods!([[2, 3], [3]], |x, y| x, broadcast_add(y) broadcast_sub(y) broadcast_mul(y)
        broadcast_div(&(y + 2.)?) broadcast_maximum(y) broadcast_minimum(y) mv(y)
        broadcast_eq(y) broadcast_ne(y) broadcast_lt(y) broadcast_le(y) broadcast_gt(y) broadcast_ge(y)));
    rows.extend(methods!([[3], [3]], |x, y| x, dot(y)));
    rows.extend(methods!([[2, 3]], |x| (x + 2.)?, log() sqrt() recip()));
    rows.extend(methods!([[2, 3]], |x| x, exp() sin() cos() tanh() abs() neg() sqr() gelu() gelu_erf() erf() relu() silu()
        elu(0.7) affine(2., 1.) clamp(-0.5, 0.5) ceil() floor() round() round_to(1) sign() eq(0.5) ne(0.5) lt(0.5) le(0.5)
        gt(0.5) ge(0.5) cmp(0.5, CmpOp::Lt) argmax(1) argmax_keepdim(1) argmin(1) argmin_keepdim(1) arg_sort_last_dim(true) sum(1)
        sum_keepdim(0) sum_all() mean(1) mean_keepdim(0) mean_all() max(1) max_keepdim(0) max_all() min(1) min_keepdim(0)
        min_all() var(1) var_keepdim(1) log_sum_exp(1) norm() cumsum(0) narrow(1, 1, 2) get(1) get_on_dim(1, 2)
        i((.., 1..3)) pad_with_zeros(1, 2, 1) pad_with_same(1, 2, 1) roll(1, 1) flip(&[0, 1]) repeat((2, 2)) reshape((3, 2))
        flatten(0, 1) flatten_all() flatten_from(0) flatten_to(1) transpose(0, 1) t() permute((1, 0)) unsqueeze(1)
        broadcast_as((4, 2, 3)) broadcast_left(4) expand((4, 2, 3)) contiguous() force_contiguous() copy()));
    rows.extend(methods!([[2, 1]], |x| x, squeeze(1)));
    for (one, two) in [("upsample_nearest1d", "upsample_nearest2d"), ("interpolate1d", "interpolate2d")] {
        // two names of the same functions
        rows.extend(rows![
            one, "a whole factor", [[2, 2, 3]], |x| x.interpolate1d(6);
            one, "no whole factor", [[2, 2, 3]], |x| x.upsample_nearest1d(5);
            one, "input used again", [[2, 2, 3]], |x| x.interpolate1d(6)?.sum_all()? + x.sqr()?.sum_all()?;
            one, "a copy of the input", [[2, 2, 3]], |x| x.copy()?.upsample_nearest1d(6)?.sum_all()? + x.sqr()?.sum_all()?;
            two, "a whole factor", [[2, 2, 3, 4]], |x| x.interpolate2d(6, 8);
            two, "no whole factor", [[2, 2, 3, 4]], |x| x.upsample_nearest2d(5, 7);
            two, "two factors", [[2, 2, 3, 4]], |x| x.interpolate2d(6, 12);
            two, "input used again", [[2, 2, 3, 4]], |x| x.interpolate2d(6, 8)?.sum_all()? + x.sqr()?.sum_all()?;
            two, "a copy of the input", [[2, 2, 3, 4]], |x| x.copy()?.upsample_nearest2d(6, 8)?.sum_all()? + x.sqr()?.sum_all()?;
        ]);
    }
    rows
}

/// Where no finite difference helps.
#[rustfmt::skip]
pub const POINTS: &[Point] = &[
    ("relu", "0", &[0.], Tensor::relu),
    ("abs", "0", &[0.], Tensor::abs),
    ("max", "two equal numbers", &[1., 1.], |x| x.max(0)),
    ("min", "two equal numbers", &[1., 1.], |x| x.min(0)),
    ("max_all", "two equal numbers", &[1., 1.], Tensor::max_all),
    ("min_all", "two equal numbers", &[1., 1.], Tensor::min_all),
    ("clamp", "a bound", &[0.], |x| x.clamp(0f32, 1f32)),
    ("Activation::Relu6", "0", &[0.], |x| Act::Relu6.forward(x)),
    ("ops::hard_sigmoid", "-3", &[-3.], ops::hard_sigmoid),
    ("ops::leaky_relu", "0, slope 0.1", &[0.], |x| ops::leaky_relu(x, 0.1)),
    ("PReLU", "0, weight 0.25", &[0.], |x| candle_nn::PReLU::new(ids(&[0.25f32])?, true).forward(x)),
    ("norm", "zeros", &[0., 0.], Tensor::norm),
    ("powf", "0, exponent 0", &[0.], |x| x.powf(0.)),
    ("pow", "0, exponent 2", &[0.], |x| x.pow(&ids(&[2f32])?)),
    ("ops::mish", "100", &[100.], ops::mish),
    ("ops::selu", "100", &[100.], |x| ops::selu(x, 1.67, 1.05)),
    ("loss::binary_cross_entropy_with_logit", "20, target 1", &[20.], |x| {
        loss::binary_cross_entropy_with_logit(x, &x.ones_like()?)
    }),
];
