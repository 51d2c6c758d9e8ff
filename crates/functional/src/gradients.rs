//! The gradients of a network's parameters where their owner wants them: each in a variable of its own,
//! or in buckets, the way an all-reduce wants them. The operations of this crate write there directly;
//! what other operations of candle's computed is added. It sends nothing to another replica.

use crate::bucket::{self, Bucket, Part, Values};
use crate::places::Places;
use candle_core::{DType, Device, Result, Tensor, Var, bail};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// Writes the gradient of the scalar `loss` with respect to each parameter into the variable beside it,
/// on the same device and of as many elements. In the book: `l.backward()`.
///
/// ```
/// use candle_core::{DType, Device, Tensor, Var};
/// let w = Var::new(&[[1f32, 2.]], &Device::Cpu)?;
/// let grad = Var::zeros((1, 2), DType::F32, &Device::Cpu)?;
/// let x = Tensor::new(&[[10f32, 20.]], &Device::Cpu)?;
/// functional::backward(&functional::linear(&x, &w, None)?.sum_all()?, [(&w, &grad)])?;
/// assert_eq!(grad.to_vec2::<f32>()?, [[10., 20.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// Where the loss does not depend on a parameter, or the elements of a pair are not as many.
pub fn backward<'a>(
    loss: &Tensor,
    params: impl IntoIterator<Item = (&'a Var, &'a Var)>,
) -> Result<()> {
    let mut places = Places::default();
    for (i, (param, grad)) in params.into_iter().enumerate() {
        if param.elem_count() != grad.elem_count() {
            let (param, grad) = (param.dims(), grad.dims());
            bail!("backward: a parameter has shape {param:?}, its gradient {grad:?}")
        }
        let values = Values::Tensor(grad.as_tensor().clone());
        places.add(values, i, [(i.to_string(), param.as_tensor().clone())]);
    }
    places.backward(loss, None)
}

/// The gradients of parameters in buckets, each a memory of its own that can be handed out.
///
/// A bucket has the gradients of parameters that follow each other. Bucket 0 has the last parameters, because
/// backward comes to those first; and buckets are handed out in that order, in every replica alike.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use functional::{Gradients, Values};
/// let w = Var::new(&[[1f32, 2.]], &Device::Cpu)?;
/// let b = Var::new(&[3f32], &Device::Cpu)?;
/// let x = Tensor::new(&[[10f32, 20.]], &Device::Cpu)?;
/// let mut gradients = Gradients::new([("w", &w), ("b", &b)], 2)?;
/// let (ready, buckets) = std::sync::mpsc::channel();
/// for _step in 0..2 {
///     gradients.zero();
///     let y = functional::linear(&x, &w, Some(&b))?.sum_all()?;
///     gradients.backward_giving(&y, &ready)?;
///     // here, or on another thread while backward goes on
///     for expected in [&[1.][..], &[10., 20.]] {
///         let bucket = buckets.recv()?;
///         assert!(matches!(&bucket.values, Values::Floats(floats) if floats == expected));
///         gradients.put_back(bucket)?;
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Gradients {
    places: Places,
}

impl Gradients {
    /// Zeros for each of `params`, which have names for messages and are all on one device. A bucket has at
    /// most `bucket_len` elements, except that a parameter is never cut: a larger one has a bucket to
    /// itself. With `usize::MAX` there is one bucket.
    ///
    /// # Errors
    /// Where that device has no memory left.
    ///
    /// # Panics
    /// Where a parameter is there twice.
    pub fn new<'a>(
        params: impl IntoIterator<Item = (&'a str, &'a Var)>,
        bucket_len: usize,
    ) -> Result<Self> {
        let named = |(name, var): (&str, &Var)| (name.to_owned(), var.as_tensor().clone());
        let params: Vec<(String, Tensor)> = params.into_iter().map(named).collect();
        let ids: HashSet<_> = params.iter().map(|(_, param)| param.id()).collect();
        assert_eq!(ids.len(), params.len(), "a parameter is given twice");
        let lens: Vec<usize> = params.iter().map(|(_, param)| param.elem_count()).collect();
        let mut places = Places::default();
        for numbers in bucket::share_out(&lens, bucket_len) {
            let (first, len) = (numbers.start, lens[numbers.clone()].iter().sum());
            let values = match params[first].1.device() {
                Device::Cpu => Values::Floats(vec![0.; len]),
                device => Values::Tensor(Tensor::zeros(len, DType::F32, device)?),
            };
            places.add(values, first, params[numbers].iter().cloned());
        }
        Ok(Self { places })
    }

    /// What each bucket holds, which never changes.
    pub fn layout(&self) -> impl ExactSizeIterator<Item = &Arc<[Part]>> {
        self.places.layout()
    }

    /// A copy of what lies in the place of each parameter, in their order, also if [`zero`](Self::zero) was called
    /// since: to look at the gradients of a step after it.
    ///
    /// # Errors
    /// Where a bucket is out.
    pub fn values(&self) -> Result<Vec<Tensor>> {
        self.places.values()
    }

    /// Forgets what there is: the next backward writes, and does not add. It touches no memory.
    pub fn zero(&mut self) {
        self.places.zero();
    }

    /// Adds the gradients of the scalar `loss` to what came since [`zero`](Self::zero), for instance of
    /// another minibatch.
    ///
    /// # Errors
    /// Where the loss does not depend on a parameter, which the message names, or a bucket is out. After
    /// an error [`zero`](Self::zero) has to come first.
    pub fn backward(&mut self, loss: &Tensor) -> Result<()> {
        self.places.backward(loss, None)
    }

    /// As [`backward`](Self::backward), and sends each bucket to `ready` as soon as its gradients are
    /// complete, while backward goes on. The bucket is out then, until it is put back.
    ///
    /// The first pass learns when each gradient is complete, and sends all buckets at its end. A bucket with
    /// a parameter that candle's own operations use is sent at the end of every pass, and so are the buckets
    /// after it. A later pass expects each parameter in as many expressions as in the pass before.
    ///
    /// # Errors
    /// As of [`backward`](Self::backward); where the pass adds to a gradient that is already handed out,
    /// because the network computes something else than in the pass before; and where the receiver was
    /// dropped. Buckets may be out then.
    pub fn backward_giving(&mut self, loss: &Tensor, ready: &Sender<Bucket>) -> Result<()> {
        self.places.backward(loss, Some(ready))
    }

    /// Sends all buckets to `ready`. Gradients that nothing wrote since [`zero`](Self::zero) are zeros, as
    /// a replica without an example needs them.
    ///
    /// # Errors
    /// Where a bucket is out, the pass before failed, or the receiver was dropped.
    pub fn give(&mut self, ready: &Sender<Bucket>) -> Result<()> {
        self.places.give(ready)
    }

    /// Takes a bucket back, with what is in it now.
    ///
    /// # Errors
    /// Where it does not fit, or is not out.
    pub fn put_back(&mut self, bucket: Bucket) -> Result<()> {
        self.places.put_back(bucket)
    }
}
