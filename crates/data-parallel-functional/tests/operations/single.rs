//! Random calls of operations that are never computed as one with others. Some have no example, where candle's functions
//! that the reference calls record a gradient then.

use crate::both::Both;
use crate::networks::Case;
use crate::reference::Heads;
use crate::support::random;
use functional::Attention;
use proptest::prelude::*;

pub fn of_elements() -> impl Strategy<Value = Case> {
    (0usize..200, 1usize..120, 0usize..6, 0.1f64..9., 0u64..1000).prop_map(|sizes| {
        let (rows, columns, which, scale, seed) = sizes;
        let x = (random((rows, columns), seed) * scale).unwrap();
        Case::new(sizes, vec![x], move |t| {
            let x = Both::new(&t[0])?;
            match which {
                0 => x.sigmoid(),
                1 => x.tanh(),
                2 => x.silu(),
                3 => x.relu6(),
                4 => x.clamp(-0.5, 2.5),
                _ => x.affine(1.5, -2.5),
            }
        })
        .smooth_if(![3, 4].contains(&which)) // these have kinks
    })
}

/// Of two values of one shape, or of one with itself.
pub fn of_two() -> impl Strategy<Value = Case> {
    (1usize..200, 1usize..120, 0usize..4, 0u64..1000).prop_map(|sizes| {
        let (rows, columns, which, seed) = sizes;
        let inputs = [0, 1].map(|i| random((rows, columns), seed + i));
        Case::new(sizes, inputs.to_vec(), move |t| {
            let (x, y) = (Both::new(&t[0])?, Both::new(&t[1])?);
            match which {
                0 => x.times(&y),
                1 => x.minus(&y),
                2 => x.times(&x)?.minus(&y),
                _ => x.minus(&x.times(&y)?),
            }
        })
        .smooth_if(true)
    })
}

/// With a smaller value, which is repeated along any dimensions.
pub fn repeated() -> impl Strategy<Value = Case> {
    let size = || prop_oneof![Just(1usize), 2usize..5, 5usize..40];
    let dims = (size(), 1usize..6, size(), size());
    (dims, 0u32..32, any::<bool>(), 0u64..1000).prop_map(|sizes| {
        let ((a, b, c, d), which, multiplies, seed) = sizes;
        let dims = [a, b, c, d];
        let kept = |i: usize| if which >> i & 1 == 1 { dims[i] } else { 1 };
        let other: Vec<usize> = (0..4).map(kept).collect();
        // without the first dimensions, where they are 1
        let first = (0..4).find(|i| other[*i] != 1).unwrap_or(3);
        let other = if which > 15 {
            &other[first..]
        } else {
            &other[..]
        };
        let inputs = vec![random(&dims[..], seed), random(other, seed + 1)];
        Case::new(sizes, inputs, move |t| {
            let (x, other) = (Both::new(&t[0])?, Both::new(&t[1])?);
            match multiplies {
                true => x.broadcast_mul(&other),
                false => x.broadcast_add(&other),
            }
        })
        .smooth_if(true)
    })
}

pub fn parts() -> impl Strategy<Value = Case> {
    let dims = (0usize..6, 1usize..40, 1usize..40);
    (dims, 0usize..3, (0usize..30, 1usize..30), 0u64..1000).prop_map(|sizes| {
        let ((a, b, c), dim, (start, len), seed) = sizes;
        let dims = [a, b, c];
        let mut second = dims;
        second[dim] = len;
        let start = start % (dims[dim] + len);
        let len = len.min(dims[dim] + len - start);
        let inputs = vec![random(&dims[..], seed), random(&second[..], seed + 1)];
        Case::new(sizes, inputs, move |t| {
            let (x, y) = (Both::new(&t[0])?, Both::new(&t[1])?);
            let all = x.cat(&[&y, &x], dim)?;
            // two parts, which overlap or not, of what is read elsewhere as well
            let part = all
                .narrow(dim, start, len)?
                .plus(&all.narrow(dim, 0, len)?)?;
            let elements: usize = [&dims[..dim], &[len], &dims[dim + 1..]]
                .concat()
                .iter()
                .product();
            part.tanh()?.reshape(&[elements, 1])
        })
        .smooth_if(true)
    })
}

pub fn norms() -> impl Strategy<Value = Case> {
    let dims = (1usize..5, 1usize..12, 1usize..12, (1usize..5, 1usize..9));
    (dims, 0usize..3, 1e-4f64..1., 0u64..1000).prop_map(|sizes| {
        let ((b, h, w, (groups, of_group)), which, eps, seed) = sizes;
        let (c, eps) = (groups * of_group, eps as f32);
        let inputs = vec![
            random((b, h, w, c), seed),
            random(c, seed + 1),
            random(c, seed + 2),
        ];
        Case::new(sizes, inputs, move |t| {
            let (x, weight, bias) = (Both::new(&t[0])?, &t[1], &t[2]);
            match which {
                0 => x.layer_norm_eps(weight, bias, eps),
                1 => x.rms_norm(weight, eps)?.broadcast_add(&Both::new(bias)?),
                _ => x.group_norm(groups, weight, bias, eps),
            }
        })
        .smooth_if(true)
    })
}

/// Of as many keys as queries or not, with fewer heads of keys or not, with a mask or not.
pub fn attention() -> impl Strategy<Value = Case> {
    let dims = (1usize..4, 1usize..9, 1usize..9, 1usize..6);
    let heads = (1usize..4, 1usize..4);
    (dims, heads, 0usize..5, 0.2f64..2., 0u64..1000).prop_map(|sizes| {
        let ((b, tokens, keys, size), (kv_heads, each), which, scale, seed) = sizes;
        let heads = kv_heads * each;
        let causal = which == 1;
        let keys = if causal { tokens } else { keys };
        let mask_dims = [
            if which == 2 { b } else { 1 },
            if which == 3 { 1 } else { tokens },
            keys,
        ];
        let mask = random(&mask_dims[..], seed + 3).ge(-0.3f32).unwrap();
        let mut how = Attention::new(heads).kv_heads(kv_heads);
        if causal {
            how = how.causal();
        } else if which > 1 {
            how = how.mask(&mask).scale(scale as f32);
        }
        let is_seen: Vec<u8> = mask.flatten_all().unwrap().to_vec1().unwrap();
        let inputs = vec![
            random((b, tokens, heads * size), seed),
            random((b, keys, kv_heads * size), seed + 1),
            random((b, keys, kv_heads * size), seed + 2),
        ];
        Case::new(sizes, inputs, move |t| {
            let [q, k, v] = [0, 1, 2].map(|i| Both::new(&t[i]).unwrap());
            let at = |example: usize, token: usize, key: usize| {
                let example = example % mask_dims[0];
                let token = token % mask_dims[1];
                is_seen[(example * mask_dims[1] + token) * keys + key] == 1
            };
            let sees = |example: usize, token: usize, key: usize| match which {
                0 => true,
                1 => key <= token,
                _ => at(example, token, key),
            };
            let scale = if which > 1 {
                f64::from(scale as f32)
            } else {
                1. / (size as f64).sqrt()
            };
            let heads = Heads {
                heads,
                kv_heads,
                scale,
                sees: &sees,
            };
            q.attention(&k, &v, &how, &heads)
        })
        .smooth_if(true)
    })
}

pub fn rotations() -> impl Strategy<Value = Case> {
    (
        0usize..5,
        1usize..20,
        1usize..4,
        1usize..20,
        any::<bool>(),
        0u64..1000,
    )
        .prop_map(|sizes| {
            let (b, tokens, heads, half, interleaved, seed) = sizes;
            let angles = (random((tokens, half), seed + 1) * 3.).unwrap();
            let (cos, sin) = (angles.cos().unwrap(), angles.sin().unwrap());
            let x = random((b, tokens, heads * 2 * half), seed);
            Case::new(sizes, vec![x], move |t| {
                let [cos, sin] = [&cos, &sin].map(|of| of.to_device(t[0].device()).unwrap());
                let x = Both::new(&t[0])?;
                match interleaved {
                    true => x.rotary_interleaved(heads, &cos, &sin),
                    false => x.rotary(heads, &cos, &sin),
                }
            })
            .smooth_if(true)
        })
}

pub fn recurrent() -> impl Strategy<Value = Case> {
    let dims = (1usize..40, 1usize..7, 1usize..12, 1usize..20);
    (dims, any::<bool>(), 0u64..1000).prop_map(|sizes| {
        let ((b, steps, inputs, hidden), lstm, seed) = sizes;
        let gates = if lstm { 4 } else { 3 } * hidden;
        let shapes = [
            vec![b, steps, inputs],
            vec![gates, inputs],
            vec![gates, hidden],
            vec![gates],
            vec![gates],
        ];
        let inputs = shapes.iter().zip(seed..);
        let inputs = inputs.map(|(shape, seed)| random(&shape[..], seed));
        Case::new(sizes, inputs.collect(), move |t| {
            let x = Both::new(&t[0])?;
            let (weights, biases) = ([&t[1], &t[2]], [&t[3], &t[4]]);
            match lstm {
                true => x.lstm(weights, biases),
                false => x.gru(weights, biases),
            }
        })
        .smooth_if(true)
    })
}
