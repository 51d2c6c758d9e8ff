// 6. One flat bucket: one all-reduce instead of eight
//
// LeNet has eight parameters. So `train_batch` calls `allreduce` eight times in
// each step (book: 13.5.6). Each call takes some time, even for a small tensor.
// A trainer makes fewer calls (book: 13.6). It keeps the gradients in a few
// long vectors, called buckets, and sums each bucket as a whole.
//
// Here all gradients go into one bucket. `flatten` puts their elements one
// after the other, gradient 0 first. `unflatten` cuts the bucket into gradients
// again. It makes a gradient for each shape, in the same order.
//
// `flatten_all` makes a vector of a tensor. `Tensor::cat` with dimension 0
// joins vectors. `narrow(0, start, len)` takes `len` elements of a vector, from
// element `start` on. `shape.elem_count()` is the number of elements of a
// shape.

use candle_core::{Result, Shape, Tensor};

pub fn flatten(grads: &[Tensor]) -> Result<Tensor> {
    // gap: todo!("join the elements of all `grads` to one vector")
    let flat = grads.iter().map(Tensor::flatten_all);
    Tensor::cat(&flat.collect::<Result<Vec<_>>>()?, 0)
    // end of gap
}

pub fn unflatten(bucket: &Tensor, shapes: &[Shape]) -> Result<Vec<Tensor>> {
    // gap: todo!("cut `bucket` into gradients with these `shapes`")
    let (mut grads, mut start) = (Vec::new(), 0);
    for shape in shapes {
        let len = shape.elem_count();
        grads.push(bucket.narrow(0, start, len)?.reshape(shape)?);
        start += len;
    }
    Ok(grads)
    // end of gap
}
